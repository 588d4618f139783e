"""Model architectures: one file each over the ops, found in the registry by the name that model files use."""

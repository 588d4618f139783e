"""RMSNorm, alone or of a sum with a residual."""

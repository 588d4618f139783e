"""The web tier: HTTP into token ids and back. Imports neither the scheduler nor the device workers."""

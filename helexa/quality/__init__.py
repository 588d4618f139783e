"""How far logits are from float32: measured by `helexa quant-report` and by tools/quality.py."""

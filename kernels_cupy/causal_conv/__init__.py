"""Depthwise causal convolution with SiLU and a state a sequence."""

"""Weights from model files, as the ops take them.

A model's `load` gets a `Checkpoint` (helexa/formats/checkpoint.py: metadata and tensors by the names of its format, opened by
`open_checkpoint`) and `Tensors` (tensors.py), which hands them out as `RawTensor`s with their shapes checked. A checkpoint whose
linears are quantised as they are loaded is a Checkpoint like any other.
"""

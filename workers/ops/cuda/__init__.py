"""The ops on a GPU: CuPy kernels on torch's tensors. Imported only in a GPU's device worker."""

"""CuPy RawKernels for GPU device workers, one folder an op: `<op>.cu`, its launcher and its reference."""

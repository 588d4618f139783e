"""Model file formats: pure readers of mapped files. Every byte read is taken for hostile."""

"""Device workers: one process per (model, rank) turns step plans into tokens."""

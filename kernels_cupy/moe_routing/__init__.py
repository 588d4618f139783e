"""Which experts of a mixture a row takes, the pairs gathered by expert, and their sum."""

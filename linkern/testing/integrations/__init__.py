"""The judge inside the harnesses of others: benchmarks and training environments."""

"""Benchmarks: run with `asv run` in `asv_bench/`; each also runs once as a test."""

"""Benchmarks: one harness with two clocks, and suites of tasks and peers as data."""

from linkern.bench.generation.one_layer import attention_alone

__all__ = ["attention_alone"]

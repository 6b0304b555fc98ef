"""Triton kernels on a CPU, by Triton's interpreter: its patches and its findings."""

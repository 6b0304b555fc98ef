"""CUDA kernels of the causal sums, and what launches them on arrays of CuPy.

A kernel is a file, one for each way of taking the sums; a launch is data, so that
the emulator of the tests takes it as a GPU does. Nothing here knows operators.
"""

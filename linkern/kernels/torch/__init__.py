"""PyTorch on a CPU: whole calls by the NumPy back end, with gradients and opaque ops.

Tensors and NumPy arrays share their memory: nothing is copied, and results and first
gradients are bitwise those of the same call on NumPy arrays.
"""

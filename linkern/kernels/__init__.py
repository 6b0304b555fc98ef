"""Back ends: the forms in place on NumPy, and as CUDA kernels on CuPy."""

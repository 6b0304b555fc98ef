"""Back ends, which `linkern.kernels.dispatch` chooses: NumPy in place, and CUDA."""

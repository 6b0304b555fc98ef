"""Measuring on a GPU: linkern beside other kernels, and all beside copying."""

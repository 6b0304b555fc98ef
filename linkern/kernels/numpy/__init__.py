"""The forms on NumPy: the same sums in place, in blocks that stay in a core's cache.

NumPy's BLAS and its elementwise functions do all the work. Nothing here knows
operators: it takes features and values, or the terms of a recurrence, as the array
forms do, and is judged as any other kernel is.
"""

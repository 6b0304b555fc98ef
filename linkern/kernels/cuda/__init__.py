"""CUDA back end: kernels, planners of their launches, and calls on arrays of CuPy.

Each kernel ``src/NAME.cu`` has a planner ``plan/NAME.py`` that returns launches as
data, so that the emulator of the tests runs them as a GPU does. Nothing here knows
operators.
"""

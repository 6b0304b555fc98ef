"""CUDA back end: kernels, planners of their launches, and calls on arrays of CuPy.

Each kernel ``src/NAME.cu`` has a planner ``plan/NAME.py`` that returns launches as
data, so that the emulator of the tests runs them as a GPU does. Nothing here knows
operators.
"""

from linkern.kernels.cuda.backend import attend, recurrence
from linkern.kernels.cuda.forward import acts_on_entries

__all__ = ["acts_on_entries", "attend", "recurrence"]

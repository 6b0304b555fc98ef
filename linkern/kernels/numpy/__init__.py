"""The NumPy back end: chunkwise and recurrent forms in place, in cache-sized blocks.

NumPy's BLAS and its elementwise functions do all the work. The back end knows no
operator: its inputs are features and values, or the terms of a recurrence. Its results
are checked like those of any other kernel.
"""

from linkern.kernels.numpy.backend import attend, chunkwise, recurrent
from linkern.kernels.numpy.features import acts_on_entries

__all__ = ["acts_on_entries", "attend", "chunkwise", "recurrent"]

"""Peak memory of a call: traced to the byte, or by the growth of the process.

NumPy reports its allocations to `tracemalloc`. Other libraries do not: Linux reports
the growth of the whole process, to a page, without memory that its allocator reuses.
"""

import ctypes
import gc
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

__all__ = ["peak_by_growth", "peak_by_tracing"]

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def peak_by_tracing(call: Callable[[], object]) -> int:
    """Return the peak in bytes of all that Python and NumPy allocate during a call.

    Examples
    --------
    >>> import numpy as np
    >>> 10**6 <= peak_by_tracing(lambda: np.ones(10**6, "uint8")) < 1.1e6
    True
    """
    gc.collect()
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        if not running:
            tracemalloc.stop()
    return peak - before


def peak_by_growth(call: Callable[[], object]) -> int | None:
    """Return the growth of the process during a call in bytes; None if not on Linux."""
    gc.collect()
    if not sys.platform.startswith("linux"):
        return None
    try:
        # Memory freed by earlier calls goes back to the system and counts again.
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5", encoding="ascii")  # resets VmHWM
        before = _kibibytes("VmRSS")
        call()
        return 1024 * max(0, _kibibytes("VmHWM") - before)
    except (OSError, AttributeError):
        return None


def _kibibytes(field: str) -> int:
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

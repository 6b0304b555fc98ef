"""What all benchmarks stand on: names of the library, array libraries, fair ratios.

asv runs these files with every commit, old ones too. So no file imports a name of
linkern when it is read: `needed` looks for it during `setup`, and where a commit or a
machine lacks something, the benchmark is skipped with a sentence that says what.
"""

import os
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

HEADS, DIM = 8, 64
BACKENDS = ["numpy", "torch", "cupy"]


def skip(reason):
    """Tell asv to skip a benchmark, and people why."""
    raise NotImplementedError(reason)


def needed(name, module="linkern"):
    """Return something of the library, if this commit has it."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        return skip(f"this commit has no {module}.{name} ({error})")


def package(name):
    """Return another package, if it is installed beside this commit."""
    try:
        return import_module(name)
    except ImportError as error:
        return skip(f"{name} is not installed here ({error})")


class Backend(NamedTuple):
    """An array library: how its arrays are made, and when it is done."""

    array: Callable[[np.ndarray, str], Any]
    wait: Callable[[], object]


def backend(name):
    """Return an array library by its name."""
    if name == "numpy":
        return Backend(_numpy, lambda: None)
    library = package(name)
    if name == "torch":
        return Backend(
            lambda x, dtype: library.asarray(x).to(getattr(library, dtype)),
            lambda: None,
        )
    if not library.cuda.is_available():
        skip("CuPy finds no CUDA device")
    return Backend(
        lambda x, dtype: library.asarray(x).astype(dtype),
        lambda: library.cuda.Device().synchronize(),
    )


def _numpy(x, dtype):
    return x.astype(getattr(package("ml_dtypes"), dtype) if "bf" in dtype else dtype)


def once(call):
    """Return a call that is warm: the first one imports, and looks for libraries."""
    call()
    return call


def tokens(length, dim=DIM, heads=HEADS, seed=0):
    """Return query, key and value in float32."""
    rng = np.random.default_rng(seed)
    return list(rng.standard_normal((3, heads, length, dim), dtype=np.float32))


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def ratio(slow, fast, pairs=3):
    """How many times longer `slow` takes than `fast`: the median of pairs.

    The two take turns: a machine that is slow for a while is slow for both.
    """
    slow(), fast()
    return statistics.median(seconds(slow) / seconds(fast) for _ in range(pairs))


def threads():
    """How many threads linkern may use, and matrix products beside it."""
    said = os.environ.get("LINKERN_NUM_THREADS")
    return int(said) if said else len(os.sched_getaffinity(0))

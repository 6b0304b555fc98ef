"""Side effects of a call on its process: detect them, and undo them."""

import ctypes
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from typing import Any

import numpy as np

__all__ = ["difference", "generators_kept", "look", "restored", "snapshot"]

Snapshot = dict[str, Any]

_UNLIKELY = 2_718_281_828
# Lazily imported parts of NumPy are no functions, and appear when they are first used.
_FUNCTIONS = [name for name in np.__all__ if callable(vars(np).get(name))]
_look_up = itemgetter(*_FUNCTIONS)
# More than any platform needs to hold its floating-point environment.
_ENVIRONMENT_BYTES = 512
try:
    _MATHEMATICS: Any = ctypes.CDLL(None)
    _MATHEMATICS.fegetenv, _MATHEMATICS.fesetenv  # noqa: B018 -- are they there?
except (AttributeError, OSError, TypeError):  # no C library with them
    _MATHEMATICS = None

# Operands that show the floating-point mode.
_TINY, _SMALL = np.full(8, 2.0**-1060), np.full(8, 2.0**-10)
_NARROW, _HALF = np.full(8, 2.0**-140, np.float32), np.full(8, 0.5, np.float32)
_ONES = np.array([1.0, -1.0])


def _floating_point_mode() -> bytes:
    """Return results that depend on flushing of subnormals and on rounding."""
    with np.errstate(all="ignore"):
        tiny, narrow, thirds = _TINY * _SMALL, _NARROW * _HALF, _ONES / 3.0
    # As bytes: where subnormals are flushed, they also compare equal to zero.
    return b"".join(x.tobytes() for x in (tiny, narrow, thirds))


def _numpy_functions() -> tuple[Any, ...]:
    functions: tuple[Any, ...] = _look_up(vars(np))
    return functions


def _torch(read: Callable[[Any], Any]) -> Callable[[], Any]:
    def probe() -> Any:
        torch = sys.modules.get("torch")
        # A module that is still being imported has no attributes yet.
        return read(torch) if hasattr(torch, "is_grad_enabled") else None

    return probe


PROBES: dict[str, Callable[[], Any]] = {
    # What a generator gives next is quicker to compare than all of its state.
    "the random state of Python": random.random,
    "the random state of NumPy": np.random.random_sample,
    "the random state of PyTorch": _torch(
        lambda t: t.rand((), dtype=t.float64, device="cpu").item()
    ),
    "the floating-point mode": _floating_point_mode,
    "the error handling of NumPy": np.geterr,
    "the functions of NumPy": _numpy_functions,
    "the working directory": os.getcwd,
    "the default dtype of PyTorch": _torch(lambda t: t.get_default_dtype()),
    "the gradient mode of PyTorch": _torch(lambda t: t.is_grad_enabled()),
}


def snapshot() -> Snapshot:
    """Return the result of the next `look` if nothing changes.

    The generators are set to states that no target would choose: one that seeds them in
    every call would otherwise be seen in its first call at most.
    """
    _seed()
    seen = look()
    _seed()
    return seen


def _seed() -> None:
    random.seed(_UNLIKELY)
    np.random.seed(_UNLIKELY)  # noqa: NPY002
    _torch(lambda t: t.default_generator.manual_seed(_UNLIKELY))()


def look() -> Snapshot:
    """Return the modes of the process, and the next numbers of its generators."""
    return {name: probe() for name, probe in PROBES.items()}


def difference(before: Snapshot, after: Snapshot) -> tuple[str, ...]:
    """Return the names of the probes whose results have changed.

    Examples
    --------
    >>> with generators_kept():
    ...     before = snapshot()
    ...     _ = random.random()
    ...     difference(before, look())
    ('the random state of Python',)
    """
    return tuple(
        name
        for name, value in after.items()
        # A library that the call imported had no state before.
        if before[name] is not None and before[name] != value
    )


@contextmanager
def restored() -> Iterator[None]:
    """Undo changes of the modes of the process, so that every call shows them."""
    with ExitStack() as undo:
        undo.callback(_floating_point_environment())
        undo.enter_context(np.errstate())
        undo.callback(vars(np).update, zip(_FUNCTIONS, _numpy_functions(), strict=True))
        undo.callback(os.chdir, os.getcwd())  # noqa: PTH109
        torch: Any = sys.modules.get("torch")
        if hasattr(torch, "is_grad_enabled"):
            undo.callback(torch.set_default_dtype, torch.get_default_dtype())
            undo.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        yield


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the random generators of this process, which others use too."""
    python_state = random.getstate()
    # The global generator is what a kernel may use; as a dict, since a tuple of its
    # state takes twice as long.
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 -- as said above
    torch: Any = sys.modules.get("torch")
    torch_state = torch.get_rng_state() if hasattr(torch, "is_grad_enabled") else None
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 -- as said above
        if torch_state is not None:
            torch.set_rng_state(torch_state)


def _floating_point_environment() -> Callable[[], object]:
    """Return a function that restores the present floating-point mode."""
    if _MATHEMATICS is None:
        return lambda: None
    held = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    _MATHEMATICS.fegetenv(held)
    return lambda: _MATHEMATICS.fesetenv(held)

"""The rules by which other projects decide that an array is the right one.

Each is written after its source, for NumPy arrays; differences are formed in float64. A
rule takes a `Comparison` and says whether a test would pass; what raises does not pass.
"""

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["AVAILABLE", "RULES", "Comparison", "Rule", "accepts"]

Array = NDArray[Any]

# rtol and atol of `torch.testing.assert_close` for each dtype.
TORCH_TOLERANCES = {
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "bfloat16": (1.6e-2, 1e-5),
}


@dataclass(frozen=True)
class Comparison:
    """One array that a test looks at.

    Parameters
    ----------
    got : object
        What a kernel returned; an array, if it is well-behaved.
    due : array
        The exact answer, rounded to the dtype that the kernel should return.
    plain : array
        What an ordinary implementation makes of it, in the precision of the inputs.
    multiple : float
        How many times as wrong as that the rule of FlashAttention lets a kernel be.
    """

    got: Any
    due: Array
    plain: Array
    multiple: float = 2.0


Rule = Callable[[Comparison], bool]


def allclose(tolerance: float) -> Rule:
    """Return the rule of `numpy.allclose` with one number for both tolerances."""
    return lambda pair: _close(pair.got, pair.due, tolerance, tolerance)


def torch_defaults(pair: Comparison) -> bool:
    """Judge as `torch.testing.assert_close` does without arguments."""
    got, due = _tensor(pair.got), pair.due
    if got.shape != due.shape or got.dtype != due.dtype:
        return False
    return _close(got, due, *TORCH_TOLERANCES[due.dtype.name])


def fla(pair: Comparison, *, in_ci: bool = False) -> bool:
    """Judge as `fla.utils.testing.assert_close`: by a ratio of root mean squares."""
    got, due = _wide(_tensor(pair.got)), _wide(pair.due)
    error, largest = got - due, abs(got - due).max()
    if largest <= 1e-6:
        return True
    if np.isnan(got).any():
        return False
    ratio = np.sqrt((error**2).mean()) / (np.sqrt((due**2).mean()) + 1e-8)
    only_warns = in_ci and (ratio < 0.01 or largest <= 0.3)
    return bool(only_warns or ratio < 0.005)


def flash_attention(pair: Comparison) -> bool:
    """Allow twice the error of an ordinary implementation, at the worst entry."""
    got, due, plain = _wide(_tensor(pair.got)), _wide(pair.due), _wide(pair.plain)
    return bool(abs(got - due).max() <= pair.multiple * abs(plain - due).max())


def gpucheck(pair: Comparison) -> bool:
    """Judge as `gpucheck.assert_close` does without arguments."""
    from gpucheck import assert_close  # noqa: PLC0415 -- it may not be installed

    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it found
        assert_close(pair.got, pair.due)
    return True


def accepts(rule: Rule, pair: Comparison) -> bool:
    """Whether a test with this rule would pass; one that raises does not."""
    try:
        return rule(pair)
    except Exception:
        return False


def _close(got: Any, due: Array, rtol: float, atol: float) -> bool:
    return bool(np.allclose(_wide(got), _wide(due), rtol=rtol, atol=atol))


def _wide(x: Any) -> Array:
    return np.asarray(x).astype(np.float64)


def _tensor(x: Any) -> Array:
    """Refuse what is no array, as rules that are written for tensors do."""
    if not isinstance(x, np.ndarray):
        msg = f"a tensor is needed, got {type(x).__name__}"
        raise TypeError(msg)
    return x


RULES: dict[str, Rule] = {
    "allclose 1e-2": allclose(1e-2),
    "allclose 1e-3": allclose(1e-3),
    "allclose 1e-4": allclose(1e-4),
    "torch": torch_defaults,
    "FLA": fla,
    "FLA in CI": lambda pair: fla(pair, in_ci=True),
    "FlashAttention": flash_attention,
    "gpucheck": gpucheck,
}

# What can be applied here: gpucheck may not be installed.
AVAILABLE = {n: rule for n, rule in RULES.items() if n != "gpucheck" or find_spec(n)}

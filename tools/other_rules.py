"""Rules by which other projects accept an array.

Each is written after its source, for NumPy arrays; differences are formed in float64. A
rule takes a `Comparison` and returns True if a test would pass; one that raises fails.
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
    """One array that a test compares.

    Parameters
    ----------
    result : object
        Returned by a kernel; an array, if the kernel is well-behaved.
    exact : array
        The exact answer, rounded to the dtype that the kernel should return.
    plain : array or None
        Result of an ordinary implementation in the precision of the inputs; None where
        there is none, so that the rule that needs it accepts everything.
    multiple : float
        The error that the rule of FlashAttention allows, in errors of `plain`.
    tolerance : float
        The error that a calibration on correct kernels allows.
    kind : str
        ``output``, ``state`` or ``gradient``.
    """

    result: Any
    exact: Array
    plain: Array | None
    multiple: float = 2.0
    tolerance: float = 0.0
    kind: str = "output"


Rule = Callable[[Comparison], bool]


def allclose(tolerance: float) -> Rule:
    """Return the rule of `numpy.allclose` with one number for both tolerances."""
    return lambda pair: _close(pair.result, pair.exact, tolerance, tolerance)


def torch_defaults(pair: Comparison) -> bool:
    """Judge as `torch.testing.assert_close` does without arguments."""
    result, exact = _tensor(pair.result), pair.exact
    if result.shape != exact.shape or result.dtype != exact.dtype:
        return False
    return _close(result, exact, *TORCH_TOLERANCES[exact.dtype.name])


def fla(pair: Comparison, *, in_ci: bool = False) -> bool:
    """Judge as `fla.utils.testing.assert_close`: by a ratio of root mean squares."""
    result, exact = _wide(_tensor(pair.result)), _wide(pair.exact)
    error, largest = result - exact, abs(result - exact).max()
    if largest <= 1e-6:
        return True
    if np.isnan(result).any():
        return False
    ratio = np.sqrt((error**2).mean()) / (np.sqrt((exact**2).mean()) + 1e-8)
    only_warns = in_ci and (ratio < 0.01 or largest <= 0.3)
    return bool(only_warns or ratio < 0.005)


def kernelbench(pair: Comparison) -> bool:
    """Judge as KernelBench's `get_tolerance_for_precision` has it: 1e-4, half 1e-2."""
    result, exact = _tensor(pair.result), pair.exact
    tolerance = 1e-4 if exact.dtype.name in ("float32", "float64") else 1e-2
    return result.shape == exact.shape and _close(result, exact, tolerance, tolerance)


def kernelbench_hard(pair: Comparison) -> bool:
    """Judge as KernelBench-Hard judges KDA: shape, then 5e-2 for both tolerances."""
    result, exact = _tensor(pair.result), pair.exact
    return result.shape == exact.shape and _close(result, exact, 5e-2, 5e-2)


def flashinfer_bench(pair: Comparison) -> bool:
    """Reject what is not finite, and entries off by 1e-2 absolutely and relatively."""
    result, exact = _tensor(pair.result), _wide(pair.exact)
    if result.shape != exact.shape or result.dtype != pair.exact.dtype:
        return False
    if not np.isfinite(_wide(result)).all():
        return False
    error = abs(_wide(result) - exact)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = error / (abs(exact) + 1e-8)
    return not bool(((error > 1e-2) & (relative > 1e-2)).any())


def gpuemu(pair: Comparison) -> bool:
    """Allow each entry the calibrated error; shape and dtype must be right."""
    result, exact = _tensor(pair.result), pair.exact
    if result.shape != exact.shape or result.dtype != exact.dtype:
        return False
    return bool((abs(_wide(result) - _wide(exact)) <= pair.tolerance).all())


def flash_attention(pair: Comparison) -> bool:
    """Allow twice the error of an ordinary implementation, at the worst entry."""
    if pair.plain is None:
        return True
    result, exact = _wide(_tensor(pair.result)), _wide(pair.exact)
    plain = _wide(pair.plain)
    return bool(abs(result - exact).max() <= pair.multiple * abs(plain - exact).max())


def gpucheck(pair: Comparison) -> bool:
    """Judge as `gpucheck.assert_close` does without arguments."""
    from gpucheck import assert_close  # noqa: PLC0415 -- it may not be installed

    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it found
        assert_close(pair.result, pair.exact)
    return True


def accepts(rule: Rule, pair: Comparison) -> bool:
    """Return True if a test with this rule would pass; one that raises fails."""
    try:
        return rule(pair)
    except Exception:
        return False


def _close(result: Any, exact: Array, rtol: float, atol: float) -> bool:
    return bool(np.allclose(_wide(result), _wide(exact), rtol=rtol, atol=atol))


def _wide(x: Any) -> Array:
    return np.asarray(x).astype(np.float64)


def _tensor(x: Any) -> Array:
    """Return an array as it is; others are refused, as rules for tensors do."""
    if not isinstance(x, np.ndarray):
        msg = f"a tensor is needed, result {type(x).__name__}"
        raise TypeError(msg)
    return x


RULES: dict[str, Rule] = {
    "KernelBench": kernelbench,
    "KernelBench-Hard": kernelbench_hard,
    "FlashInfer-Bench": flashinfer_bench,
    "gpuemu": gpuemu,
    "allclose 1e-3": allclose(1e-3),
    "torch": torch_defaults,
    "FLA": fla,
    "FLA in CI": lambda pair: fla(pair, in_ci=True),
    "FlashAttention": flash_attention,
    "gpucheck": gpucheck,
}

# What can be applied here: gpucheck may not be installed.
AVAILABLE = {n: rule for n, rule in RULES.items() if n != "gpucheck" or find_spec(n)}

"""Calls of `chunk_delta.cu` and `chunk_gla.cu`, and the laws of both.

The expected results are those of the recurrence in float64.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from linkern.core.recurrence import Terms
from linkern.kernels.cuda.forward import recurrent
from tests.kernels.cuda import test_recurrent
from tests.kernels.cuda.emulator.device import LANDINGS, SCHEDULES, Emulator, Way
from tests.kernels.cuda.problems import strided

__all__ = [
    "BFLOAT16",
    "H200",
    "Problem",
    "check",
    "law_a_gate_out_of_its_range_is_refused",
    "law_an_infinite_value_stays_in_its_column",
    "law_any_order",
    "law_any_strides_of_aligned_rows",
    "law_copies_that_finish_at_once",
    "law_float16_stays_in_range",
    "law_narrow_gates_are_widened",
    "law_no_memory_is_zeros",
    "law_the_values",
    "law_what_is_not_finite_stays_behind_its_tile",
    "problem",
    "run",
]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Of the output and of the memory, in the Euclidean norm: about 1.5 times the observed
# error. Outputs are rounded to 8, 11 or 24 bits; operands that were computed have 16
# bits if rows are narrow. A memory of 8 features without a decay, which keeps the
# errors of all tokens, has the most: 1.6e-5.
BOUNDS = {"bfloat16": 2.5e-3, "float16": 3.5e-4, "float32": 2.5e-7}
MEMORY_BOUNDS = {"bfloat16": 2.5e-5, "float16": 2.5e-5, "float32": 2.5e-7}
H200 = 227 << 10


class Problem(NamedTuple):
    """Terms of some heads, an initial memory, and shared memory of a block."""

    terms: Terms
    memory: Any
    shared: int = H200

    @property
    def file(self) -> str:
        """The kernel that computes it."""
        decay = self.terms.log_decay
        by_channel = decay is not None and decay.shape[-1] > 1
        return "chunk_gla" if by_channel else "chunk_delta"


def problem(
    dtype: Any,
    length: int,
    features: int,
    values: int,
    *,
    decay: str | None = "token",
    beta: bool = True,
    erase: bool = True,
    early: bool = False,
    heads: int = 2,
    seed: int = 0,
    shared: int = H200,
) -> Problem:
    rng = np.random.default_rng(seed)
    query, key, value = (
        # Tokens before heads, as in the output of a projection.
        rng.standard_normal((1, length, heads, d)).swapaxes(1, 2)
        for d in (features, features, values)
    )
    query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    channels = features if decay == "channel" else 1
    log_decay = np.log(rng.uniform(0.5, 1, (1, heads, length, channels)))
    # Some tokens erase everything before them: at edges of tiles and of chunks, too.
    log_decay[:, 0, ::37] = -np.inf
    log_decay[:, -1, 15::16] = -np.inf
    if decay == "channel":
        log_decay[..., ::5] *= 30  # powers that no float32 holds over a chunk
        log_decay[:, :, 5::7, 1] = -np.inf
    factors = rng.uniform(0, 2, (1, heads, length, 1)).astype(np.float32)
    terms = Terms(
        *(query, key, value, log_decay.astype(np.float32) if decay else None),
        key if erase else None,
        beta=factors if beta and erase else None,
        early_read=early,
    )
    memory = rng.standard_normal((1, heads, features, values)).astype(np.float32)
    return Problem(terms, memory, shared)


def run(case: Problem, device: Emulator | None = None, **options: Any) -> Any:
    """Return the output and the last memory; the kernel is launched once."""
    device = device or Emulator()
    device.shared = case.shared
    before = len(device.launches)
    results = recurrent(device, case.memory, case.terms, scale=0.5, **options)
    (launch,) = device.launches[before:]
    assert launch.file == case.file
    # ldmatrix has no bank conflicts, nor have loads and stores in 16-bit kernels.
    counts = device.counts
    assert counts["matrix_passes"] == 4 * counts["matrix_loads"]
    if case.terms.query.dtype.itemsize == 2:
        assert counts["bank_passes"] == counts["least_bank_passes"]
    return results


def distance(results: Any, exact: Any) -> float:
    size = np.linalg.norm(exact)
    return float(np.linalg.norm(results.astype(float) - exact) / size) if size else 0.0


def check(case: Problem, results: Any, factor: float = 1.0) -> None:
    terms = case.terms.folded()
    exact, memory = test_recurrent.expected(case.memory, terms)
    assert results[0].dtype == case.terms.query.dtype
    dtype = case.terms.query.dtype.name
    assert distance(results[0], 0.5 * exact) <= factor * BOUNDS[dtype]
    assert distance(results[1], memory) <= factor * MEMORY_BOUNDS[dtype]


def law_the_values(device: Emulator, case: Problem) -> None:
    check(case, run(case, device))


def law_copies_that_finish_at_once(
    law: Callable[[Emulator], None],
) -> Callable[[Emulator], None]:
    """Return a check that a copy overwrites nothing that is still read."""

    def at_once(device: Emulator) -> None:
        way = device.way
        device.way = replace(way, landing="at once")
        law(device)
        device.way = way

    return at_once


def law_no_memory_is_zeros(planner: Any, case: Problem) -> Callable[[Emulator], None]:
    """Return a check of a call of a planner without an initial memory."""

    def law(device: Emulator) -> None:
        terms, memory, _ = case
        output = device.empty(terms.value.shape, np.float32)
        last = device.empty(memory.shape, np.float32)
        device.launch(planner.plan(device, terms, None, output, last, scale=0.5))
        check(Problem(terms, 0 * memory), (output, last))

    return law


def law_any_order(case: Problem) -> None:
    first = run(case)
    for schedule, landing in itertools.product(SCHEDULES, LANDINGS):
        _same(run(case, Emulator(Way(schedule, landing, seed=3, resident=2))), first)


def law_any_strides_of_aligned_rows(case: Problem, how: str) -> None:
    terms = case.terms.mapped(lambda x: strided(x, how))
    _same(run(case._replace(terms=terms)), run(case))


def law_narrow_gates_are_widened(case: Problem) -> None:
    names = [x for x in ("log_decay", "beta") if getattr(case.terms, x) is not None]

    def gates(dtype: Any, terms: Terms) -> Terms:
        return terms._replace(**{x: getattr(terms, x).astype(dtype) for x in names})

    narrow = gates(case.terms.query.dtype, case.terms)
    _same(
        run(case._replace(terms=narrow)),
        run(case._replace(terms=gates(np.float32, narrow))),
    )


def law_float16_stays_in_range(case: Problem) -> None:
    """Keys have length 300: scores of keys and the memory are beyond 65504."""
    terms, factor = case.terms, np.float16(300)
    key, beta = terms.key * factor, terms.beta
    terms = terms._replace(
        query=terms.query / factor,
        key=key,
        erase=None if terms.erase is None else key,
        beta=None if beta is None else beta / np.float32(factor) ** 2,
        value=terms.value * np.float16(100),
    )
    law_the_values(Emulator(), case._replace(terms=terms, memory=case.memory * 3e5))


def law_what_is_not_finite_stays_behind_its_tile(
    case: Problem, name: str, token: int
) -> None:
    first, _ = run(case)
    for number in (np.nan, np.inf):
        changed = getattr(case.terms, name).copy()
        # A gate breaks a rule there, and no one asks.
        changed[..., token, 0] = number
        terms = case.terms._replace(**{name: changed})
        if name == "key" and terms.erase is not None:
            terms = terms._replace(erase=changed)
        output, _ = run(case._replace(terms=terms))
        before = slice(0, token // 16 * 16)
        np.testing.assert_array_equal(
            output[..., before, :].view(np.uint8), first[..., before, :].view(np.uint8)
        )
        if name != "query":
            assert not np.isfinite(output[..., token:, :].astype(float)).all()


def law_an_infinite_value_stays_in_its_column(case: Problem) -> None:
    """The values of token 20 in column 17, of at least 18 columns."""
    first, _ = run(case)
    case.terms.value[..., 20, 17] = np.inf
    output, memory = run(case)
    others = np.arange(case.terms.value.shape[-1]) != 17
    np.testing.assert_array_equal(output[..., others], first[..., others])
    assert np.isfinite(memory[..., others]).all()
    assert not np.isfinite(memory[..., 17]).any()


def law_a_gate_out_of_its_range_is_refused(
    case: Problem, name: str, number: float, rule: str, token: int
) -> None:
    run(case, check_gates=True)
    getattr(case.terms, name)[0, 1, token, -1] = number
    with pytest.raises(ValueError, match=rule):
        run(case, check_gates=True)
    run(case)


def _same(results: Sequence[Any], expected: Sequence[Any]) -> None:
    """Check that results are equal bit by bit."""
    for x, y in zip(results, expected, strict=True):
        np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))

"""The checks: each is one law, a strategy that can reach its violations, and a body.

A check is data in a registry. Its body gets a trial and a problem, calls the target as
often as the law needs, and raises a `Violation` through the trial. Names are public.
"""

import numpy as np
from hypothesis import strategies as st

from linkern.oracle import Bounded
from linkern.testing import strategies as draws
from linkern.testing.generators import real_problem
from linkern.testing.judging import Trial, Violation
from linkern.testing.operators import INPUT_NAMES
from linkern.testing.problem import Problem, Scope
from linkern.testing.registry import (
    CHECKS,
    Check,
    check,
    no_chunk_size,
    no_exact_features,
    no_forms,
    no_heads,
    no_short_lengths,
    not_causal,
    not_homogeneous,
    not_normalised,
)

__all__ = ["CHECKS", "Check"]

# Exponents that neither overflow nor underflow on the way, by dtype.
_EXPONENTS = {
    "float16": 3,
    "bfloat16": 60,
    "tfloat32": 60,
    "float32": 60,
    "float64": 400,
}


def _integers_or_reals(scope: Scope, least: int = 1) -> st.SearchStrategy[Problem]:
    reals = draws.real_problems(scope, least=least)
    if no_exact_features(scope):
        return reals
    return draws.integer_problems(scope, least=least) | reals


def _scaled(scope: Scope) -> st.SearchStrategy[Problem]:
    kinds = ("normal", "uniform", "constant")
    # float16 has so little range that averages of both signs come out subnormal.
    values = ("positive",) if "float16" in scope.stages else draws.VALUE_KINDS
    return draws.real_problems(scope, kinds=kinds, values=values)


def _powers_of_two(scope: Scope) -> tuple[float, ...]:
    # Accumulators wider than the inputs do not widen what inputs can hold.
    reach = min(_EXPONENTS[name] for name in scope.stages)
    return tuple(2.0**n for n in (1, -1, reach // 2, -(reach // 2), reach, -reach))


@check(
    "the output has the shape (B, H, T, V), the dtype and the library of the inputs",
    problems=draws.real_problems,
)
def shape_and_dtype(trial: Trial, problem: Problem) -> None:
    """Reaches: promotion to float64, lazy or foreign arrays, transposed outputs."""
    trial.run(problem)


@check(
    "no token gives an empty output, one token gives its own value",
    problems=draws.short_problems,
    unsupported=no_short_lengths,
)
def short_sequences(trial: Trial, problem: Problem) -> None:
    """Reaches: empty grids, reshapes of nothing, a first row that misses itself."""
    output = trial.run(problem)
    trial.require_within(
        output, problem.solve(), problem, "the output of a short sequence is wrong"
    )


@check(
    "on integers every order of summation is exact, so no key can get lost in rounding",
    problems=draws.integer_problems,
    unsupported=no_exact_features,
)
def value_on_integers(trial: Trial, problem: Problem) -> None:
    """Reaches: lost, doubled or misplaced keys, masks, tails, narrow stages."""
    output = trial.run(problem)
    trial.require_within(
        output, problem.solve(), problem, "the output on integers is wrong"
    )


@check(
    "on reals the output is within the proved bound of any order of summation",
    problems=draws.real_problems,
)
def value_on_reals(trial: Trial, problem: Problem) -> None:
    """Reaches: undeclared precision, approximate division, truncation, instability."""
    output = trial.run(problem)
    trial.require_within(
        output, problem.solve(), problem, "the error exceeds the proved bound"
    )


@check(
    "the weights of a row sum to one: equal values come back unchanged, and no output "
    "leaves the range of the values it averages",
    problems=lambda scope: draws.real_problems(
        scope,
        kinds=(*draws.REAL_KINDS, "tiny"),
        values=("constant", "normal", "uniform"),
    ),
    unsupported=not_normalised,
)
def row_normalisation(trial: Trial, problem: Problem) -> None:
    """Reaches: epsilons, clamps, wrong or stale normalizers, padding that counts."""
    output = trial.run(problem)
    if "constant values" in problem.kind:
        # Whatever the features are, both sums see the same ones, so the error of the
        # feature map cancels and the bound stays sharp where features are tiny; unless
        # a declared epsilon makes the quotient depend on their size.
        shared = problem.scope.contract.eps == 0
        expected = problem.solve(shared_features=shared)
        message = "equal values do not come back unchanged"
        trial.require_within(output, expected, problem, message)
        return
    low, high = _hull(problem)
    rounding = _relative_rounding(problem) * np.maximum(abs(low), abs(high))
    nearest = Bounded(np.clip(output, low, high), rounding)
    message = "the output leaves the range of the values"
    trial.require_within(output, nearest, problem, message)


def _hull(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and greatest value that each row averages, with 0 for an eps."""
    value = problem.value.astype(np.float64)
    if problem.scope.operator.causal:
        low = np.minimum.accumulate(value, axis=-2)
        high = np.maximum.accumulate(value, axis=-2)
    else:
        rows = (*problem.query.shape[:-1], value.shape[-1])
        low = np.broadcast_to(value.min(axis=-2, keepdims=True), rows)
        high = np.broadcast_to(value.max(axis=-2, keepdims=True), rows)
    if problem.scope.contract.eps:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    return low, high


def _relative_rounding(problem: Problem) -> np.ndarray:
    """Return the bound for equal values of one: how far rounding moves an average."""
    ones = problem.with_inputs(value=np.ones_like(problem.value))
    return ones.solve(shared_features=True).bound


@check(
    "no output depends on a later token: changing the future leaves the past bitwise",
    problems=lambda scope: draws.with_cut(draws.real_problems(scope, least=2)),
    unsupported=not_causal,
)
def causality(trial: Trial, problem: Problem) -> None:
    """Reaches: leaking masks, normalizers over the whole sequence, global maxima."""
    cut = min(problem.knobs["cut"], problem.length - 1)
    past = trial.run(problem)[..., :cut, :]
    changed = {}
    for name in INPUT_NAMES:
        x = getattr(problem, name)
        # Other finite numbers: reversed along the channels, doubled and shifted.
        future = 2 * x[..., cut:, ::-1] + x.dtype.type(0.5)
        changed[name] = np.concatenate([x[..., :cut, :], future], axis=-2)
    after = trial.run(problem.with_inputs(**changed))[..., :cut, :]
    message = f"changing tokens from {cut} on changed an earlier output"
    trial.require_same(after, past, problem, message)


@check(
    "all forms agree: parallel, chunkwise and recurrent differ by rounding only",
    problems=_integers_or_reals,
    unsupported=no_forms,
)
def parallel_equals_recurrent(trial: Trial, problem: Problem) -> None:
    """Reaches: defects of one mode of execution."""
    expected = problem.solve()
    recurrent = trial.run(problem, form="recurrent")
    for form in ("parallel", "chunkwise"):
        other = trial.run(problem, form=form)
        message = f"the {form} and recurrent forms disagree"
        trial.require_agreement(other, recurrent, expected, problem, message)


@check(
    "the chunk size changes nothing but rounding",
    problems=lambda scope: draws.with_choice(
        _integers_or_reals(scope), chunk_size=(1, 2, 7, 16, 64, 100)
    ),
    unsupported=no_chunk_size,
)
def chunk_invariance(trial: Trial, problem: Problem) -> None:
    """Reaches: keys lost or doubled at edges, tails shorter than a chunk."""
    size = problem.knobs["chunk_size"]
    form = {"form": "chunkwise"} if "form" in problem.scope.exposes else {}
    whole = trial.run(problem, chunk_size=max(problem.length, 1), **form)
    chunked = trial.run(problem, chunk_size=size, **form)
    message = f"chunks of {size} and one chunk disagree"
    trial.require_agreement(chunked, whole, problem.solve(), problem, message)


@check(
    "the first n outputs are the outputs of the first n tokens",
    problems=lambda scope: draws.with_cut(_integers_or_reals(scope, least=2)),
    unsupported=not_causal,
)
def prefix(trial: Trial, problem: Problem) -> None:
    """Reaches: results that depend on the length, wrong tails, padding that counts."""
    contract = problem.scope.contract
    step = contract.length_multiple_of
    cut = problem.knobs["cut"] // step * step
    if cut < max(contract.min_length, 1):
        return
    whole = trial.run(problem)[..., :cut, :]
    expected = problem.solve()
    rows = Bounded(expected.output[..., :cut, :], expected.bound[..., :cut, :])
    alone = trial.run(problem.prefix(cut))
    message = f"the first {cut} outputs change when later tokens are cut off"
    trial.require_agreement(alone, whole, rows, problem, message)


@check(
    "scaling the values by a power of two, or negating them, does the same to the "
    "output, bitwise",
    problems=_scaled,
)
def scaling_of_values(trial: Trial, problem: Problem) -> None:
    """Reaches: narrow casts of values, absolute thresholds, clipping."""
    plain = trial.run(problem)
    for factor in (-1.0, *_powers_of_two(problem.scope)):
        scaled = problem.with_inputs(value=_times(problem.value, factor))
        message = f"scaling the values by {factor:g} did not scale the output by it"
        trial.require_same(trial.run(scaled), factor * plain, problem, message)


@check(
    "scaling all keys, or all queries, by a power of two leaves a normalised output "
    "unchanged (and scales one that is not normalised), bitwise",
    problems=lambda scope: draws.with_choice(_scaled(scope), inputs=("key", "query")),
    unsupported=not_homogeneous,
)
def scaling_of_keys(trial: Trial, problem: Problem) -> None:
    """Reaches: any epsilon or clamp in the quotient, however small."""
    name, plain = problem.knobs["inputs"], trial.run(problem)
    for factor in _powers_of_two(problem.scope):
        scaled = problem.with_inputs(**{name: _times(getattr(problem, name), factor)})
        expected = plain if problem.scope.contract.normalize else factor * plain
        message = f"scaling the {name} by {factor:g} changed more than it should"
        trial.require_same(trial.run(scaled), expected, problem, message)


def _times(x: np.ndarray, factor: float) -> np.ndarray:
    """Scale by a power of two in float64, and come back to the dtype of `x`."""
    return (x.astype(np.float64) * factor).astype(x.dtype)


@check(
    "the inputs are left as they were, and the output does not share their memory",
    problems=draws.real_problems,
)
def inputs_untouched(trial: Trial, problem: Problem) -> None:
    """Reaches: feature maps applied in place, outputs written into inputs."""
    reply = trial.observe(problem)
    undeclared = set(reply.changed) - set(problem.scope.contract.mutates)
    if undeclared:
        message = f"the call overwrote its input {' and '.join(sorted(undeclared))}"
        raise Violation(message, problem)
    if reply.aliased:
        message = f"the output shares memory with its input {reply.aliased[0]}"
        raise Violation(message, problem)


@check(
    "the same inputs give the same bits, whatever was computed in between",
    problems=draws.real_problems,
)
def determinism(trial: Trial, problem: Problem) -> None:
    """Reaches: races, uninitialised memory, state kept or replayed between calls."""
    first = trial.run(problem)
    again = trial.run(problem)
    message = "two calls with the same inputs gave different outputs"
    trial.require_same(again, first, problem, message)
    # New contents at the same addresses: the buffers of the inputs are reused.
    other = trial.run(problem.with_inputs(value=_times(problem.value, -2.0)))
    if first.any() and np.array_equal(other, first):
        message = "a call with new values returned the outputs of the old ones"
        raise Violation(message, problem)
    message = "a call with other values in between changed the output"
    trial.require_same(trial.run(problem), first, problem, message)


@check(
    "no head depends on another: changing all other heads and batch entries leaves it "
    "bitwise",
    problems=lambda scope: draws.with_choice(
        draws.real_problems(scope, least_heads=2), head=(0, 1, 2)
    ),
    unsupported=no_heads,
)
def heads_independent(trial: Trial, problem: Problem) -> None:
    """Reaches: swapped heads and batches, scratch memory shared between heads."""
    head = problem.knobs["head"] % problem.query.shape[1]
    before = trial.run(problem)[0, head]
    rng = np.random.default_rng(problem.length)
    other = real_problem(problem.scope, problem.shape, "uniform", "uniform", rng)
    changed = {}
    for name in INPUT_NAMES:
        changed[name] = getattr(other, name).copy()
        changed[name][0, head] = getattr(problem, name)[0, head]
    after = trial.run(problem.with_inputs(**changed))[0, head]
    message = f"changing other heads changed the output of head {head}"
    trial.require_same(after, before, problem, message)

"""Laws of order and independence: time, forms, chunks, permutations, heads."""

from dataclasses import replace

import numpy as np

from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.registry import (
    check,
    no_chunk_size,
    no_forms,
    no_heads,
    not_causal,
    not_linear_in_values,
)
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.forms import is_raw
from linkern.testing.problems.gates import altered
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.mixture import any_problem, of_sort, provable
from linkern.testing.problems.problem import Problem

__all__ = [
    "additivity_of_values",
    "causality",
    "chunk_invariance",
    "heads_independent",
    "parallel_equals_recurrent",
    "permutations",
    "prefix",
    "with_other_future",
]


@check(
    "no output depends on a later token: changing the future leaves the past bitwise",
    problems=lambda scope: draws.with_cut(any_problem(scope)),
    # Most values of integers are zeros, which leak unseen.
    judges=of_sort("reals", "random", "averages", "tiles", "equal heads"),
    unless=not_causal,
    share=0.8,
    relation=True,
)
def causality(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: leaking masks, normalizers over the whole sequence, global maxima.

    Fix: Mask the scores by positions in the sequence, in the last, shorter chunk too,
    before they meet the values. Take maxima and normalizers over the past alone.
    """
    cut = min(problem.knobs["cut"], problem.length - 1)
    past, after = target.runs(problem, with_other_future(problem, cut))
    message = f"changing tokens from {cut} on changed an earlier output"
    target.require_same(after[..., :cut, :], past[..., :cut, :], problem, message)


def with_other_future(problem: Problem, cut: int) -> Problem:
    """Return the problem with other numbers in all tokens from `cut` on."""
    changed = {}
    for name in problem.inputs:
        axis = problem.scope.operator.input(name).token_axis
        if axis is not None:
            before, later = (
                problem.of_tokens(name, *span) for span in ((None, cut), (cut, None))
            )
            # Other finite numbers: reversed along the channels, doubled and shifted.
            future = altered(problem, name, later)
            changed[name] = np.concatenate([before, future], axis=axis)
    return problem.with_inputs(**changed)


@check(
    "the first n outputs are the outputs of the first n tokens",
    problems=lambda scope: draws.with_cut(any_problem(scope)),
    judges=provable,
    unless=not_causal,
    share=0.7,
    relation=True,
)
def prefix(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: tails, and whatever else depends on the length of the sequence.

    Fix: Look for what depends on the number of tokens: padding that enters the
    normalizer (the feature of a zero is not zero), statistics of the whole sequence, a
    chunk size that is chosen by the length. Mask features past the end, not inputs.
    """
    contract = problem.scope.contract
    step = contract.length_multiple_of
    cut = min(problem.knobs["cut"], problem.length) // step * step
    if cut < max(contract.shortest, 1):
        return
    whole, alone = target.runs(problem, problem.prefix(cut))
    expected = problem.solve().rows(0, cut)
    message = f"the first {cut} outputs change when later tokens are cut off"
    target.require_agreement(alone, whole[..., :cut, :], expected, problem, message)


@check(
    "all forms agree: parallel, chunkwise and recurrent differ by rounding only",
    problems=any_problem,
    judges=provable,
    unless=no_forms,
    relation=True,
)
def parallel_equals_recurrent(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: defects of one mode of execution.

    Fix: Run `value_on_integers` with `--option form=parallel` and with `--option
    form=recurrent`: it says which of them is wrong. Compare where each form applies the
    scale, the decay of the current token and the mask at the diagonal.
    """
    expected = problem.solve()
    recurrent = target.run(problem, form="recurrent")
    for form in ("parallel", "chunkwise"):
        other = target.run(problem, form=form)
        message = f"the {form} and recurrent forms disagree"
        target.require_agreement(other, recurrent, expected, problem, message)


@check(
    "the chunk size changes nothing but rounding",
    problems=lambda scope: draws.with_choice(
        any_problem(scope), chunk_size=(1, 2, 7, 16, 64, 100)
    ),
    judges=provable,
    unless=no_chunk_size,
    relation=True,
)
def chunk_invariance(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: keys lost or doubled at edges, tails shorter than a chunk.

    Fix: Look at both ends of the loop over chunks: the last key of a full chunk, and a
    last chunk that is not full. In masks, decays and offsets use the number of tokens
    that the chunk holds, not the size that was asked for.
    """
    size = problem.knobs["chunk_size"]
    form = {"form": "chunkwise"} if "form" in problem.scope.exposes else {}
    whole = target.run(problem, chunk_size=max(problem.length, 1), **form)
    chunked = target.run(problem, chunk_size=size, **form)
    message = f"chunks of {size} and one chunk disagree"
    target.require_agreement(chunked, whole, problem.solve(), problem, message)


@check(
    "no head depends on another: changing all other heads and batch entries leaves it "
    "bitwise",
    problems=lambda scope: draws.with_choice(any_problem(scope), head=(0, 1, 2)),
    judges=lambda problem: problem.sizes["b"] * problem.sizes["g"] > 1,
    unless=no_heads,
    share=0.8,
    relation=True,
)
def heads_independent(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: swapped heads and batches, scratch memory shared between heads.

    Fix: Check the index of batch and head, the head of keys that each head of values
    meets, and scratch memory that is not initialised for every head. The forward pass
    sums over neither heads nor batch.
    """
    head = problem.knobs["head"] % problem.sizes["g"]
    rng = np.random.default_rng(problem.length)
    kind = "uniform" if problem.scope.operator.feature_map else "mild"
    other = real_problem(problem.scope, problem.shape, kind, "uniform", rng)
    changed = {}
    for name, x in problem.inputs.items():
        changed[name] = other.inputs[name].copy()
        here = _entries_of(problem, name, head)
        changed[name][here] = x[here]
    before, after = target.runs(problem, problem.with_inputs(**changed))
    message = f"changing other heads changed the output of head {head}"
    target.require_same(after[0, head], before[0, head], problem, message)


def _entries_of(problem: Problem, name: str, head: int) -> tuple[int, ...]:
    """Return the indices of an input that the first output of a head reads."""
    axes = problem.scope.operator.input(name).axes
    key_head = head // problem.shape.groups
    indices = {"b": 0, "h": key_head, "g": head}
    return tuple(indices[axis] for axis in axes if axis in indices)


@check(
    "channels have no order: permuting those of the values permutes the output, "
    "permuting features leaves it; nor have keys, where all are seen",
    problems=lambda scope: draws.with_choice(
        any_problem(scope), permuted=("value channels", "features", "keys")
    ),
    judges=provable,
    share=0.4,
    relation=True,
)
def permutations(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: swapped channels, features of one tile read for another.

    Fix: A channel reads what belongs to another one. Check the offset of each tile of
    channels, the order of a fragment in registers and the swizzle of shared memory.
    """
    rng = np.random.default_rng(problem.length)
    expected = problem.solve()
    what = problem.knobs["permuted"]
    operator = problem.scope.operator
    if what == "keys" and operator.causal:
        what = "features"
    movable = [axis for axis in "kv" if _moves(problem, axis)]
    if what == "features" and "k" not in movable:
        what = "value channels"
    if what == "value channels" and "v" not in movable:
        what = "features"
    if what == "value channels":
        by = rng.permutation(problem.shape.value_dim)
        permuted = _permuted(problem, "v", by)
        expected = expected.channels(by)
    elif what == "features":
        by = rng.permutation(problem.shape.key_dim)
        permuted = _permuted(problem, "k", by)
    else:
        by = rng.permutation(problem.shape.keys)
        moved = {n: getattr(problem, n)[..., by, :] for n in ("key", "value")}
        permuted = problem.with_inputs(**moved)
    plain, other = target.runs(problem, permuted)
    if what == "value channels":
        plain = plain[..., by]
    message = f"permuting the {what} changed more than the order"
    target.require_agreement(other, plain, expected, problem, message)


def _moves(problem: Problem, axis: str) -> bool:
    """Return True if channels can change places: not those of `dt_bias`, or pairs."""
    scope = problem.scope
    inputs = [one for one in scope.operator.inputs if axis in one.axes]
    if axis == "k" and scope.operator.pairs:
        return False
    return bool(inputs) and not any(is_raw(scope.contract, one) for one in inputs)


def _permuted(problem: Problem, axis: str, by: np.ndarray) -> Problem:
    """Return the problem with the channels of that letter in another order."""
    moved = {
        one.name: np.take(problem.inputs[one.name], by, one.axes.index(axis))
        for one in problem.scope.operator.inputs
        if axis in one.axes and one.name in problem.inputs
    }
    return problem.with_inputs(**moved)


@check(
    "the output is additive in the values: f(v + w) = f(v) + f(w)",
    problems=any_problem,
    judges=provable,
    unless=not_linear_in_values,
    share=0.3,
    relation=True,
)
def additivity_of_values(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: clipping, thresholds and other shortcuts that are not linear.

    Fix: Remove clamps, thresholds and scales that depend on the size of the values.
    Between the load of a value and the store of the output, every operation on it is
    linear.
    """
    # Halves of every other token: their sum is exact in any dtype.
    mask = np.arange(problem.value.shape[-2])[:, None] % 2 == 0
    first = np.where(mask, problem.value, problem.value / 2).astype(problem.value.dtype)
    second = np.where(mask, 0, problem.value / 2).astype(problem.value.dtype)
    parts = [
        replace(problem.with_inputs(value=v), exact=problem.exact)
        for v in (first, second)
    ]
    together, *each = target.runs(problem, *parts)
    total = np.add(*each)
    stored = problem.scope.output_dtype
    allowed = [x.solve().once_stored(stored) for x in (problem, *parts)]
    message = "the outputs for two parts of the values do not add up"
    target.require_close(total, together, np.sum(allowed, axis=0), problem, message)

"""Laws of order and independence: time, forms, chunks, permutations, heads."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from linkern.testing import strategies as draws
from linkern.testing.generators import real_problem
from linkern.testing.judging import Trial
from linkern.testing.operators import INPUT_NAMES
from linkern.testing.problem import Problem
from linkern.testing.registry import (
    check,
    no_chunk_size,
    no_forms,
    no_heads,
    not_causal,
)
from linkern.testing.scope import Scope

__all__ = [
    "additivity_of_values",
    "causality",
    "chunk_invariance",
    "heads_independent",
    "integers_or_reals",
    "parallel_equals_recurrent",
    "permutations",
    "prefix",
]


def integers_or_reals(scope: Scope, least: int = 1) -> st.SearchStrategy[Problem]:
    """Both kinds of problems, if the feature map allows for both."""
    reals = draws.real_problems(scope, least=least)
    if draws.no_integers(scope):
        return reals
    return draws.integer_problems(scope, least=least) | reals


@check(
    "no output depends on a later token: changing the future leaves the past bitwise",
    problems=lambda scope: draws.with_cut(draws.real_problems(scope, least=2)),
    unsupported=not_causal,
    share=0.8,
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
    "the first n outputs are the outputs of the first n tokens",
    problems=lambda scope: draws.with_cut(integers_or_reals(scope, least=2)),
    unsupported=not_causal,
    share=0.7,
)
def prefix(trial: Trial, problem: Problem) -> None:
    """Reaches: tails, and whatever else depends on the length of the sequence."""
    contract = problem.scope.contract
    step = contract.length_multiple_of
    cut = min(problem.knobs["cut"], problem.length) // step * step
    if cut < max(contract.min_length, 1):
        return
    whole = trial.run(problem)[..., :cut, :]
    expected = problem.solve().rows(0, cut)
    alone = trial.run(problem.prefix(cut))
    message = f"the first {cut} outputs change when later tokens are cut off"
    trial.require_agreement(alone, whole, expected, problem, message)


@check(
    "all forms agree: parallel, chunkwise and recurrent differ by rounding only",
    problems=integers_or_reals,
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
        integers_or_reals(scope), chunk_size=(1, 2, 7, 16, 64, 100)
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
    "no head depends on another: changing all other heads and batch entries leaves it "
    "bitwise",
    problems=lambda scope: draws.with_choice(
        draws.real_problems(scope, least_heads=2), head=(0, 1, 2)
    ),
    unsupported=no_heads,
    share=0.8,
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


@check(
    "channels have no order: permuting those of the values permutes the output, "
    "permuting features leaves it; nor have keys, where all are seen",
    problems=lambda scope: draws.with_choice(
        integers_or_reals(scope), permuted=("value channels", "features", "keys")
    ),
    share=0.4,
)
def permutations(trial: Trial, problem: Problem) -> None:
    """Reaches: swapped channels, features of one tile read for another."""
    rng = np.random.default_rng(problem.length)
    plain, expected = trial.run(problem), problem.solve()
    what = problem.knobs["permuted"]
    if what == "keys" and problem.scope.operator.causal:
        what = "features"
    if what == "value channels":
        by = rng.permutation(problem.shape.value_dim)
        other = trial.run(problem.with_inputs(value=problem.value[..., by]))
        plain, expected = plain[..., by], expected.channels(by)
    elif what == "features":
        by = rng.permutation(problem.shape.key_dim)
        permuted = {n: getattr(problem, n)[..., by] for n in ("query", "key")}
        other = trial.run(problem.with_inputs(**permuted))
    else:
        by = rng.permutation(problem.shape.keys)
        permuted = {n: getattr(problem, n)[..., by, :] for n in ("key", "value")}
        other = trial.run(problem.with_inputs(**permuted))
    message = f"permuting the {what} changed more than the order"
    trial.require_agreement(other, plain, expected, problem, message)


@check(
    "the output is additive in the values: f(v + w) = f(v) + f(w)",
    problems=integers_or_reals,
    share=0.3,
)
def additivity_of_values(trial: Trial, problem: Problem) -> None:
    """Reaches: clipping, thresholds and other shortcuts that are not linear."""
    # Halves of every other token: their sum is exact in any dtype.
    mask = np.arange(problem.value.shape[-2])[:, None] % 2 == 0
    first = np.where(mask, problem.value, problem.value / 2).astype(problem.value.dtype)
    second = np.where(mask, 0, problem.value / 2).astype(problem.value.dtype)
    parts = [replace(problem, value=v, integers=None) for v in (first, second)]
    together = trial.run(problem)
    total = np.add(*(trial.run(part) for part in parts))
    stored = problem.scope.output_dtype
    allowed = [x.solve().once_stored(stored) for x in (problem, *parts)]
    message = "the outputs for two parts of the values do not add up"
    trial.require_close(total, together, np.sum(allowed, axis=0), problem, message)

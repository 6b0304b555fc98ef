"""Laws of equal bits: a sequence in any batch, packed, and in parts."""

import numpy as np

from linkern.testing.checks.assertions import CheckedTarget, well_formed
from linkern.testing.checks.findings import listed
from linkern.testing.checks.registry import (
    any_of,
    check,
    no_state,
    not_batch_invariant,
    not_causal,
    not_split_invariant,
)
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.mixture import any_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.target.protocol import in_float64

__all__ = ["batch_invariance", "split_invariance"]


def _batched(problem: Problem) -> bool:
    """Return True if independent draws have several rows."""
    calm = problem.sort in ("batches", "random")
    return calm and problem.sizes["b"] > 1 and problem.length > 1


@check(
    "a sequence gives the same bits alone, at any place in a batch of any size, and "
    "packed with others",
    problems=lambda scope: draws.with_cuts(any_problem(scope, "batches"), most=1),
    judges=_batched,
    unless=not_batch_invariant,
    share=0.5,
    over_ranks=False,
    relation=True,
)
def batch_invariance(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: tiles, splits and configurations chosen by the size of the batch.

    Fix: Choose tiles, warps and the number of splits by the dimensions of a head alone,
    never by batch, heads in flight or total tokens, and fix the configuration of an
    autotuned kernel. Sum over keys in one order. If bits may differ, leave out
    `batch_invariant`: `linkern fingerprint` then measures by how much.
    """
    count = problem.sizes["b"]
    order = np.random.default_rng(problem.length).permutation(count).tolist()
    whole = target.run(problem)
    alone = target.run(problem.of_batch(order[:1]))
    message = f"row {order[0]} of a batch of {count} has other bits alone"
    target.require_same(alone, whole[order[:1]], problem, message)
    some = order[: 1 + count // 2][::-1]
    message = f"rows {', '.join(map(str, some))} have other bits in another batch"
    fewer = target.run(problem.of_batch(some))
    target.require_same(fewer, whole[some], problem, message)
    if problem.scope.interface.cu_seqlens is not None and problem.knobs["cuts"]:
        _require_packed(target, problem.of_batch(order[:1]))


def _require_packed(target: CheckedTarget, row: Problem) -> None:
    """Require two sequences to have the bits packed that each has alone."""
    (cut,) = row.knobs["cuts"]
    packed = well_formed(target.observe(row, segments=((0, cut, row.length),)), row)
    for first, last in ((0, cut), (cut, row.length)):
        alone = target.run(row.span(first, last))
        message = f"packed at {cut}, tokens {first} to {last} have other bits"
        target.require_same(packed[..., first:last, :], alone, row, message)


@check(
    "a sequence gives the same bits at once and in parts: a prompt and then the rest, "
    "cut anywhere or at multiples of the declared chunk size",
    problems=lambda scope: draws.with_cuts(any_problem(scope, "batches"), most=2),
    judges=_batched,
    unless=any_of(not_causal, no_state, not_batch_invariant, not_split_invariant),
    share=0.3,
    over_ranks=False,
    relation=True,
)
def split_invariance(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: decoding that sums in another order than prefill, rounded states.

    Fix: Let a span that starts from a state add in the order in which the whole adds:
    one path for prefill and decoding, or chunks on a grid that starts at the first
    token of the sequence, and a state that is kept as wide as the sums. If chunks start
    where a call does, declare `chunk_size`; if bits may differ after a cut, declare
    `batch_invariant=rows`.
    """
    cuts = _on_grid(problem.scope, problem.knobs["cuts"], problem.length)
    if not cuts:
        return
    reply = target.split(problem, cuts)
    assert reply.output is not None
    message = f"cut at {listed(cuts)}, the sequence has other bits"
    in_parts = in_float64(reply.output)
    target.require_same(in_parts, target.run(problem), problem, message)


def _on_grid(scope: Scope, cuts: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Return cuts at multiples of the declared chunk size."""
    step = scope.contract.chunk_size or 1
    return tuple(sorted({n for c in cuts if 0 < (n := -(-c // step) * step) < length}))

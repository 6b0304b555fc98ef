"""Laws of long sequences: few tokens write, so the exact answer is that of the few."""

import time
from dataclasses import replace

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import Violation
from linkern.testing.checks.order import with_other_future
from linkern.testing.checks.registry import any_of, check, no_state, not_causal
from linkern.testing.errors import (
    DoesNotApply,
    Inapplicable,
    covered,
    not_applicable,
    skipped,
)
from linkern.testing.problems import sparse
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.target.protocol import in_float64

__all__ = ["long_prefill", "predicted", "very_long_sequences"]

Real = np.ndarray

# Each is tried if the ones before say that it will not take long.
RUNGS = (1030, 4099, 16387, 65541)
# Seconds that one call may take by that prediction, far below any timeout.
SECONDS = 2.5
# A call of a long prompt, then calls of so many tokens.
PREFILL, STEPS = 4097, (1, 2, 3)


def _no_long(scope: Scope) -> Inapplicable | None:
    """Require tokens that change nothing, and a contract that allows 1,030 of them."""
    reason = sparse.no_neutral(scope)
    if reason is not None:
        return not_applicable(reason)
    if scope.contract.interface == "step":
        reason = "it takes one call for each token"
        return skipped(reason, "take whole sequences")
    most = scope.contract.max_length
    if most is not None and most < RUNGS[0]:
        return skipped(f"the contract says max_length={most}", "raise max_length")
    return None


def _no_long_prefill(scope: Scope) -> Inapplicable | None:
    """Require lengths that may be cut anywhere, up to 4,130 tokens."""
    contract = scope.contract
    if contract.length_multiple_of > 1:
        reason = f"the contract says length_multiple_of={contract.length_multiple_of}"
        return skipped(reason, "take sequences of any length")
    most = contract.max_length
    if most is not None and most < PREFILL:
        return skipped(f"the contract says max_length={most}", "raise max_length")
    return None


def predicted(lengths: list[int], seconds: list[float], length: int) -> float:
    """Return the seconds that a longer call will take, as the last two calls grew."""
    power = 1.0
    if len(lengths) > 1:
        grown = max(seconds[-1], 1e-6) / max(seconds[-2], 1e-6)
        power = float(np.clip(np.log(grown) / np.log(lengths[-1] / lengths[-2]), 1, 2))
    return float(seconds[-1] * (length / lengths[-1]) ** power)


def _rungs(problem: Problem) -> list[int]:
    """Return the lengths to try, as the contract allows them."""
    contract = problem.scope.contract
    step, most = contract.length_multiple_of, contract.max_length or np.inf
    rounded = [-(-n // step) * step for n in RUNGS]
    return [n for n in rounded if n <= min(most, problem.length)]


def _require_few(
    target: CheckedTarget, problem: Problem, output: Real, message: str
) -> None:
    """Require the outputs of some tokens to be those of the tokens that write."""
    tokens = sparse.judged_tokens(problem)
    few = sparse.at_tokens(problem, tokens).solve()
    # Without the batch, which has one entry: errors by position are of some tokens.
    expected = Bounded(few.output[0], few.bound[0])
    try:
        target.require_within(output[0][:, tokens], expected, problem, message)
    except Violation as violation:
        if violation.index is not None:
            head, token, channel = violation.index
            violation.index = (0, head, int(tokens[token]), channel)
        violation.errors = None
        raise


def _stopped(length: int, reason: str) -> DoesNotApply:
    remedy = f"declare `max_length={length}`, or take less for longer sequences"
    return DoesNotApply(skipped(f"judged up to {length} tokens: {reason}", remedy))


@check(
    "among tens of thousands of tokens those that write are read, wherever they are, "
    "and none of the past changes with the future",
    problems=lambda scope: sparse.sparse_problems(scope, lengths=(RUNGS[-1],)),
    unless=_no_long,
    share=0.01,
    least=1,
)
def very_long_sequences(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: indices that wrap, decays that start again, history that is cut off.

    Fix: Compute offsets in 64 bits, also where a program index is multiplied by a
    stride. Carry the state across every chunk: the smallest length that fails is the
    first beyond what an index or a table holds. If the length is limited, refuse longer
    sequences and declare `max_length`.
    """
    seen: list[int] = []
    seconds: list[float] = []
    for length in _rungs(problem):
        # Another process may have taken the processor, and the first call of a shape
        # may be slow: each is measured again, once. Of a shorter call that took too
        # long, too little growth follows, and a table of all pairs fills any memory.
        if len(seen) > 1:
            again, _ = _timed(target, problem.prefix(seen[-2]))
            seconds[-2] = min(seconds[-2], again)
        if seen and predicted(seen, seconds, length) > SECONDS:
            again, _ = _timed(target, problem.prefix(seen[-1]))
            seconds[-1] = min(seconds[-1], again)
        if seen and predicted(seen, seconds, length) > SECONDS:
            raise _stopped(seen[-1], f"{length} would take more than {SECONDS:g} s")
        part = problem.prefix(length)
        try:
            took, output = _timed(target, part)
        except Violation as violation:
            if seen and violation.deviation.startswith("MemoryError"):
                raise _stopped(seen[-1], violation.message) from None
            raise
        seconds.append(took)
        seen.append(length)
        message = f"of {length} tokens, those that write are not what is read"
        _require_few(target, part, output, message)
        if len(seen) == 2 and problem.scope.operator.causal:
            _require_past(target, part, output)


def _timed(target: CheckedTarget, problem: Problem) -> tuple[float, Real]:
    """Return the seconds that a call took, and its output."""
    began = time.perf_counter()
    output = target.run(problem)
    return time.perf_counter() - began, output


def _require_past(target: CheckedTarget, problem: Problem, output: Real) -> None:
    """Require the first half of the outputs to be the same with another future."""
    cut = problem.length // 2
    other = target.run(with_other_future(problem, cut))
    message = f"changing tokens from {cut} on changed an earlier output"
    target.require_same(other[..., :cut, :], output[..., :cut, :], problem, message)


@check(
    "the first steps after a prompt of thousands of tokens read what it left",
    problems=lambda scope: sparse.sparse_problems(
        scope, lengths=(PREFILL + 1, PREFILL + 5, PREFILL + 30), dense=32
    ),
    unless=any_of(not_causal, no_state, _no_long, _no_long_prefill),
    share=0.03,
    least=2,
)
def long_prefill(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: first steps off by one, positions and states that a long prompt lost.

    Fix: Look at what a step takes from the prompt besides its state: a position, a
    length, an offset into a cache. The state of a long prompt is that after its last
    token, not after its last full chunk.
    """
    most = problem.scope.contract.max_length or np.inf
    problem = problem.prefix(int(min(problem.length, most)))
    rng = np.random.default_rng(problem.length)
    cuts = [min(PREFILL, problem.length) - 1 - int(rng.integers(0, 3))]
    while cuts[-1] < problem.length:
        cuts.append(cuts[-1] + int(rng.choice(STEPS)))
    cuts = [n for n in cuts if n < problem.length]
    whole = target.run(problem)
    try:
        _require_few(target, problem, whole, "a plain call of that length is wrong")
    except Violation as violation:
        reason = f"{violation.message}: very_long_sequences says so"
        raise DoesNotApply(covered(reason)) from None
    reply = target.split(problem, cuts)
    assert reply.output is not None
    message = f"the steps after a prompt of {cuts[0]} tokens do not read what it left"
    output = in_float64(reply.output)
    _require_few(target, replace(problem, knobs={"cuts": cuts}), output, message)

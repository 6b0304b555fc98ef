"""The fixed problems that a target of the family is asked, and putting them to it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.checks.registry import (
    no_gradients,
    no_gradients_of_state,
    no_state,
)
from linkern.testing.diagnosis.hypotheses.evidence import Evidence, Probe
from linkern.testing.diagnosis.hypotheses.questions import asked_again
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.gates import no_integers, real_problem
from linkern.testing.problems.generators import integer_problem, with_cotangent
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import fitted
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply

__all__ = [
    "gradients",
    "gradients_of_spans",
    "omitted",
    "outputs",
    "packed",
    "separately",
    "spans",
]

# Calls that tell whether a target is the same function every time.
REPEATS = 4


def outputs(target: Target, scope: Scope) -> Evidence:
    """Ask for whole sequences, under gates of every kind."""
    probes, replies = [], []
    for problem in _whole(scope):
        reply = _call(target, problem)
        probes.append(_probe(problem, reply, problem.solve()))
        replies.append(reply)
    first = probes[0].problem
    repeated = (
        _probe(first, _call(target, first), first.solve()) for _ in [0] * REPEATS
    )
    return Evidence(
        scope,
        tuple(probes),
        tuple(replies),
        repeated=tuple(probe.got for probe in repeated),
    )


def omitted(target: Target, scope: Scope) -> Evidence:
    """Ask for sequences without one of the gates, then without another."""
    return _asked(target, scope, _without_gates(scope))


def spans(target: Target, scope: Scope) -> Evidence:
    """Ask for sequences in spans, each of which starts from the state of the last."""
    applies = no_state(scope) is None and scope.contract.interface == "sequence"
    return _asked(target, scope, _in_spans(scope) if applies else ())


def packed(target: Target, scope: Scope) -> Evidence:
    """Ask for sequences that are packed one after the other, an empty one too."""
    applies = scope.interface.cu_seqlens is not None and "b" in scope.contract.layout
    return _asked(target, scope, _in_one(scope) if applies else ())


def gradients(target: Target, scope: Scope) -> Evidence:
    """Ask for gradients of whole sequences."""
    applies = no_gradients(scope) is None
    return _asked_back(target, scope, _to_differentiate(scope) if applies else ())


def gradients_of_spans(target: Target, scope: Scope) -> Evidence:
    """Ask for gradients that are handed back through the states between spans."""
    applies = no_gradients_of_state(scope) is None
    rng = np.random.default_rng(5)
    cut = (with_cotangent(x, rng) for x in _in_spans(scope)) if applies else ()
    return _asked_back(target, scope, cut)


def separately(problem: Problem, edges: Iterable[int]) -> Bounded:
    """Return the outputs of spans that know nothing of each other."""
    parts = [problem.span(*ends).solve() for ends in pairwise(edges)]
    return Bounded(
        np.concatenate([part.output for part in parts], axis=-2),
        np.concatenate([part.bound for part in parts], axis=-2),
    )


# -- problems


@asked_again
def _whole(scope: Scope) -> Iterator[Problem]:
    rng = np.random.default_rng(0)
    small = _shape(scope, 2, 3, 47, 4, 5)
    for kind in ("mild", "typical", "long", "strong"):
        yield real_problem(scope, small, kind, "normal", rng)
    yield real_problem(scope, _shape(scope, 1, 2, 113, 6, 5), "mild", "normal", rng)
    if no_integers(scope) is None:
        yield integer_problem(scope, small, "dense", "dense", rng)


@asked_again
def _without_gates(scope: Scope) -> Iterator[Problem]:
    rng = np.random.default_rng(1)
    made = real_problem(scope, _shape(scope, 2, 3, 47, 4, 5), "mild", "normal", rng)
    given = dict(zip(scope.operator.names, scope.interface.inputs, strict=False))
    for one in scope.operator.inputs:
        known = given.get(one.name)
        if one.optional and known is not None and known not in scope.interface.needed:
            yield made.without(one.name)


@asked_again
def _in_spans(scope: Scope) -> Iterator[Problem]:
    rng = np.random.default_rng(3)
    for sizes, cuts in (((2, 3, 40, 4, 5), (21,)), ((1, 2, 47, 5, 5), (16, 30))):
        shape, step = _shape(scope, *sizes), scope.contract.length_multiple_of
        inner = {cut // step * step for cut in cuts} - {0}
        fitting = tuple(sorted(cut for cut in inner if cut < shape.length))
        for kind in ("mild", "typical") if fitting else ():
            made = real_problem(scope, shape, kind, "normal", rng)
            yield made.told(cuts=fitting)


@asked_again
def _in_one(scope: Scope) -> Iterator[Problem]:
    rng = np.random.default_rng(4)
    shape = replace(_shape(scope, 1, 2, 40, 4, 5), batch=1)
    for edges in ((0, 7, 33), (0, 5, 5, 21), (0, 16)):
        made = real_problem(scope, shape, "mild", "normal", rng)
        ends = (*(n for n in edges if n < made.length), made.length)
        yield made.told(segments=ends)


@asked_again
def _to_differentiate(scope: Scope) -> Iterator[Problem]:
    rng = np.random.default_rng(6)
    for sizes in ((2, 3, 40, 4, 5), (1, 2, 47, 5, 5)):
        for kind in ("mild", "typical"):
            made = real_problem(scope, _shape(scope, *sizes), kind, "normal", rng)
            yield with_cotangent(made, rng)


def _shape(
    scope: Scope, batch: int, heads: int, length: int, key_dim: int, value_dim: int
) -> Shape:
    """Return the shape nearest to these sizes that the contract allows."""
    contract, operator = scope.contract, scope.operator
    longest = operator.longest
    length = fitted(scope)(length if longest is None else min(length, longest))
    axes = {letter for one in operator.inputs for letter in one.axes}
    key_dim = _nearest(key_dim, contract.key_dims)
    value_dim = key_dim if contract.equal_dims else value_dim
    return Shape(
        batch if "b" in contract.layout else 1,
        heads if "h" in contract.layout else 1,
        length,
        length * (2 if "s" in axes else 1),
        key_dim,
        _nearest(value_dim, contract.value_dims),
        groups=2 if contract.value_groups else 1,
        slots=3 if "m" in axes else 1,
        levels=length.bit_length() + 1 if "l" in axes else 1,
    )


def _nearest(wanted: int, allowed: tuple[int, ...]) -> int:
    return min(allowed, key=lambda n: abs(n - wanted)) if allowed else wanted


# -- calls


def _asked(target: Target, scope: Scope, problems: Iterable[Problem]) -> Evidence:
    probes, replies = [], []
    for problem in problems:
        reply, edges = _call(target, problem), problem.knobs.get("segments")
        exact = separately(problem, edges) if edges else problem.solve()
        probes.append(_probe(problem, reply, exact))
        replies.append(reply)
    return Evidence(scope, tuple(probes), tuple(replies))


def _asked_back(target: Target, scope: Scope, problems: Iterable[Problem]) -> Evidence:
    probes: list[Probe] = []
    replies = []
    for problem in problems:
        reply = _call(target, problem)
        replies.append(reply)
        if reply.gradients is None:
            continue
        exact = problem.solve_gradients()
        for name, got, dtype in zip(
            problem.inputs, reply.gradients, reply.gradient_dtypes, strict=True
        ):
            of = problem.told(of=name, exact=exact[name])
            due = dtype or scope.dtype
            probes.append(Probe(of, got.astype(np.float64), due, exact[name]))
    return Evidence(scope, tuple(probes), tuple(replies))


def _call(target: Target, problem: Problem) -> Reply:
    cuts = problem.knobs.get("cuts", ())
    return target.call(
        Call(
            problem.inputs,
            cuts=cuts,
            wants_state=bool(cuts),
            cotangent=problem.cotangent,
            segments=problem.knobs.get("segments", ()),
        )
    )


def _probe(problem: Problem, reply: Reply, exact: Bounded) -> Probe:
    got = np.zeros(0) if reply.output is None else reply.output.astype(np.float64)
    return Probe(problem, got, reply.dtype or problem.scope.output_dtype, exact)

"""Laws of operators with gates: neutral ones, extreme ones, and what they reduce to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing import strategies as draws
from linkern.testing.findings import Violation
from linkern.testing.gates import with_decays
from linkern.testing.judging import Trial, well_formed
from linkern.testing.operators import OPERATORS
from linkern.testing.problem import Problem
from linkern.testing.registry import (
    check,
    first_of,
    no_gradients,
    no_state,
    not_linear_in_values,
)
from linkern.testing.scope import Scope

__all__ = [
    "decay_extremes",
    "option_neutrality",
    "packed_equals_separate",
    "reduction",
    "state_linearity",
    "time_reversal_adjoint",
]

Reading = Callable[[Problem], NDArray[Any]]
# From no decay at all to one that leaves nothing, in every format.
EXTREMES = (0.0, -1e-4, -1.0, -5.0, -20.0, -88.0, -1e4, -np.inf)


# -- gates that are not given


def _omissible(scope: Scope) -> tuple[str, ...]:
    """Return the inputs that a target can be called without."""
    of_target = dict(zip(scope.operator.names, scope.interface.inputs, strict=False))
    return tuple(
        one.name
        for one in scope.operator.inputs
        if one.optional
        and one.name in of_target
        and of_target[one.name] not in scope.interface.needed
    )


def _no_omissible(scope: Scope) -> str | None:
    if not any(one.optional for one in scope.operator.inputs):
        return "the operator has no gate that could be left out"
    return None if _omissible(scope) else "it has no gate that could be left out"


@check(
    "a gate that is not given is neutral: it forgets nothing, and erases as much as it "
    "would with a rate of one",
    problems=lambda scope: draws.with_choice(
        draws.real_problems(scope), omitted=_omissible(scope)
    ),
    unsupported=_no_omissible,
    share=0.3,
)
def option_neutrality(trial: Trial, problem: Problem) -> None:
    """Reaches: defaults of the wrong value, gates that are required in secret."""
    name = problem.knobs["omitted"]
    left = problem.without(name)
    message = f"without its {name} the output is not that of a neutral one"
    trial.require_within(trial.run(left), left.solve(), left, message)


# -- gates at the ends of what they may be


def _no_decays(scope: Scope) -> str | None:
    if "log_decay" in scope.operator.names:
        return None
    return "the operator takes no decays"


@check(
    "decays may be anything between none and all: the output is finite, and right as "
    "far as a bound can be proved",
    problems=draws.real_problems,
    unsupported=_no_decays,
    share=0.5,
)
def decay_extremes(trial: Trial, problem: Problem) -> None:
    """Reaches: quotients of decays, differences of infinities, overflow in chunks."""
    rng = np.random.default_rng(problem.length)
    shape = problem.inputs["log_decay"].shape
    extreme = with_decays(problem, rng.choice(EXTREMES, shape))
    output = trial.run(extreme)
    if not np.isfinite(output).all():
        message = "decays at the ends of their range make the output not finite"
        raise Violation(message, extreme)
    expected = extreme.solve()
    # What cannot be proved of such decays is not asked: that it is finite, was.
    provable = np.isfinite(expected.bound)
    exact = np.where(provable, expected.output, output)
    bound = np.where(provable, expected.bound, 0.0)
    message = "the output is wrong where decays are at the ends of their range"
    trial.require_within(output, Bounded(exact, bound), extreme, message)


# -- one operator inside another


@dataclass(frozen=True)
class _Reduction:
    """What an operator becomes for some inputs.

    Parameters
    ----------
    to : str
        The other operator.
    restrict : callable
        From a problem of the one to one that the other describes as well.
    kept : callable
        The inputs of the other.
    """

    to: str
    restrict: Callable[[Problem], Problem]
    kept: Callable[[Problem], dict[str, NDArray[Any]]]


def _shared(problem: Problem, to: str) -> dict[str, NDArray[Any]]:
    names = OPERATORS[to].names
    return {name: x for name, x in problem.inputs.items() if name in names}


def _open(problem: Problem) -> Problem:
    return with_decays(problem, np.zeros(problem.inputs["log_decay"].shape))


def _to(
    to: str,
    restrict: Callable[[Problem], Problem],
    renamed: Mapping[str, Reading] | None = None,
) -> _Reduction:
    def kept(problem: Problem) -> dict[str, NDArray[Any]]:
        named = {n: read(problem) for n, read in (renamed or {}).items()}
        return _shared(problem, to) | named

    return _Reduction(to, restrict, kept)


def _equal_channels(problem: Problem) -> Problem:
    decays = problem.inputs["log_decay"]
    equal = np.broadcast_to(decays[..., :1], decays.shape).copy()
    return problem.with_inputs(log_decay=equal)


def _one_channel(problem: Problem) -> NDArray[Any]:
    return problem.inputs["log_decay"][..., 0]


def _filled(**numbers: float) -> Callable[[Problem], Problem]:
    def restrict(problem: Problem) -> Problem:
        inputs = problem.inputs
        return problem.with_inputs(
            **{name: np.full_like(inputs[name], x) for name, x in numbers.items()}
        )

    return restrict


def _tied_gates(problem: Problem) -> Problem:
    """Erase and write at the same rate, the same in every channel."""
    erase, write = (problem.inputs[x] for x in ("erase_gate", "write_gate"))
    rate = erase[..., :1]
    return problem.with_inputs(
        erase_gate=np.broadcast_to(rate, erase.shape).copy(),
        write_gate=np.broadcast_to(rate, write.shape).copy(),
    )


def _values_of_zero(problem: Problem) -> NDArray[Any]:
    return np.zeros_like(problem.value)


def _same_keys(problem: Problem) -> Problem:
    return problem.with_inputs(auxiliary_key=problem.key.copy())


_PER_STATE: dict[str, Reading] = {"log_decay": _one_channel}
_NOTHING: dict[str, Reading] = {"value": _values_of_zero}
_REDUCTIONS: dict[str, tuple[_Reduction, ...]] = {
    "gla": (_to("simple_gla", _equal_channels, _PER_STATE),),
    "gated_delta_rule": (
        _to("delta_rule", _open),
        _to("simple_gla", _filled(beta=0.0), _NOTHING),
    ),
    "delta_rule": (_to("simple_gla", _filled(beta=0.0), _NOTHING),),
    "kda": (
        _to("gated_delta_rule", _equal_channels, _PER_STATE),
        _to("delta_rule", _open),
        _to("gla", _filled(beta=0.0), _NOTHING),
    ),
    "gdn2": (
        _to("kda", _tied_gates, {"beta": lambda x: x.inputs["erase_gate"][..., 0]}),
        _to("gla", _filled(erase_gate=0.0, write_gate=1.0)),
    ),
    "comba": (_to("delta_rule", lambda x: _same_keys(_open(x))),),
    "rwkv7": (_to("gla", _filled(removal_rate=0.0)),),
    "dplr": (_to("iplr", _open), _to("gla", _filled(b=0.0))),
    "iplr": (_to("simple_gla", _filled(b=0.0)),),
    "log_linear_attention": (_to("simple_gla", _filled(level_scales=1.0)),),
}


def _irreducible(scope: Scope) -> str | None:
    if scope.operator.name in _REDUCTIONS:
        return None
    return "no simpler operator is known to be inside it"


@check(
    "with gates that are open, equal or zero, an operator is the simpler one that it "
    "contains",
    problems=lambda scope: draws.with_choice(
        draws.real_problems(scope), reduced=_REDUCTIONS[scope.operator.name]
    ),
    unsupported=_irreducible,
    share=0.4,
)
def reduction(trial: Trial, problem: Problem) -> None:
    """Reaches: shortcuts for special gates, and what general ones get wrong there."""
    reduced: _Reduction = problem.knobs["reduced"]
    named = {**problem.knobs, "reduced": reduced.to}
    inside = replace(reduced.restrict(problem), knobs=named)
    scope = problem.scope
    scale = scope.contract.factor(scope.operator.scale, problem.sizes["k"])
    of_other = replace(
        scope,
        operator=OPERATORS[reduced.to],
        contract=replace(scope.contract, scale=scale),
    )
    other = replace(inside, scope=of_other, inputs=reduced.kept(inside))
    own, simpler = inside.solve(), other.solve()
    # It may round as often as the operator that it claims to be.
    expected = Bounded(simpler.output, np.maximum(own.bound, simpler.bound))
    message = f"where it is {reduced.to}, the output is another"
    trial.require_within(trial.run(inside), expected, inside, message)


# -- states and gradients


@check(
    "what a state carries is linear in the values: two parts of them, each cut, add up "
    "to the whole, cut",
    problems=lambda scope: draws.with_cuts(draws.real_problems(scope, least=2)),
    unsupported=first_of(
        lambda scope: None if scope.operator.family else "additivity_of_values says so",
        no_state,
        not_linear_in_values,
    ),
    share=0.2,
)
def state_linearity(trial: Trial, problem: Problem) -> None:
    """Reaches: states that are clipped, thresholded or normalised on the way."""
    cuts = problem.knobs["cuts"]
    if not cuts:
        return
    mask = np.arange(problem.value.shape[-2])[:, None] % 2 == 0
    halves = [np.where(mask, problem.value, 0), np.where(mask, 0, problem.value)]
    dtype = problem.value.dtype
    parts = [problem.with_inputs(value=half.astype(dtype)) for half in halves]
    found = []
    for one in (problem, *parts):
        reply = trial.split(one, cuts)
        assert reply.output is not None
        found.append(reply.output.astype(np.float64))
    stored = problem.scope.output_dtype
    allowed = np.sum([x.solve().once_stored(stored) for x in (problem, *parts)], axis=0)
    message = "the outputs for two parts of the values, both cut, do not add up"
    trial.require_close(found[1] + found[2], found[0], allowed, problem, message)


# Operators whose weights between two tokens are the same in both directions, and by how
# many tokens their decays move when time runs backwards.
_REVERSIBLE = {"retention": 1, "lightning_attention": 1, "simple_gla": 1, "gla": 1}
_REVERSIBLE["rwkv6"] = 0


def _irreversible(scope: Scope) -> str | None:
    if scope.contract.l2norm is not None:
        return "it normalises queries and keys, but not cotangents"
    if scope.operator.name in _REVERSIBLE:
        return None
    return "the operator is not its own adjoint when time runs backwards"


@check(
    "the gradient of the values is the operator itself, run backwards on the cotangent",
    problems=draws.gradient_problems,
    unsupported=first_of(_irreversible, no_gradients),
    share=0.3,
    in_outputs=False,
)
def time_reversal_adjoint(trial: Trial, problem: Problem) -> None:
    """Reaches: gradients whose decays are off by one token; needs no reference."""
    assert problem.cotangent is not None
    if problem.shape.groups > 1:
        return
    swapped = {"query": "key", "key": "query"}
    backwards: dict[str, NDArray[Any]] = {}
    for name in problem.inputs:
        x = problem.inputs[swapped.get(name, name)]
        axis = problem.scope.operator.input(name).token_axis
        if name == "value":
            x = problem.cotangent.astype(x.dtype)
        if name == "log_decay" and _REVERSIBLE[problem.scope.operator.name]:
            # Between two tokens lie the decays after the first: now it is the last.
            assert axis is not None
            x = np.roll(x, -1, axis)
        backwards[name] = x if axis is None else np.flip(x, axis).copy()
    mirrored = replace(problem.with_inputs(**backwards), cotangent=None)
    of_value = trial.gradients(problem)["value"]
    again = trial.run(mirrored)[..., ::-1, :]
    stored, scope = problem.scope.output_dtype, problem.scope
    allowed = problem.solve_gradients()["value"].once_stored(scope.dtype)
    allowed = allowed + mirrored.solve().once_stored(stored)[..., ::-1, :]
    message = "the gradient of the value is not the operator run backwards"
    trial.require_close(of_value, again, allowed, problem, message)


# -- sequences that are packed


def _not_packed(scope: Scope) -> str | None:
    if not scope.operator.causal:
        return "the operator is not causal"
    if "b" not in scope.contract.layout:
        return f"the layout {scope.contract.layout} has no batch"
    if scope.interface.cu_seqlens is None:
        return "the target takes no packed sequences: no parameter cu_seqlens"
    return None


def _packed(scope: Scope) -> st.SearchStrategy[Problem]:
    cut = draws.with_cuts(draws.real_problems(scope, least=3))
    return draws.with_choice(cut, empty=(False, True), slack=(0, 0, 1))


@check(
    "sequences that are packed one after the other give what each gives alone, empty "
    "ones among them",
    problems=_packed,
    unsupported=_not_packed,
)
def packed_equals_separate(trial: Trial, problem: Problem) -> None:
    """Reaches: chunks that reach into the next sequence, states that are not reset."""
    alone = problem.first_of_batch()
    last = alone.length - problem.knobs["slack"]
    inner = [n for n in problem.knobs["cuts"] if n < last]
    edges = [0, *inner, *inner[:1] * problem.knobs["empty"], last]
    edges.sort()
    reply = trial.observe(alone, segments=tuple(edges))
    output = well_formed(reply, alone)[..., :last, :]
    parts = [alone.span(*ends).solve() for ends in pairwise(edges) if ends[0] < ends[1]]
    expected = Bounded(
        np.concatenate([part.output for part in parts], axis=-2),
        np.concatenate([part.bound for part in parts], axis=-2),
    )
    message = f"sequences packed at {', '.join(map(str, edges))} are not what each is"
    trial.require_within(output, expected, alone, message)

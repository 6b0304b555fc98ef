"""Declarations under which a target is right, tried on what it returned.

A contract that declares more has other exact results: a target that is wrong, and right
by one of them, computes what can be declared. Numbers are those of the measured factor.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from linkern.oracle import FEATURE_MAPS
from linkern.testing.errors import DoesNotApply, TargetDied, TargetRaised, UsageError
from linkern.testing.influence.maps import Real
from linkern.testing.influence.scenes import faint_scene
from linkern.testing.problems.context import Scope
from linkern.testing.problems.gates import with_decays
from linkern.testing.problems.generators import real_problem, with_cotangent
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes, nearest_shape
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import INVERSE_ROOT_KEY_DIM
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply, in_float64

__all__ = ["declarations", "declarations_of_gradients", "first_right"]

Declared = dict[str, Any]
# Results by name: the output, or the gradients of the inputs.
_Answer = tuple[Problem, Mapping[str, Real]]
_Draw = Callable[[Scope, np.random.Generator], Problem]

# Share of the entries with a proved bound, without which nothing is known.
LEAST_PROVED = 0.5

_NUMBER = re.compile(r"(?<![\w.^-])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
_OTHER_LAYOUT = {"bhtd": "bthd", "bthd": "bhtd"}
# Ways in which an epsilon enters, the usual one first.
_EPS_MODES: tuple[Declared, ...] = (
    {},
    {"eps_mode": "normalizer"},
    {"eps_mode": "clamp"},
)
_BETA_FORMS = ("rate", "sigmoid", "twice_sigmoid")
# Epsilons under the square root of a norm.
_NORM_EPSILONS = (1e-6, 1e-5, 1e-12, 0.0)


def declarations(target: Target, scope: Scope, by_what: str) -> tuple[str, ...]:
    """Return ``KEY=VALUE`` of a contract under which wrong outputs are right.

    Parameters
    ----------
    target : Target
        It is called a few times.
    scope : Scope
        What it claims and declares.
    by_what : str
        The measured factor, in words; empty if there is none.

    Returns
    -------
    tuple of str
        Empty if there is none, or if no output is wrong in these calls.
    """
    answers = [*_answers(target, scope)]
    numbers = [float(x) for x in _NUMBER.findall(by_what)]
    candidates = [*_candidates(scope, numbers)]
    if scope.operator.feature_map and scope.contract.normalize:
        scales: list[Declared] = [{}, *_scales(scope, ())]
        candidates += [
            one
            for one in _epsilons(answers, scope)
            if {name: one[name] for name in one if name == "scale"} in scales
        ]
    return _first_right(scope, answers, candidates)


def first_right(
    target: Target, scope: Scope, candidates: Iterable[Declared]
) -> tuple[str, ...]:
    """Return the first of some declarations under which wrong outputs are right."""
    return _first_right(scope, [*_answers(target, scope)], candidates)


def declarations_of_gradients(target: Target, scope: Scope) -> tuple[str, ...]:
    """Return ``KEY=VALUE`` of a contract under which wrong gradients are right."""
    answers = [*_gradients(target, scope)]
    return _first_right(scope, answers, [{"constant_denominator": True}])


def _first_right(
    scope: Scope, answers: Sequence[_Answer], candidates: Iterable[Declared]
) -> tuple[str, ...]:
    shares = [_share_right(scope.contract, *one) for one in answers]
    right = [one for one, x in zip(answers, shares, strict=True) if x >= 0]
    wrong = [one for one, x in zip(answers, shares, strict=True) if x < 0]
    for declared in candidates if wrong else ():
        try:
            contract = replace(scope.contract, **declared)
            contract.require_of(scope.operator)
        except UsageError:
            continue
        if _explains(contract, wrong, right):
            return tuple(f"{key}={_spelt(x)}" for key, x in declared.items())
    return ()


def _drawn(
    sizes: Sizes, features: str, gates: str, scope: Scope, rng: np.random.Generator
) -> Problem:
    """Return a problem of a kind of features, or of gates."""
    kind = features if scope.operator.feature_map else gates
    return real_problem(scope, nearest_shape(scope, sizes), kind, "normal", rng)


def _faint(scope: Scope, rng: np.random.Generator) -> Problem:
    """Return a problem in which some denominators are small."""
    drawn = faint_scene(scope, (1, 2, 30, 4, 3), rng)
    value = rng.normal(size=drawn.value.shape)
    return drawn.with_inputs(value=value.astype(drawn.value.dtype))


# Problems of a few calls.
_CALLS: tuple[_Draw, ...] = (
    partial(_drawn, (1, 2, 5, 3, 4), "normal", "mild"),
    partial(_drawn, (2, 3, 40, 6, 5), "tiny", "strong"),
    partial(_drawn, (1, 2, 100, 4, 3), "uniform", "typical"),
)


def _answers(target: Target, scope: Scope) -> Iterator[_Answer]:
    """Yield problems, and what the target returned."""
    divides = scope.operator.feature_map and scope.normalised
    draws = (*_CALLS, _faint) if divides else _CALLS
    for problem, reply in _replies(target, scope, draws):
        if reply.output is not None:
            yield problem, {"output": in_float64(reply.output)}


def _gradients(target: Target, scope: Scope) -> Iterator[_Answer]:
    """Yield problems, and the gradients that the target returned."""
    for problem, reply in _replies(target, scope, _CALLS, backward=True):
        if reply.gradients:
            pairs = zip(problem.inputs, reply.gradients, strict=True)
            yield problem, {name: in_float64(x) for name, x in pairs}


def _replies(
    target: Target, scope: Scope, draws: Iterable[_Draw], *, backward: bool = False
) -> Iterator[tuple[Problem, Reply]]:
    """Yield problems and replies, of calls that the target answers."""
    for draw in draws:
        rng = np.random.default_rng(0)
        try:
            problem = draw(scope, rng)
            if backward:
                problem = with_cotangent(problem, rng)
            reply = target.call(Call(problem.inputs, cotangent=problem.cotangent))
        except (DoesNotApply, TargetRaised, TargetDied):
            continue
        yield problem, reply


def _explains(
    contract: Contract, wrong: Sequence[_Answer], right: Sequence[_Answer]
) -> bool:
    """Return True if all answers are right, and most of one is proved that was not."""
    most = 0.0
    for answer in wrong:
        share = _share_right(contract, *answer)
        if share < 0:
            return False
        most = max(most, share)
    return most > LEAST_PROVED and all(
        _share_right(contract, *answer) >= 0 for answer in right
    )


def _share_right(
    contract: Contract, problem: Problem, results: Mapping[str, Real]
) -> float:
    """Return the share of results that is proved right; -1 if some of it is wrong."""
    scope = replace(problem.scope, contract=contract)
    inputs, results = problem.inputs, {**results}
    if contract.layout != problem.scope.contract.layout:
        if len({x.shape[:3] for x in inputs.values()}) > 1:
            return -1.0
        # As a target reads them whose axes of heads and tokens are swapped.
        inputs = {name: np.swapaxes(x, 1, 2) for name, x in inputs.items()}
        results = {name: np.swapaxes(x, 1, 2) for name, x in results.items()}
    problem = replace(problem, scope=scope).with_inputs(**inputs)
    natural = "log_decay" in inputs and contract.decay_form == "log"
    if np.isfinite(contract.decay_floor) and natural:
        # What is below the floor, a contract that has it does not ask.
        problem = with_decays(problem, inputs["log_decay"].astype(np.float64))
    of_output = "output" in results
    exact = {"output": problem.solve()} if of_output else problem.solve_gradients()
    stored, shares = scope.output_dtype if of_output else scope.dtype, list[float]()
    for name, x in results.items():
        expected = exact[name]
        if x.shape != expected.output.shape:
            return -1.0
        proved = np.isfinite(expected.bound)
        with np.errstate(all="ignore"):
            right = abs(x - expected.output) <= expected.once_stored(stored)
        if (proved & ~right).any():
            return -1.0
        shares.append(float(proved.mean()))
    return min(shares)


def _epsilons(answers: Sequence[_Answer], scope: Scope) -> Iterator[Declared]:
    """Yield the epsilons, or clamps, that divisors have in common.

    They are taken where outputs differ most, also beside a scale of `K^-0.5`, and spelt
    in some numbers of digits.
    """
    contract = replace(scope.contract, eps=1.0, normalize=True)
    contracts = [replace(contract, eps=0.0, normalize=False)]
    contracts += [replace(contract, **mode) for mode in _EPS_MODES[:2]]
    for problem, results in answers:
        output, exact = results["output"], problem.solve()
        scopes = (replace(scope, contract=x) for x in contracts)
        numerator, *others = (replace(problem, scope=x).solve().output for x in scopes)
        with np.errstate(all="ignore"):
            beyond = np.nan_to_num(abs(output - exact.output) / exact.bound)
            most = beyond >= np.median(beyond)
            divisor, usual = numerator / output, numerator / exact.output
            excess = [(divisor - usual) / (numerator / x - usual) for x in others]
        root: Declared = {"scale": INVERSE_ROOT_KEY_DIM}
        for mode, x in zip(_EPS_MODES, (*excess, divisor), strict=True):
            size = np.median(x[most])
            scaled = size * problem.shape.key_dim**-0.5
            for eps, scale in ((size, {}), (scaled, root)):
                for digits in (1, 2, 3, 4) if np.isfinite(eps) and eps > 0 else ():
                    yield {"eps": float(f"{eps:.{digits}g}")} | mode | scale


def _candidates(scope: Scope, numbers: Sequence[float]) -> Iterator[Declared]:
    """Yield declarations, the strictest and simplest first."""
    contract = scope.contract
    scales: Sequence[Declared] = [{}, *_scales(scope, numbers)]
    if contract.eps:
        yield {"eps": 0.0}
    if scope.operator.feature_map:
        other: Declared = {"normalize": not contract.normalize}
        other |= {"eps": 0.0} if contract.eps else {}
        yield from (other | scale for scale in scales)
        yield from _maps(contract)
    yield from scales[1:]
    yield {"decay_log_base": "e" if contract.decay_log_base == "2" else "2"}
    if (contract.decay_log_base, contract.decay_form) == ("e", "log"):
        yield {"decay_form": "logsigmoid"}
        yield from ({"decay_floor": x} for x in numbers if x < 0)
    yield from ({"l2norm": eps} for eps in _NORM_EPSILONS)
    yield from ({"beta_form": x} for x in _BETA_FORMS if x != contract.beta_form)
    operator = scope.operator
    swappable = all(x.token_axis == 2 for x in operator.inputs)
    if contract.layout in _OTHER_LAYOUT and swappable and not operator.micro_steps:
        yield {"layout": _OTHER_LAYOUT[contract.layout]}


def _scales(scope: Scope, numbers: Sequence[float]) -> Iterator[Declared]:
    """Yield scales that a target may have which cannot be told one."""
    if scope.interface.scale in scope.exposes:
        return
    default = 1.0 if scope.operator.feature_map else scope.operator.scale
    scale = default if scope.contract.scale is None else scope.contract.scale
    others = [*numbers]
    if not isinstance(scale, str):
        others = [scale * x for n in numbers if n for x in (n, 1 / n)] + others
    for other in dict.fromkeys((1.0, INVERSE_ROOT_KEY_DIM, *others)):
        if other != scale:
            yield {"scale": other}


def _maps(contract: Contract) -> Iterator[Declared]:
    """Yield other feature maps: of both, of keys, of queries."""
    query = contract.feature_map
    key = contract.key_feature_map or query
    for name in FEATURE_MAPS:
        yield {"feature_map": name}
        yield {"key_feature_map": name}
        yield {"feature_map": name, "key_feature_map": key}


def _spelt(x: object) -> str:
    """Return a value as one declares it."""
    if isinstance(x, bool):
        return str(x).lower()
    if not isinstance(x, float):
        return str(x)
    mantissa, e, exponent = f"{x:.7g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa

"""Declarations under which a target is right, tried on what it returned.

A contract that declares more has other exact results: a target that is wrong, and right
by one of them, computes what can be declared. Numbers are those of the measured factor.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linkern.oracle import FEATURE_MAPS
from linkern.testing.errors import DoesNotApply, TargetDied, TargetRaised, UsageError
from linkern.testing.influence.maps import Real
from linkern.testing.problems.context import Scope
from linkern.testing.problems.gates import with_decays
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes, nearest_shape
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import INVERSE_ROOT_KEY_DIM
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call

__all__ = ["declarations", "first_right"]

Declared = dict[str, Any]

# Share of the entries with a proved bound, without which nothing is known.
LEAST_PROVED = 0.5

# Calls: their sizes, and their kinds with features and with gates.
_CALLS: tuple[tuple[Sizes, str, str], ...] = (
    ((1, 2, 5, 3, 4), "normal", "mild"),
    ((2, 3, 40, 6, 5), "tiny", "strong"),
    ((1, 2, 100, 4, 3), "uniform", "typical"),
)
_NUMBER = re.compile(r"(?<![\w.^-])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
_OTHER_LAYOUT = {"bhtd": "bthd", "bthd": "bhtd"}
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
    answers = tuple(_answers(target, scope))
    numbers = [float(x) for x in _NUMBER.findall(by_what)]
    if scope.operator.feature_map and scope.contract.normalize:
        numbers += _divisors(answers, scope)
    return _first_right(scope, answers, _candidates(scope, numbers))


def first_right(
    target: Target, scope: Scope, candidates: Iterable[Declared]
) -> tuple[str, ...]:
    """Return the first of some declarations under which wrong outputs are right."""
    return _first_right(scope, tuple(_answers(target, scope)), candidates)


def _first_right(
    scope: Scope, answers: Sequence["_Answer"], candidates: Iterable[Declared]
) -> tuple[str, ...]:
    wrong = [_share_right(answer, scope) < 0 for answer in answers]
    for declared in candidates if any(wrong) else ():
        try:
            contract = replace(scope.contract, **declared)
            contract.require_of(scope.operator)
        except UsageError:
            continue
        if _explains(replace(scope, contract=contract), answers, wrong):
            return tuple(f"{key}={_spelt(x)}" for key, x in declared.items())
    return ()


@dataclass(frozen=True, eq=False)
class _Answer:
    """A problem, and what the target returned."""

    problem: Problem
    output: Real


def _answers(target: Target, scope: Scope) -> Iterator[_Answer]:
    rng = np.random.default_rng(0)
    for sizes, features, gates in _CALLS:
        kind = features if scope.operator.feature_map else gates
        try:
            shape = nearest_shape(scope, sizes)
            problem = real_problem(scope, shape, kind, "normal", rng)
            output = target.call(Call(problem.inputs)).output
        except (DoesNotApply, TargetRaised, TargetDied):
            continue
        if output is not None:
            yield _Answer(problem, output.astype(np.float64))


def _explains(scope: Scope, answers: Sequence[_Answer], wrong: Sequence[bool]) -> bool:
    """Return True if all answers are right, and most of one is proved that was not."""
    proved = 0.0
    for answer, before in zip(answers, wrong, strict=True):
        share = _share_right(answer, scope)
        if share < 0:
            return False
        proved = max(proved, share * before)
    return proved > LEAST_PROVED


def _share_right(answer: _Answer, scope: Scope) -> float:
    """Return the share of an output that is proved right; -1 if some of it is wrong."""
    problem = replace(answer.problem, scope=scope)
    swapped = scope.contract.layout != answer.problem.scope.contract.layout
    if swapped:
        if len({x.shape[:3] for x in problem.inputs.values()}) > 1:
            return -1.0
        problem = problem.with_inputs(**_swapped(problem))
    floor, decays = scope.contract.decay_floor, problem.inputs.get("log_decay")
    if np.isfinite(floor) and decays is not None:
        # What is below the floor, a contract that has it does not ask.
        problem = with_decays(problem, decays.astype(np.float64))
    with np.errstate(all="ignore"):
        exact = problem.solve()
        output = np.swapaxes(answer.output, 1, 2) if swapped else answer.output
        if output.shape != exact.output.shape:
            return -1.0
        proved = np.isfinite(exact.bound)
        right = abs(output - exact.output) <= exact.bound
    return -1.0 if (proved & ~right).any() else float(proved.mean())


def _swapped(problem: Problem) -> dict[str, Any]:
    """Return the inputs as a target reads them whose heads and tokens are swapped."""
    return {name: np.swapaxes(x, 1, 2) for name, x in problem.inputs.items()}


def _divisors(answers: Sequence[_Answer], scope: Scope) -> list[float]:
    """Return what divisors have in common: what they are, or exceed the exact ones by.

    It is taken where outputs differ most, also beside `K^-0.5` and beside the sum of a
    query's features, and spelt in some numbers of digits.
    """
    contract = replace(scope.contract, normalize=False, eps=0.0)
    undivided = replace(scope, contract=contract)
    numbers: dict[float, None] = {}
    for answer in answers:
        exact = answer.problem.solve()
        numerator = replace(answer.problem, scope=undivided).solve().output
        query = answer.problem.query.astype(np.float64)
        features = scope.query_map.value(query).sum(axis=-1, keepdims=True)
        with np.errstate(all="ignore"):
            beyond = np.nan_to_num(abs(answer.output - exact.output) / exact.bound)
            most = beyond >= np.median(beyond)
            divisor = numerator / answer.output
            excess = divisor - numerator / exact.output
            root = query.shape[-1] ** 0.5
            for one in (excess, divisor, excess / features, excess / root, divisor / root):
                usual = np.median(one[most])
                for digits in (1, 2, 3, 4) if np.isfinite(usual) else ():
                    numbers[float(f"{usual:.{digits}g}")] = None
    return [x for x in numbers if x > 0]


def _candidates(scope: Scope, numbers: Sequence[float]) -> Iterator[Declared]:
    """Yield declarations, the strictest and simplest first."""
    contract = scope.contract
    scales: Sequence[Declared] = [{}, *_scales(scope, numbers)]
    if contract.eps:
        yield {"eps": 0.0}
    if scope.operator.feature_map:
        for scale in scales:
            for eps in (abs(x) for x in numbers):
                yield {"eps": eps} | scale
                yield {"eps": eps, "eps_mode": "normalizer"} | scale
                yield {"eps": eps, "eps_mode": "clamp"} | scale
        for scale in scales:
            if contract.normalize:
                yield (
                    {"normalize": False, "eps": 0.0} | scale
                    if contract.eps
                    else {"normalize": False} | scale
                )
            else:
                yield {"normalize": True} | scale
        yield from _maps(contract)
    yield from scales[1:]
    yield {"decay_log_base": "e" if contract.decay_log_base == "2" else "2"}
    if (contract.decay_log_base, contract.decay_form) == ("e", "log"):
        yield from ({"decay_floor": x} for x in numbers if x < 0)
    yield from ({"l2norm": eps} for eps in _NORM_EPSILONS)
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
    others = (
        {}
        if isinstance(scale, str)
        else {scale * x: None for n in numbers if n for x in (n, 1 / n)}
    )
    for other in (1.0, INVERSE_ROOT_KEY_DIM, *others, *numbers):
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

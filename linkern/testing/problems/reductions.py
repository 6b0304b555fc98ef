"""Which operator is inside which: with gates that are open, equal or zero."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.problems.gates import with_decays
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import OPERATORS

__all__ = ["REDUCTIONS", "Reduction"]

Reading = Callable[[Problem], NDArray[Any]]


@dataclass(frozen=True)
class Reduction:
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
) -> Reduction:
    def kept(problem: Problem) -> dict[str, NDArray[Any]]:
        named = {n: read(problem) for n, read in (renamed or {}).items()}
        return _shared(problem, to) | named

    return Reduction(to, restrict, kept)


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
REDUCTIONS: dict[str, tuple[Reduction, ...]] = {
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

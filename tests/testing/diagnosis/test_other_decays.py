"""Fixed decays that a target has instead are measured, and nothing else is named so."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from linkern.testing.diagnosis.alternatives.other_decays import other_decays
from linkern.testing.diagnosis.localising import localise
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.influence.readings import output_maps
from linkern.testing.influence.scenes import product_scene
from linkern.testing.problems.context import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.protocol import Reply

OPS = ["retention", "lightning_attention"]


def maps_of(op: str, decays: Callable[[Any], Any], seed: int = 1) -> list[InfluenceMap]:
    """Return the weights of a target with other decays, of 2 heads and of 4."""
    scope, maps = Scope(OPERATORS[op], Contract(), "float32"), []
    for heads in (2, 4):
        problem = product_scene(
            scope, (1, heads, 40, 6, 40), np.random.default_rng(seed)
        )
        call = problem.oracle_call
        right = scope.operator.defaults["log_decay"](call.meant)
        meant = {**call.meant, "log_decay": decays(right)}
        output = scope.operator.evaluate(meant, call.scale).output.astype(np.float32)
        reply = Reply(output, "float32", "numpy", output.shape, output.shape)
        maps += output_maps(problem, reply)
    return maps


def of_more_heads(right: Any) -> Any:
    return np.log1p(-np.geomspace(2.0**-5, 2.0**-9, len(right)))


@pytest.mark.parametrize("op", OPS)
def test_other_decays_are_measured(op: str) -> None:
    first, second = maps_of(op, of_more_heads), maps_of(op, of_more_heads, seed=2)
    finding = localise(first, lambda: second)
    assert finding.factor is not None
    right = OPERATORS[op].defaults["log_decay"](first[-1].problem.oracle_call.meant)
    pairs = zip(np.exp(of_more_heads(right)), np.exp(right), strict=True)
    said = [
        f"{other:.5g} in place of {own:.5g} in head {head} of 4"
        for head, (other, own) in enumerate(pairs)
        if abs(other - own) > 1e-9
    ]
    assert finding.factor.text.startswith(f"decays {', '.join(said[:3])}")


@pytest.mark.parametrize("op", OPS)
def test_a_decay_that_is_none_of_a_head_is_not_measured(op: str) -> None:
    maps = maps_of(op, of_more_heads)
    assert other_decays([one for one in maps if one.wrong.any()])
    for one in maps:  # of the distance and not of its square
        one.measured[:] = one.exact * np.exp(
            1e-3 * (one.coordinates["row"] - one.coordinates["source"]) ** 2
        )
    assert other_decays([one for one in maps if one.wrong.any()]) is None

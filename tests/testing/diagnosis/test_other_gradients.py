"""Gradients in place of others are named, and nothing else is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linkern.testing.diagnosis.localising import localise
from linkern.testing.diagnosis.other_gradients import other_gradient
from linkern.testing.influence.gradient_maps import gradient_maps
from linkern.testing.influence.gradient_scenes import every_row, one_pair
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.problems.context import Scope
from linkern.testing.problems.expected import gradient_without
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.protocol import Reply

ERASE, WRITE = "its part through what an erase reads", "its part through the key that"


def maps_of(op: str, name: str, change: Any, **declared: Any) -> list[InfluenceMap]:
    """Return maps of one gradient after a change, as if a target had made them."""
    scope, maps = Scope(OPERATORS[op], Contract(**declared), "float64"), []
    scene = every_row if name in scope.linear else one_pair
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        problem = scene(scope, (1, 8, 40 + seed, 5, 5), rng)
        exact = {n: x.output for n, x in problem.solve_gradients().items()}
        gradients = tuple((exact | {name: change(problem)}).values())
        dtypes = ("float64",) * len(gradients)
        reply = Reply(None, "", "numpy", (), (), gradients=gradients)
        made = gradient_maps(problem, replace(reply, gradient_dtypes=dtypes))
        maps += [one for one in made if one.tensor == f"gradient of {name}"]
    return maps


def without(name: str, part: str) -> Any:
    return lambda problem: gradient_without(
        problem._oracle_call, name, problem.cotangent, part
    )


@pytest.mark.parametrize(
    ("op", "name", "part", "words"),
    [
        ("delta_rule", "key", "erase", ERASE),
        ("delta_rule", "key", "key", WRITE),
        ("gated_delta_rule", "key", "erase", ERASE),
        ("kda", "key", "key", WRITE),
        ("rwkv7", "removal_key", "erase", ERASE),
        ("rwkv7", "removal_key", "key", WRITE),
    ],
)
def test_a_part_that_is_lost_is_named(
    op: str, name: str, part: str, words: str
) -> None:
    maps = maps_of(op, name, without(name, part))
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert factor.text.startswith(words)


@pytest.mark.parametrize(
    ("op", "name", "change", "words"),
    [
        ("gla", "query", lambda x: x["key"], "the gradient of key"),
        (
            "simple_gla",
            "log_decay",
            lambda x: 0 * x["log_decay"] + x["log_decay"].sum(1, keepdims=True),
            "its sum over heads",
        ),
        (
            "linear_attention",
            "key",
            lambda x: 0 * x["key"] + x["key"].mean(1, keepdims=True),
            "its mean over heads",
        ),
    ],
)
def test_a_gradient_in_place_of_another_is_named(
    op: str, name: str, change: Any, words: str
) -> None:
    def changed(problem: Any) -> Any:
        exact = problem.solve_gradients()
        return change({n: x.output for n, x in exact.items()})

    factor = other_gradient([x for x in maps_of(op, name, changed) if x.wrong.any()])
    assert factor is not None
    assert factor.text == words


def test_parts_are_those_of_keys_that_the_target_normalises() -> None:
    maps = maps_of("delta_rule", "key", without("key", "erase"), l2norm=1e-6)
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert factor.text == ERASE


def test_nothing_is_said_of_gradients_that_are_wrong_in_another_way() -> None:
    def changed(problem: Any) -> Any:
        half = gradient_without(problem._oracle_call, "key", problem.cotangent, "erase")
        return (problem.solve_gradients()["key"].output + half) / 2

    maps = maps_of("delta_rule", "key", changed)
    assert other_gradient([one for one in maps if one.wrong.any()]) is None


def test_a_lost_part_is_said_everywhere() -> None:
    first, second = maps_of("delta_rule", "key", without("key", "erase"))
    finding = localise([first], lambda: [second])
    assert finding.words == ("everywhere", ERASE)

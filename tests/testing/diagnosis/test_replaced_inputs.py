"""Inputs that a target replaces are named, and nothing else is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linkern.testing.diagnosis.alternatives import replaced_inputs
from linkern.testing.diagnosis.alternatives.replaced_inputs import replaced
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.influence.readings import output_maps, state_maps
from linkern.testing.influence.scenes import dense_scene
from linkern.testing.problems.context import Scope
from linkern.testing.problems.expected import OracleCall
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.protocol import Reply

Inputs = dict[str, Any]


def reply_of(output: Any) -> Reply:
    return Reply(output, "float32", "numpy", output.shape, output.shape)


def maps_of(
    op: str,
    change: Callable[[Problem], Inputs],
    early_erase: bool | None = None,
    key_dim: int = 4,
    sizes: tuple[int, int] = (1, 2),
) -> list[InfluenceMap]:
    """Return maps of the oracle with changed inputs, as if a target had made them."""
    scope, maps = Scope(OPERATORS[op], Contract(), "float32"), []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        problem = dense_scene(scope, (*sizes, 40 + seed, key_dim, 44), rng)
        call = problem.oracle_call
        operator = scope.operator
        if early_erase is not None:
            operator = replace(operator, early_erase=early_erase)
        meant = {**call.meant, **change(problem)}
        output = operator.evaluate(meant, call.scale).output.astype(np.float32)
        maps += output_maps(problem, reply_of(output))
    return maps


def text_of(maps: list[InfluenceMap]) -> str:
    result = replaced(maps)
    return result.text if result else ""


def wide(problem: Problem, name: str) -> Any:
    return problem.inputs[name].astype(np.float64)


def with_limited_sums(problem: Problem, chunk: int, axis: int, limit: float) -> Inputs:
    """Return gates whose sums since the start of a chunk are limited."""
    g = np.moveaxis(wide(problem, "log_decay"), axis, 0)
    for first in range(0, len(g), chunk):
        sums = np.maximum(np.cumsum(g[first : first + chunk], axis=0), limit)
        g[first : first + chunk] = np.diff(sums, axis=0, prepend=0)
    return {"log_decay": np.moveaxis(g, 0, axis)}


@pytest.mark.parametrize(
    ("op", "change", "text"),
    [
        (
            "gla",
            lambda p: with_limited_sums(p, 16, -2, -0.25),
            "the sum of log_decay over chunks of 16 clamped at -0.25 from below",
        ),
        (
            "gated_delta_rule",
            lambda p: with_limited_sums(p, 64, -1, -0.75),
            "the sum of log_decay over all tokens clamped at -0.75 from below",
        ),
        (
            "delta_rule",
            lambda p: {"beta": wide(p, "beta")[:, [0, 0]]},
            "beta of head 0 in place of beta",
        ),
        ("gated_delta_rule", lambda _: {"beta": None}, "beta left out"),
        (
            "gated_delta_product",
            lambda p: {"beta": np.repeat(wide(p, "beta")[..., ::2], 2, axis=-1)},
            "beta of the first micro-step in place of beta",
        ),
        (
            "kda",
            lambda p: {"log_decay": np.maximum(wide(p, "log_decay"), -0.04)},
            "log_decay clamped at -0.04 from below",
        ),
        (
            "gla",
            lambda p: {"log_decay": np.maximum(wide(p, "log_decay"), -(2**-4.5))},
            "log_decay clamped at -0.04419 from below",
        ),
        (
            "rwkv7",
            lambda p: {
                "removal_key": wide(p, "removal_rate") * wide(p, "removal_key"),
                "removal_rate": 1 / wide(p, "removal_rate"),
            },
            "removal_rate in what is read in place of what is removed",
        ),
        (
            "dplr",
            lambda p: {"a": wide(p, "b"), "b": wide(p, "a")},
            "a and b exchanged",
        ),
        (
            "delta_rule",
            lambda p: {
                "beta": np.ones(p.inputs["beta"].shape),
                "value": wide(p, "value") * wide(p, "beta")[..., None],
            },
            "1 in place of beta in the erase",
        ),
    ],
)
def test_replaced_inputs_are_named(
    op: str, change: Callable[[Problem], Inputs], text: str
) -> None:
    assert text_of(maps_of(op, change)) == text


@pytest.mark.parametrize(
    ("op", "name", "value", "which", "chunk"),
    [
        ("mamba3", "trapezoid", 1, "first", 16),
        ("mamba3", "trapezoid", 1, "first", 32),
        ("gated_delta_rule", "log_decay", 0, "last", 16),
        ("delta_rule", "beta", 0, "first", 32),
    ],
)
def test_values_at_tokens_of_chunks_are_named(
    op: str, name: str, value: int, which: str, chunk: int
) -> None:
    def change(problem: Problem) -> Inputs:
        x = wide(problem, name)
        first = chunk if which == "first" else chunk - 1
        x[..., first::chunk] = value
        return {name: x}

    text = f"{value} in place of {name} at the {which} token of chunks of {chunk}"
    assert text_of(maps_of(op, change)) == text


@pytest.mark.parametrize("names", [("center",), ("center", "log_range")])
def test_numbers_of_heads_in_the_order_of_the_batch_are_named(
    names: tuple[str, ...],
) -> None:
    def change(problem: Problem) -> Inputs:
        batch = problem.shape.batch
        spread = {name: np.repeat(wide(problem, name), batch) for name in names}
        return {name: x.reshape(batch, -1) for name, x in spread.items()}

    said = text_of(maps_of("preconditioned_gated_delta_rule", change, sizes=(2, 3)))
    assert said == f"{' and '.join(names)} of head (b H + h) // B in place of head h"


@pytest.mark.parametrize(
    ("words", "heads"),
    [
        (
            "head (b H + h) // B",
            lambda x, batch: np.repeat(x, batch).reshape(batch, -1),
        ),
        ("the next head", lambda x, _: x[[1, 2, 2]]),
    ],
)
def test_decays_by_default_of_other_heads_are_named(
    words: str, heads: Callable[[Any, int], Any]
) -> None:
    def change(problem: Problem) -> Inputs:
        call = problem.oracle_call
        usual = call.operator.defaults["log_decay"](call.meant)
        return {"log_decay": heads(usual, problem.shape.batch)}

    said = text_of(maps_of("retention", change, sizes=(2, 3)))
    place = "head h" if "(b H" in words else "log_decay"
    assert said == f"log_decay of {words} in place of {place}"


def test_scores_of_padded_slots_are_named() -> None:
    def change(problem: Problem) -> Inputs:
        slots = (wide(problem, name) for name in ("slots", "log_decay"))
        wider = (np.pad(x, (*[(0, 0)] * 3, (0, 1))) for x in slots)
        return dict(zip(("slots", "log_decay"), wider, strict=True))

    words = "slots padded with zeros, whose scores count, to a power of two"
    assert text_of(maps_of("gsa", change)) == words


@pytest.mark.parametrize(
    ("op", "names", "axis", "size", "padded"),
    [
        ("linear_attention", ("query", "key"), -1, 64, "channels to a power of two"),
        ("linear_attention", ("query", "key"), -1, 48, "channels to a multiple of 16"),
        (
            "linear_attention_noncausal",
            ("key", "value"),
            -2,
            48,
            "keys to a multiple of 16",
        ),
    ],
)
def test_features_of_padding_are_named(
    op: str, names: tuple[str, ...], axis: int, size: int, padded: str
) -> None:
    def change(problem: Problem) -> Inputs:
        inputs = {}
        for name in names:
            x = wide(problem, name)
            width = np.zeros((x.ndim, 2), int)
            width[axis, 1] = size - x.shape[axis]
            inputs[name] = np.pad(x, width)
        return inputs

    noun, to = padded.split(" ", 1)
    words = f"{noun} padded with zeros, whose features count, {to}"
    assert text_of(maps_of(op, change, key_dim=36)).startswith(words)


def states_of(op: str, change: Callable[[OracleCall], OracleCall]) -> Any:
    """Return maps of the final memory of changed calls."""
    scope, maps = Scope(OPERATORS[op], Contract(), "float32"), []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        problem = dense_scene(scope, (1, 2, 40 + seed, 4, 44), rng)
        call = change(problem.oracle_call)
        result = call.operator.evaluate(call.meant, call.scale)
        states = tuple(x.astype(np.float32) for x in result.state)
        maps += [*state_maps(problem, replace(reply_of(states[0]), states=states))][:1]
    return maps


@pytest.mark.parametrize("op", ["simple_gla", "gla", "gated_delta_rule", "rwkv6"])
def test_states_of_fewer_tokens_are_named(op: str) -> None:
    def without_last(call: OracleCall) -> OracleCall:
        kept = {}
        for name, x in call.inputs.items():
            axis = call.operator.input(name).token_axis
            kept[name] = x if axis is None else np.delete(x, -1, axis)
        return replace(call, inputs=kept)

    assert text_of(states_of(op, without_last)) == "the last token left out"


def test_states_in_which_padding_counts_are_named() -> None:
    """Decays that are no inputs go on over the zeros behind the last token."""

    def padded(call: OracleCall) -> OracleCall:
        longer = {}
        for name, x in call.inputs.items():
            axis = call.operator.input(name).token_axis
            width = [(0, -x.shape[n] % 32 * (n == axis)) for n in range(x.ndim)]
            longer[name] = np.pad(x, width)
        return replace(call, inputs=longer)

    said = text_of(states_of("retention", padded))
    assert said == "zeros counted as tokens, up to a multiple of 32"


def test_replaced_inputs_are_named_of_states() -> None:
    def other_heads(call: OracleCall) -> OracleCall:
        rates = call.inputs["beta"][:, [0, 0]]
        return replace(call, inputs={**call.inputs, "beta": rates})

    text = "beta of head 0 in place of beta"
    assert text_of(states_of("delta_rule", other_heads)) == text


@pytest.mark.parametrize("tile", [16, 32])
def test_inputs_of_the_first_tile_of_channels_are_named(tile: int) -> None:
    def change(problem: Problem) -> Inputs:
        x = wide(problem, "log_decay")
        return {"log_decay": x[..., np.arange(x.shape[-1]) % tile]}

    text = f"log_decay of the first {tile} channels in place of log_decay"
    assert text_of(maps_of("gla", change, key_dim=40)) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda x: x.swapaxes(0, 1).reshape(x.shape),
            "log_decay stored as (heads, batch) and read as (batch, heads)",
        ),
        (
            lambda x: x.reshape(2, 3, -1).swapaxes(0, 1),
            "log_decay stored as (batch, heads) and read as (heads, batch)",
        ),
        (
            lambda x: x.swapaxes(1, 2).reshape(x.shape),
            "log_decay stored as (tokens, heads) and read as (heads, tokens)",
        ),
    ],
)
def test_axes_that_lie_in_another_order_are_named(
    change: Callable[[Any], Any], text: str
) -> None:
    def changed(p: Problem) -> Inputs:
        return {"log_decay": change(wide(p, "log_decay"))}

    assert text_of(maps_of("simple_gla", changed, sizes=(3, 2))) == text


def test_the_order_of_decay_and_erase_is_named() -> None:
    maps = maps_of("gated_delta_rule", lambda _: {}, early_erase=True)
    assert text_of(maps) == "an erase that reads the state before its decay"


def test_candidates_are_counted_by_their_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maps = maps_of("gated_delta_rule", lambda _: {"beta": None})
    length = min(maps, key=lambda one: one.exact.size).problem.length
    said = []
    for candidates in (1, 500):
        monkeypatch.setattr(replaced_inputs, "TOKENS", candidates * length)
        said.append(text_of(maps))
    assert said == ["", "beta left out"]


def test_nothing_is_said_of_right_outputs_or_of_noise() -> None:
    right = maps_of("delta_rule", lambda _: {})
    assert text_of(right) == ""
    rng = np.random.default_rng(0)
    noisy = [
        replace(one, measured=one.measured * rng.uniform(0.9, 1.1, one.exact.shape))
        for one in right
    ]
    assert noisy[0].wrong.any()
    assert text_of(noisy) == ""


def test_what_the_largest_map_contradicts_is_not_said() -> None:
    clamped = maps_of("kda", lambda p: {"log_decay": 0 * wide(p, "log_decay")})
    assert text_of(clamped) == "log_decay left out"
    *smaller, largest = sorted(clamped, key=lambda one: one.exact.size)
    measured = np.where(largest.wrong, 1.01 * largest.measured, largest.measured)
    many = [*smaller] * 8
    assert text_of([*many, replace(largest, measured=measured)]) == ""


def test_a_map_of_large_bounds_speaks_for_nothing_and_against_nothing() -> None:
    clear = maps_of("kda", lambda p: {"beta": wide(p, "beta") / 2})
    vague = [replace(one, bound=one.error / 2) for one in clear]
    assert text_of(vague) == ""
    assert text_of([*clear, vague[0]]) == "beta / 2 in place of beta"
    wrong = replace(vague[0], measured=vague[0].measured + 99 * vague[0].error)
    assert text_of([*clear, wrong]) == ""


def test_replacements_without_a_result_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def singular(call: OracleCall) -> OracleCall:
        other = replace(call)
        nothing = {name: 0 * call.meant[name] for name in ("key", "ridge")}
        vars(other)["meant"] = {**call.meant, **nothing}
        return other

    monkeypatch.setattr(
        replaced_inputs, "replacements", lambda *_: iter([("singular", singular)])
    )
    monkeypatch.setattr(replaced_inputs, "other_parts", lambda *_: iter(()))
    maps = maps_of("mesa", lambda p: {"ridge": 2 * wide(p, "ridge")})
    assert text_of(maps) == ""

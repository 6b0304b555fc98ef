"""Calls with another input in one part of the equation are what they are said to be."""

from collections.abc import Callable
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest

from linkern.oracle.operator import ExactResult
from linkern.testing.diagnosis.alternatives.between_chunks import between_chunks
from linkern.testing.diagnosis.alternatives.parts import other_parts
from linkern.testing.diagnosis.alternatives.programs import first_tokens
from linkern.testing.diagnosis.alternatives.replacements import replacements
from linkern.testing.influence.scenes import dense_scene
from linkern.testing.problems.context import Scope
from linkern.testing.problems.expected import OracleCall
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS

Inputs = dict[str, Any]


def call_of(op: str, length: int = 9, **declared: Any) -> OracleCall:
    scope = Scope(OPERATORS[op], Contract(**declared), "float64")
    rng = np.random.default_rng(1)
    return dense_scene(scope, (2, 2, length, 4, 3), rng).oracle_call


def evaluated(call: OracleCall) -> ExactResult:
    options = call.options()
    return call.operator.evaluate(call.meant, call.scale, options=options)


def inputs_of(call: OracleCall) -> Inputs:
    return {name: x for name, x in call.meant.items() if x is not None}


def before(x: Any) -> Any:
    """Return the numbers of the token before, of keys ``(B, H, T, K)``."""
    return x[:, :, np.maximum(np.arange(x.shape[2]) - 1, 0)]


def of_delta_rule(call: OracleCall) -> Any:
    inputs = inputs_of(call)
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    erasing, beta = before(key), inputs["beta"][..., None]
    state = np.zeros((*key.shape[:2], key.shape[-1], value.shape[-1]))
    rows = []
    for t in range(key.shape[2]):
        read = (erasing[:, :, t, None] @ state)[..., 0, :]
        written = beta[:, :, t] * (value[:, :, t] - read)
        state = state + key[:, :, t, :, None] * written[..., None, :]
        rows.append((query[:, :, t, None] @ state)[..., 0, :])
    return call.scale * np.stack(rows, axis=2)


def of_power_retention(call: OracleCall) -> Any:
    inputs = inputs_of(call)
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    sums = np.cumsum(inputs["log_decay"], axis=-1)
    weights = np.tril((query @ key.mT) ** 2)
    decayed = weights * np.exp(np.minimum(sums[..., None] - sums[..., None, :], 0.0))
    return decayed @ value / weights.sum(axis=-1, keepdims=True)


def of_based(call: OracleCall) -> Any:
    inputs = inputs_of(call)
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    x = call.scale * (query @ key.mT)
    weights = np.tril(1 + x + x**2 / np.sqrt(2))
    return weights @ value / weights.sum(axis=-1, keepdims=True)


def of_based_twice(call: OracleCall) -> Any:
    """Have the factors of both features in that of the query."""
    inputs = inputs_of(call)
    x = call.scale * (inputs["query"] @ inputs["key"].mT)
    weights = np.tril(1 + x + x**2 / 2 / np.sqrt(2))
    return weights @ inputs["value"] / weights.sum(axis=-1, keepdims=True)


def of_momentum(call: OracleCall) -> Any:
    """Erase by what the memory was before its decay."""
    inputs = inputs_of(call)
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    gates = ("log_decay", "momentum_log_decay", "beta", "momentum_beta")
    g, h, beta, rate = (inputs[name][..., None, None] for name in gates)
    state = momentum = np.zeros((*key.shape[:2], key.shape[-1], value.shape[-1]))
    rows = []
    for t in range(key.shape[2]):
        wrong = value[:, :, t, None] - key[:, :, t, None] @ state
        written = rate[:, :, t] * key[:, :, t, :, None] * wrong
        momentum = np.exp(h[:, :, t]) * momentum + written
        state = np.exp(g[:, :, t]) * state + beta[:, :, t] * momentum
        rows.append((query[:, :, t, None] @ state)[..., 0, :])
    return call.scale * np.stack(rows, axis=2)


def of_preconditioned(call: OracleCall) -> Any:
    """Erase along the key that is written."""
    inputs = inputs_of(call)
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    a, b, g, beta = (
        inputs[name][..., None]
        for name in (
            "preconditioner_log_decay",
            "preconditioner_beta",
            "log_decay",
            "beta",
        )
    )
    center, log_range = (inputs[name][:, None] for name in ("center", "log_range"))
    sums = np.zeros((*key.shape[:2], key.shape[-1]))
    state = np.zeros((*sums.shape, value.shape[-1]))
    rows = []
    for t in range(key.shape[2]):
        sums = np.exp(a[:, :, t]) * sums + b[:, :, t] * key[:, :, t] ** 2
        r = np.log(sums + 1e-6) - center
        written = key[:, :, t] * np.exp(-log_range * r / (1 + abs(r)))
        state = np.exp(g[:, :, t, None]) * state
        wrong = value[:, :, t] - (written[:, :, None] @ state)[..., 0, :]
        state = state + written[..., None] * (beta[:, :, t] * wrong)[..., None, :]
        rows.append((query[:, :, t, None] @ state)[..., 0, :])
    return call.scale * np.stack(rows, axis=2)


@pytest.mark.parametrize(
    ("op", "text", "kernel"),
    [
        (
            "delta_rule",
            "key of the token before in place of key in the erase",
            of_delta_rule,
        ),
        (
            "power_retention",
            "0 in place of log_decay in the denominator",
            of_power_retention,
        ),
        (
            "based",
            "1 in place of the factors of products of channels of keys",
            of_based,
        ),
        (
            "based",
            "the squares of the factors of products of channels of queries",
            of_based_twice,
        ),
        (
            "momentum_delta_rule",
            "key exp(-log_decay) in place of key in the erase",
            of_momentum,
        ),
        (
            "preconditioned_gated_delta_rule",
            "the scaled key in place of what erases",
            of_preconditioned,
        ),
    ],
)
def test_a_part_has_another_input(
    op: str, text: str, kernel: Callable[[OracleCall], Any]
) -> None:
    call = call_of(op)
    other = evaluated(dict(other_parts(call))[text](call)).output
    np.testing.assert_allclose(other, kernel(call), rtol=1e-9, atol=1e-12)
    assert not np.allclose(other, evaluated(call).output)


def test_a_scale_is_another_one_in_a_part() -> None:
    call = call_of("based", scale=0.25)
    inputs = inputs_of(call)
    scores = inputs["query"] @ inputs["key"].mT
    products = (scores * inputs["key"].shape[-1] ** -0.5) ** 2 / 2
    weights = np.tril(1 + 0.25 * scores + products)
    kernel = weights @ inputs["value"] / weights.sum(axis=-1, keepdims=True)
    text = "K^-0.5 in place of scale in the products of channels"
    other = evaluated(dict(other_parts(call))[text](call)).output
    np.testing.assert_allclose(other, kernel, rtol=1e-9, atol=1e-12)
    assert not np.allclose(other, evaluated(call).output)


@pytest.mark.parametrize("op", OPERATORS)
def test_another_part_leaves_the_call_as_it_is(op: str) -> None:
    call = call_of(op, 5)
    exact = evaluated(call)
    for text, change in other_parts(call):
        assert evaluated(change(call)).output.shape == exact.output.shape, text
    np.testing.assert_array_equal(evaluated(call).output, exact.output)


def test_an_input_of_one_part_alone_is_another_in_no_part() -> None:
    texts = [text for text, _ in other_parts(call_of("delta_rule"))]
    assert any("in place of key in the erase" in text for text in texts)
    for name in ("query", "value", "beta"):
        assert not any(f"in place of {name} in" in text for text in texts)


@pytest.mark.parametrize("op", [name for name, x in OPERATORS.items() if x.causal])
def test_first_tokens_of_a_candidate_have_the_first_rows_of_its_output(op: str) -> None:
    call, tokens, compared = call_of(op, 18), 17, 0
    candidates = chain(replacements(call), other_parts(call), between_chunks(call, 16))
    for text, change in islice(candidates, 0, None, 9):
        # Of mesa, some candidates have no solution.
        with np.errstate(all="ignore"), suppress(np.linalg.LinAlgError):
            whole = evaluated(change(call)).output
            some = evaluated(first_tokens(change, tokens, call)).output
            rows = whole[:, :, :tokens]
            np.testing.assert_allclose(some, rows, 1e-9, 1e-9, err_msg=text)
            compared += 1
    assert compared > 4

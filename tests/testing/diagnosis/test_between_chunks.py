"""Chunks are right, and carry on, or read, the memory of another call."""

from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from linkern.testing.diagnosis.alternatives import between_chunks as of_chunks
from linkern.testing.diagnosis.alternatives.between_chunks import between_chunks
from linkern.testing.spec.operators import OPERATORS
from tests.marks import every
from tests.testing.diagnosis.test_parts import call_of, evaluated, inputs_of

CHUNK = 16


def of_features(call):
    """Keep a memory of products of channels each of which counts once."""
    inputs = inputs_of(call)
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    sums = np.cumsum(inputs["log_decay"], axis=-1)
    decays = np.exp(np.minimum(sums[..., None] - sums[..., None, :], 0.0))
    score, squares = query @ key.mT, query**2 @ (key**2).mT
    chunk = np.arange(key.shape[2]) // CHUNK
    carried = chunk[:, None] != chunk
    weights = np.where(carried, (score**2 + squares) / 2, score**2)
    weights = np.tril(weights) * decays
    return weights @ value / weights.sum(axis=-1, keepdims=True)


def of_rates(call, handed=False, read=False):
    """Erase at a rate of 1 in the memory handed on, or in what is read of it."""
    inputs = inputs_of(call)
    query, key, value = (inputs[name] for name in ("query", "key", "value"))

    def run(state, t, beta, values=True):
        state = state * np.exp(inputs["log_decay"][:, :, t, None, None])
        wrong = values * value[:, :, t] - (key[:, :, t, None] @ state)[..., 0, :]
        written = beta[:, :, t, None] * wrong
        return state + key[:, :, t, :, None] * written[..., None, :]

    right, ones = inputs["beta"], np.ones_like(inputs["beta"])
    carried = seen = np.zeros((*key.shape[:2], key.shape[-1], value.shape[-1]))
    alone, rows = carried, []
    for t in range(key.shape[2]):
        if t % CHUNK == 0:
            alone, seen = 0 * carried, carried
        alone = run(alone, t, right)
        seen = run(seen, t, ones if read else right, values=False)
        carried = run(carried, t, ones if handed else right)
        rows.append((query[:, :, t, None] @ (alone + seen))[..., 0, :])
    return call.scale * np.stack(rows, axis=2)


def of_squares(call):
    """Decay the squares before a chunk to the token before each row, in its read."""
    inputs = inputs_of(call)
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    decay, beta, of_squares, share = (
        inputs[name][..., None]
        for name in (
            *("log_decay", "beta"),
            *("preconditioner_log_decay", "preconditioner_beta"),
        )
    )
    center, log_range = (inputs[x][:, None] for x in ("center", "log_range"))
    state = np.zeros((*key.shape[:2], key.shape[-1], value.shape[-1]))
    squares = carried = np.zeros_like(key[:, :, 0])
    rows = []
    for t in range(key.shape[2]):
        if t % CHUNK == 0:
            carried, squares = squares + carried, 0 * squares
        now, gate = key[:, :, t], np.exp(of_squares[:, :, t])
        squares = gate * squares + share[:, :, t] * now**2
        r = np.log(squares + carried + 1e-6) - center
        carried = gate * carried
        written = now * np.exp(-log_range * r / (1 + abs(r))) * beta[:, :, t]
        state = np.exp(decay[:, :, t, None]) * state
        wrong = value[:, :, t] - (now[..., None, :] @ state)[..., 0, :]
        state = state + written[..., None] * wrong[..., None, :]
        rows.append((query[:, :, t, None] @ state)[..., 0, :])
    return call.scale * np.stack(rows, axis=2)


FACTORS = "1 in place of the factors of products of channels of queries and keys"
RATE = "1 in place of beta"
HANDED = "in the memory that chunks of 16 hand on"
BOTH = "in what is carried from one chunk of 16 to the next"
READ = "in what rows read of the memory before their chunk of 16"


@pytest.mark.parametrize(
    ("op", "text", "kernel"),
    [
        ("power_retention", f"{FACTORS} {BOTH}", of_features),
        ("gated_delta_rule", f"{RATE} {HANDED}", partial(of_rates, handed=True)),
        ("gated_delta_rule", f"{RATE} {READ}", partial(of_rates, read=True)),
        (
            "gated_delta_rule",
            f"{RATE} {BOTH}",
            partial(of_rates, handed=True, read=True),
        ),
        (
            "preconditioned_gated_delta_rule",
            f"the read of the preconditioner without the decay of the row {READ}",
            of_squares,
        ),
    ],
)
def test_what_is_carried_is_of_another_call(op, text, kernel):
    call = call_of(op, 40)
    other = evaluated(dict(between_chunks(call, CHUNK))[text](call)).output
    np.testing.assert_allclose(other, kernel(call), rtol=1e-9, atol=1e-12)
    exact = evaluated(call).output
    np.testing.assert_allclose(other[:, :, :CHUNK], exact[:, :, :CHUNK], rtol=1e-12)
    assert not np.allclose(other, exact)


@pytest.mark.parametrize("op", every(5, OPERATORS, slow=0.5))
def test_calls_keep_their_shape(op):
    call = call_of(op, 20)
    exact = evaluated(call)
    for text, change in [*between_chunks(call, CHUNK)][::5]:
        with np.errstate(all="ignore"):
            try:
                output = evaluated(change(call)).output
            except np.linalg.LinAlgError:  # No solution with such inputs.
                continue
        assert output.shape == exact.output.shape, text


# Of sums, of rows that erase, and of memories that others read.
LEFT_OUT = ["preconditioned_kda", "gla", "rwkv6", "mesa", "kda", "gsa", "based"]


@pytest.mark.parametrize("op", every(3, LEFT_OUT))
def test_what_is_left_out_changes_nothing_or_is_said_in_fewer_words(op, monkeypatch):
    call = call_of(op, 20)
    kept = {*dict(between_chunks(call, CHUNK))}
    monkeypatch.setattr(of_chunks, "_effects", lambda *_: of_chunks.Effects(True, True))
    every, exact = dict(between_chunks(call, CHUNK)), evaluated(call)
    left_out = [text for text in every if text not in kept]
    assert left_out
    for text in left_out[::9]:
        with np.errstate(all="ignore"), suppress(np.linalg.LinAlgError):
            output = evaluated(every[text](call)).output
            whole = text.removesuffix(BOTH)
            others = [f"{whole}{x}" for x in (HANDED, READ) if whole != text]
            same = [evaluated(every[x](call)).output for x in others if x in kept]
        told = (np.allclose(output, x) for x in (exact.output, *same))
        assert any(told) or np.isnan(output).any(), text

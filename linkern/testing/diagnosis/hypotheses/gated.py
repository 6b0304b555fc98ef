"""Deviations of the family in whole sequences, as data: a name, a phrase and a rule."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.rules import (
    Reading,
    Rule,
    as_low_rank,
    predicted,
)
from linkern.testing.diagnosis.hypotheses.variant import Deviation

__all__ = ["erases", "gates", "of_chunks", "rates", "scales"]

Real = NDArray[np.float64]
# Bounds that gates are clamped to in the field.
FLOORS = (-1.0, -2.5, -3.0, -5.0, -8.0, -10.0, -15.0, -20.0, -30.0, -50.0, -60.0)


def _named(name: str, phrase: str, rule: Rule) -> Deviation:
    return Deviation(name, phrase, lambda problem: predicted(problem, rule))


def scales(evidence: Evidence) -> Iterator[Deviation]:
    """Yield scores with another factor."""
    if not evidence.scope.operator.has_scale:
        return
    of = "the operator with a scale of"
    for phrase, factor in (
        ("1", lambda *_: 1.0),
        ("K^-0.5", lambda _, k: k**-0.5),
        ("K^-1", lambda _, k: 1.0 / k),
        ("its own, twice", lambda scale, _: scale * scale),
        ("K^0.5", lambda _, k: k**0.5),
    ):
        yield _named("other_scale", f"{of} {phrase}", partial(_scaled, factor=factor))


def _scaled(reading: Reading, factor: Callable[[float, int], float]) -> Reading:
    scale = factor(reading.scale, reading.of("query").shape[-1])
    return Reading(reading.operator, reading.inputs, scale)


def _on(name: str, change: Callable[[Real], Real]) -> Rule:
    """Change an input where there is one."""

    def rule(reading: Reading) -> Reading:
        x = reading.given(name)
        return reading if x is None else reading.with_inputs(**{name: change(x)})

    return rule


def _left_out(name: str) -> Rule:
    return lambda reading: reading.with_inputs(**{name: None})


def _first_head(x: Real, axis: int = 1) -> Real:
    return np.repeat(np.take(x, [0], axis), x.shape[axis], axis)


def _token_before(x: Real, axis: int = 2) -> Real:
    late = np.roll(x, 1, axis)
    late[(slice(None),) * axis + (0,)] = 0
    return late


def gates(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gates of another base, head, token or range, or in another place."""
    names = evidence.scope.operator.names
    if "bonus" in names:
        yield _named("bonus_read_after", "a read after the write", _read_after)
        yield _named("bonus_ignored", "no bonus", _left_out("bonus"))
        first = _on("bonus", partial(_first_head, axis=0))
        yield _named("bonus_of_first_head", "the bonus of the first head", first)
    if "log_decay" not in names:
        return
    changes: tuple[tuple[str, str, Callable[[Real], Real]], ...] = (
        ("no_decay", "no decay", np.zeros_like),
        ("gates_to_base_2", "gates taken as logarithms to base 2", _times(np.log(2))),
        ("gates_from_base_2", "gates divided by log 2", _times(1 / np.log(2))),
        ("gates_of_first_head", "the gates of the first head", _first_head),
        ("gates_of_token_before", "the gates of the token before", _token_before),
        *(
            ("gates_clamped", f"gates clamped at {floor:g}", _clamped(floor))
            for floor in FLOORS
        ),
    )
    for name, phrase, change in changes:
        yield _named(name, phrase, _on("log_decay", change))
    yield _named(
        "decay_after_write", "a decay of what a token has just written", _written_first
    )
    yield _named(
        "decay_at_every_micro_step", "a decay at every micro-step", _every_micro_step
    )


def _times(factor: float) -> Callable[[Real], Real]:
    return lambda x: x * factor


def _clamped(floor: float) -> Callable[[Real], Real]:
    return lambda x: np.maximum(x, floor)


def _read_after(reading: Reading) -> Reading:
    inputs = {name: x for name, x in reading.inputs.items() if name != "bonus"}
    return Reading("gla", inputs, reading.scale)


def _written_first(reading: Reading) -> Reading | None:
    """Return ``S = e^g (S + k v^T)``."""
    found = as_low_rank(reading)
    if found is None:
        return None
    decay = np.exp(found.of("log_decay"))
    erase = found.of("a")
    if reading.operator in ("gated_delta_rule", "kda"):
        erase = -reading.of("key")
    return found.with_inputs(
        a=erase, b=decay * found.of("b"), key=decay * found.of("key")
    )


def _every_micro_step(reading: Reading) -> Reading | None:
    """Return the gated delta rule over all keys of all tokens."""
    if reading.operator != "gated_delta_product":
        return None
    query, key = reading.of("query"), reading.of("key")
    each = max(key.shape[-2] // max(query.shape[-2], 1), 1)
    g = reading.given("log_decay")
    inputs = {
        **reading.inputs,
        "query": np.repeat(query, each, axis=-2),
        "log_decay": None if g is None else np.repeat(g, each, axis=-1),
    }
    return Reading("gated_delta_rule", inputs, reading.scale, each)


def rates(evidence: Evidence) -> Iterator[Deviation]:
    """Yield rates that are ignored, clipped, or of other heads."""
    if "beta" not in evidence.scope.operator.names:
        return
    yield _named("beta_ignored", "a beta of 1", _left_out("beta"))
    clipped = _on("beta", lambda x: np.clip(x, 0, 1))
    yield _named("beta_clipped", "a beta between 0 and 1", clipped)
    yield _named(
        "beta_of_first_head", "the beta of the first head", _on("beta", _first_head)
    )
    yield _named("beta_of_wrong_heads", "beta repeated in another order", _tiled)
    yield _named("beta_not_on_values", "values written without beta", _whole_values)


def _tiled(reading: Reading) -> Reading:
    beta, heads = reading.given("beta"), reading.of("key").shape[-3]
    if beta is None:
        return reading
    return reading.with_inputs(beta=beta[:, np.arange(beta.shape[1]) % heads])


def _whole_values(reading: Reading) -> Reading | None:
    found = as_low_rank(reading)
    if found is None:
        return None
    groups = found.of("value").shape[-3] // reading.of("key").shape[-3]
    return found.with_inputs(key=np.repeat(reading.of("key"), groups, axis=-3))


def erases(evidence: Evidence) -> Iterator[Deviation]:
    """Yield erases that are left out, or that look up another memory."""
    if not evidence.scope.operator.erases:
        return
    yield _named("no_erase", "nothing erased", _never)
    yield _named(
        "erases_before_decay", "the erase looked up before the decay", _looked_up_early
    )
    yield _named(
        "erases_after_decay", "the erase looked up after the decay", _looked_up_late
    )
    yield _named("a_and_b_exchanged", "both low-rank vectors exchanged", _exchanged)
    yield _named("erase_negated", "what is erased added", _added)


def _never(reading: Reading) -> Reading | None:
    found = as_low_rank(reading)
    return found and found.with_inputs(b=np.zeros_like(found.of("b")))


def _added(reading: Reading) -> Reading | None:
    found = as_low_rank(reading)
    return found and found.with_inputs(b=-found.of("b"))


def _looked_up_early(reading: Reading) -> Reading | None:
    found = as_low_rank(reading)
    if found is None or reading.operator not in ("gated_delta_rule", "kda"):
        return None
    groups = found.of("value").shape[-3] // reading.of("key").shape[-3]
    return found.with_inputs(a=-np.repeat(reading.of("key"), groups, axis=-3))


def _looked_up_late(reading: Reading) -> Reading | None:
    found = as_low_rank(reading)
    if found is None or reading.operator in ("gated_delta_rule", "kda", "delta_rule"):
        return None
    return found.with_inputs(a=found.of("a") * np.exp(found.of("log_decay")))


def _exchanged(reading: Reading) -> Reading | None:
    found = as_low_rank(reading)
    return found and found.with_inputs(a=found.of("b"), b=found.of("a"))


def of_chunks(evidence: Evidence) -> Iterator[Deviation]:
    """Yield what is lost where chunks begin."""
    for chunk in evidence.state_sizes:
        if chunk < 2:
            continue
        of = f"at the start of each chunk of {chunk}"
        edge = partial(_at_edges, chunk=chunk)
        if "log_decay" in evidence.scope.operator.names:
            yield _named(
                "decay_lost_at_chunk_edge",
                f"no decay {of}",
                _on("log_decay", partial(edge, axis=2)),
            )
        if evidence.scope.operator.erases:
            yield _named(
                "erase_lost_at_chunk_edge", f"no erase {of}", _erase_lost(edge)
            )
        yield _named("state_lost_at_chunk_edge", f"nothing left {of}", _closed(chunk))


def _at_edges(x: Real, chunk: int, axis: int, number: float = 0.0) -> Real:
    """Return an array with another number in the first rows of chunks but the first."""
    found = np.array(x)
    found[(slice(None),) * axis + (slice(chunk, None, chunk),)] = number
    return found


def _erase_lost(edge: Callable[..., Real]) -> Rule:
    def rule(reading: Reading) -> Reading | None:
        found = as_low_rank(reading)
        return found and found.with_inputs(b=edge(found.of("b"), axis=2))

    return rule


def _closed(chunk: int) -> Rule:
    """Let nothing through: a decay of all, and no erase of what is gone."""

    def rule(reading: Reading) -> Reading | None:
        found = as_low_rank(reading)
        if found is None:
            return None
        g = _at_edges(found.of("log_decay"), chunk, 2, -np.inf)
        return found.with_inputs(log_decay=g, b=_at_edges(found.of("b"), chunk, 2))

    return rule

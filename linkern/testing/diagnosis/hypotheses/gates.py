"""Gates, rates, erases and scales of another value, place, head or token."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    Deviation,
    gated,
    hypothesis,
    takes,
)
from linkern.testing.diagnosis.hypotheses.measuring import spelt
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.diagnosis.hypotheses.roundings import relaxed
from linkern.testing.diagnosis.hypotheses.rules import (
    Reading,
    Rule,
    as_low_rank,
    by_rule,
    first_only,
    predicted,
)
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem

# Epsilons under the square root of a norm in the field.
NORM_EPSILONS = (1e-6, 1e-5, 1e-12, 0.0)
# Bounds that gates are clamped to in the field.
FLOORS = (-1.0, -2.5, -3.0, -5.0, -8.0, -10.0, -15.0, -20.0, -30.0, -50.0, -60.0)


def _erasing(scope: Scope) -> bool:
    return gated(scope) and scope.operator.erases


def _scaled_scores(scope: Scope) -> bool:
    return gated(scope) and scope.operator.has_scale


@hypothesis("outputs", 110, _scaled_scores)
def scales(evidence: Evidence) -> Iterator[Deviation]:
    """Yield scores with another factor."""
    del evidence
    factors: tuple[tuple[str, Callable[[float, int], float]], ...] = (
        ("1", lambda *_: 1.0),
        ("K^-0.5", lambda _, k: float(k**-0.5)),
        ("K^-1", lambda _, k: 1.0 / k),
        ("its own, twice", lambda scale, _: scale * scale),
        ("K^0.5", lambda _, k: float(k**0.5)),
    )
    for phrase, factor in factors:

        def rule(
            reading: Reading, factor: Callable[[float, int], float] = factor
        ) -> Reading:
            scale = factor(reading.scale, reading.require("query").shape[-1])
            return Reading(reading.operator, reading.inputs, scale)

        declaration = (f"scale={phrase}",) if phrase in ("1", "K^-0.5") else ()
        words = f"the operator with a scale of {phrase}"
        yield by_rule("other_scale", words, rule, declaration)


@hypothesis("outputs", 109, gated, takes("query", "key"))
def normalised(evidence: Evidence) -> Iterator[Deviation]:
    """Yield queries and keys that are divided by their norms."""
    if evidence.scope.contract.l2norm is None:
        for eps in NORM_EPSILONS:
            yield Deviation(
                "l2norm",
                f"queries and keys divided by their norms, `eps={spelt(eps)}`",
                partial(relaxed, l2norm=eps),
                declaration=(f"l2norm={spelt(eps)}",),
            )


def _on(name: str, change: Callable[[Real], Real]) -> Rule:
    """Change an input where there is one."""

    def rule(reading: Reading) -> Reading:
        x = reading.get(name)
        return reading if x is None else reading.with_inputs(**{name: change(x)})

    return rule


def _left_out(name: str) -> Rule:
    return lambda reading: reading.with_inputs(**{name: None})


def _on_low_rank(change: Callable[[Reading, Reading], Reading | None]) -> Rule:
    """Change an operator written as ``dplr``; `change` gets that and the operator."""

    def rule(reading: Reading) -> Reading | None:
        low_rank = as_low_rank(reading)
        return low_rank and change(low_rank, reading)

    return rule


def _token_before(x: Real, axis: int = 2) -> Real:
    late = np.roll(x, 1, axis)
    late[(slice(None),) * axis + (0,)] = 0
    return late


@hypothesis("outputs", 111, takes("bonus"))
def bonuses(evidence: Evidence) -> Iterator[Deviation]:
    """Yield bonuses that are ignored, or of another head."""
    del evidence
    yield by_rule("bonus_read_after", "a read after the write", _read_after)
    yield by_rule("bonus_ignored", "no bonus", _left_out("bonus"))
    first = _on("bonus", partial(first_only, axis=0))
    yield by_rule("bonus_of_first_head", "the bonus of the first head", first)


def _read_after(reading: Reading) -> Reading | None:
    if reading.operator != "rwkv6":
        return None
    inputs = {name: x for name, x in reading.inputs.items() if name != "bonus"}
    return Reading("gla", inputs, reading.scale)


@hypothesis("outputs", 112, takes("log_decay"))
def decays(evidence: Evidence) -> Iterator[Deviation]:
    """Yield decays of another base, head, token or range, or in another place."""
    contract = evidence.scope.contract
    base = {"gates_to_base_2": "2", "gates_from_base_2": "e"}
    changes: tuple[tuple[str, str, Callable[[Real], Real]], ...] = (
        ("no_decay", "no decay", np.zeros_like),
        ("gates_to_base_2", "gates taken as logarithms to base 2", _times(np.log(2))),
        ("gates_from_base_2", "gates divided by log 2", _times(1 / np.log(2))),
        (
            "gates_of_first_head",
            "the gates of the first head",
            partial(first_only, axis=1),
        ),
        ("gates_of_token_before", "the gates of the token before", _token_before),
    )
    for name, phrase, change in changes:
        declaration: tuple[str, ...] = ()
        if base.get(name, contract.decay_log_base) != contract.decay_log_base:
            declaration = (f"decay_log_base={base[name]}",)
        yield by_rule(name, phrase, _on("log_decay", change), declaration)
    for floor in FLOORS:
        phrase, rule = f"gates clamped at {floor:g}", _on("log_decay", _clamped(floor))
        declaration = (f"decay_floor={floor:g}",)
        yield by_rule("gates_clamped", phrase, rule, declaration)
    late = "a decay of what a token has just written"
    yield by_rule("decay_after_write", late, _on_low_rank(_written_first))
    often = "a decay at every micro-step"
    yield by_rule("decay_at_every_micro_step", often, _every_micro_step)


def _times(factor: float) -> Callable[[Real], Real]:
    return lambda x: x * factor


def _clamped(floor: float) -> Callable[[Real], Real]:
    return lambda x: np.maximum(x, floor)


def _written_first(low_rank: Reading, reading: Reading) -> Reading:
    """Return ``S = e^g (S + k v^T)``."""
    decay, erase = np.exp(low_rank.require("log_decay")), low_rank.require("a")
    if reading.operator in ("gated_delta_rule", "kda"):
        erase = -_grouped_key(reading)
    return low_rank.with_inputs(
        a=erase,
        b=decay * low_rank.require("b"),
        key=decay * low_rank.require("key"),
    )


def _every_micro_step(reading: Reading) -> Reading | None:
    """Return the gated delta rule over all keys of all tokens."""
    if reading.operator != "gated_delta_product":
        return None
    query, key = reading.require("query"), reading.require("key")
    each = max(key.shape[-2] // max(query.shape[-2], 1), 1)
    g = reading.get("log_decay")
    inputs = {
        **reading.inputs,
        "query": np.repeat(query, each, axis=-2),
        "log_decay": None if g is None else np.repeat(g, each, axis=-1),
    }
    return Reading("gated_delta_rule", inputs, reading.scale, each)


@hypothesis("outputs", 113, takes("beta"))
def rates(evidence: Evidence) -> Iterator[Deviation]:
    """Yield rates that are ignored, clipped, or of other heads."""
    del evidence
    rules: tuple[tuple[str, str, Rule], ...] = (
        ("beta_ignored", "a beta of 1", _left_out("beta")),
        (
            "beta_clipped",
            "a beta between 0 and 1",
            _on("beta", lambda x: np.clip(x, 0, 1)),
        ),
        (
            "beta_of_first_head",
            "the beta of the first head",
            _on("beta", partial(first_only, axis=1)),
        ),
        ("beta_of_wrong_heads", "beta repeated in another order", _tiled),
        (
            "beta_not_on_values",
            "values written without beta",
            _on_low_rank(lambda x, own: x.with_inputs(key=_grouped_key(own))),
        ),
    )
    for row in rules:
        yield by_rule(*row)


def _tiled(reading: Reading) -> Reading:
    beta, heads = reading.get("beta"), reading.require("key").shape[-3]
    if beta is None:
        return reading
    return reading.with_inputs(beta=beta[:, np.arange(beta.shape[1]) % heads])


def _grouped_key(reading: Reading) -> Real:
    """Return the keys, repeated for all heads of the values."""
    key = reading.require("key")
    return np.repeat(key, reading.require("value").shape[-3] // key.shape[-3], axis=-3)


@hypothesis("outputs", 114, _erasing)
def erases(evidence: Evidence) -> Iterator[Deviation]:
    """Yield erases that are left out, or that read another state."""
    del evidence
    changes: tuple[tuple[str, str, Callable[[Reading, Reading], Reading | None]], ...]
    changes = (
        (
            "no_erase",
            "nothing erased",
            lambda x, _: x.with_inputs(b=np.zeros_like(x.require("b"))),
        ),
        ("erases_before_decay", "the erase looked up before the decay", _early),
        ("erases_after_decay", "the erase looked up after the decay", _late),
        (
            "a_and_b_exchanged",
            "both low-rank vectors exchanged",
            lambda x, _: x.with_inputs(a=x.require("b"), b=x.require("a")),
        ),
        (
            "erase_negated",
            "what is erased added",
            lambda x, _: x.with_inputs(b=-x.require("b")),
        ),
    )
    for name, phrase, change in changes:
        yield by_rule(name, phrase, _on_low_rank(change))


def _early(low_rank: Reading, reading: Reading) -> Reading | None:
    if reading.operator not in ("gated_delta_rule", "kda"):
        return None
    return low_rank.with_inputs(a=-_grouped_key(reading))


def _late(low_rank: Reading, reading: Reading) -> Reading | None:
    if reading.operator in ("gated_delta_rule", "kda", "delta_rule"):
        return None
    decay = np.exp(low_rank.require("log_decay"))
    return low_rank.with_inputs(a=low_rank.require("a") * decay)


@hypothesis("outputs", 115, gated)
def chunk_edges(evidence: Evidence) -> Iterator[Deviation]:
    """Yield decays, erases and states that are lost where chunks begin."""
    for chunk in (n for n in evidence.state_sizes if n > 1):
        where = f"at the start of each chunk of {chunk}"
        edge = partial(_at_edges, chunk=chunk)
        if takes("log_decay")(evidence.scope):
            rule = _on("log_decay", edge)
            yield by_rule("decay_lost_at_chunk_edge", f"no decay {where}", rule)
        if evidence.scope.operator.erases:
            rule = _on_low_rank(_without_erase(edge))
            yield by_rule("erase_lost_at_chunk_edge", f"no erase {where}", rule)
        rule = _on_low_rank(_closed(edge))
        yield by_rule("state_lost_at_chunk_edge", f"nothing left {where}", rule)


def _at_edges(x: Real, chunk: int, number: float = 0.0) -> Real:
    """Return an array with another number in the first rows of chunks but the first."""
    changed = np.array(x)
    changed[:, :, chunk::chunk] = number
    return changed


def _without_erase(edge: Callable[[Real], Real]) -> Callable[..., Reading]:
    return lambda low_rank, _: low_rank.with_inputs(b=edge(low_rank.require("b")))


def _closed(edge: Callable[..., Real]) -> Callable[..., Reading]:
    """Let nothing through: a decay of all, and no erase of what is gone."""
    return lambda low_rank, _: low_rank.with_inputs(
        log_decay=edge(low_rank.require("log_decay"), number=-np.inf),
        b=edge(low_rank.require("b")),
    )


@hypothesis("omitted", 10, gated)
def without_gate(evidence: Evidence) -> Iterator[Deviation]:
    """Yield other meanings of a gate that is left out."""
    if evidence.scope.operator.erases:
        phrase = "nothing erased where a gate is left out"
        yield by_rule("no_erase_without_gate", phrase, _adds_only)
    for gate, name, numbers in (
        ("log-decay", "log_decay", (-0.5, -1.0, np.log(0.5))),
        ("beta", "beta", (0.0, 0.5)),
    ):
        for number in numbers if takes(name)(evidence.scope) else ():
            yield Deviation(
                "missing_gate_not_neutral",
                f"a {gate} of {number:.3g} where it is left out",
                partial(_filled, name=name, number=number),
            )


def _adds_only(reading: Reading) -> Reading | None:
    if reading.get("log_decay") is not None:
        return reading
    beta, key = reading.get("beta"), reading.require("key")
    groups = reading.require("value").shape[-3] // key.shape[-3]
    key, query = (
        np.repeat(x, groups, axis=-3) for x in (key, reading.require("query"))
    )
    inputs = {
        "query": query,
        "key": key if beta is None else beta[..., None] * key,
        "value": reading.require("value"),
    }
    return Reading("simple_gla", inputs, reading.scale)


def _filled(problem: Problem, name: str, number: float) -> Bounded | None:
    def rule(reading: Reading) -> Reading:
        if reading.get(name) is not None:
            return reading
        sizes, axes = problem.sizes, problem.scope.operator.input(name).axes
        shape = tuple(sizes[letter] for letter in axes)
        return reading.with_inputs(**{name: np.full(shape, number)})

    return predicted(problem, rule)

"""Gradients that are wrong although the output is right."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.formats import Format, rounded
from linkern.testing.diagnosis.hypotheses.measuring import (
    decimals,
    spelt,
    typical_ratio,
)
from linkern.testing.diagnosis.hypotheses.pairs import (
    Condition,
    Real,
    Weights,
    seen,
)
from linkern.testing.diagnosis.hypotheses.pullbacks import (
    Pullback,
    carry_back,
    differentiate,
    pullback,
)
from linkern.testing.diagnosis.hypotheses.roundings import formats
from linkern.testing.diagnosis.hypotheses.variant import Deviation
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import INPUT_NAMES

__all__ = ["changed", "handed_back", "narrowed", "paths"]

# The sums in which queries hand back to keys, and those in which keys are read.
_BACK = ("key", "key_divisor", "value")
_READ = ("query", "query_divisor")


def _without(condition: Condition, sums: tuple[str, ...]) -> dict[str, Weights]:
    """Return the parts in which the pairs of `condition` do not count."""
    return dict.fromkeys(sums, lambda pairs: pairs.seen & ~condition(pairs))


def paths(evidence: Evidence) -> Iterator[Deviation]:
    """Yield sums in which some pairs do not count."""
    if evidence.scope.contract.eps:
        return
    through_divisor: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("query and key", ("query_divisor", "key_divisor")),
        ("query", ("query_divisor",)),
        ("key", ("key_divisor",)),
    )
    for of, sums in through_divisor:
        yield pullback(
            "gradient_without_normalizer",
            f"a gradient of the {of} without the path through the normalizer",
            **_without(seen, sums),
        )
    of_inputs: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("value", ("value",)),
        ("query", ("query", "query_divisor")),
        ("key", ("key", "key_divisor")),
        ("all inputs", (*_BACK, *_READ)),
    )
    for of, sums in of_inputs:
        yield pullback(
            "gradient_without_diagonal",
            f"a gradient of the {of} without every query's own key",
            **_without(lambda pairs: pairs.own, sums),
        )
    for slopes, of in ((("key",), "query"), (("query",), "key"), ((), "query and key")):
        yield pullback(
            "gradient_ignores_feature_map",
            f"a gradient of the {of} without the slope of the feature map",
            slopes=slopes,
        )
    for chunk in evidence.all_sizes:
        yield from _at_edges(chunk)


def _at_edges(chunk: int) -> Iterator[Deviation]:
    for which, residue in (("last", chunk - 1), ("first", 0)):
        of = f"of every chunk of {chunk} is lost"
        yield pullback(
            "query_lost_backwards_at_chunk_edge",
            f"gradients in which the {which} query {of}",
            **_without(_query_at_edge(chunk, residue), _BACK),
        )
        yield pullback(
            "key_lost_backwards_at_chunk_edge",
            f"gradients in which the {which} key {of}",
            **_without(_key_at_edge(chunk, residue), _READ),
        )
    of_sums: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("keys and values", _BACK),
        ("keys through the normalizer", ("key_divisor",)),
        ("queries", _READ),
        ("queries through the normalizer", ("query_divisor",)),
        ("all inputs", (*_BACK, *_READ)),
    )
    for who, sums in of_sums:
        yield pullback(
            "gradient_of_state_not_carried",
            f"gradients of {who} without what other chunks of {chunk} contribute",
            **_without(lambda pairs: pairs.carried(chunk), sums),
        )


def _query_at_edge(chunk: int, residue: int) -> Condition:
    return lambda pairs: pairs.carried(chunk) & (pairs.query % chunk == residue)


def _key_at_edge(chunk: int, residue: int) -> Condition:
    return lambda pairs: pairs.carried(chunk) & (pairs.key % chunk == residue)


def handed_back(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients that end where one call hands over to the next."""
    del evidence
    for name, phrase, sums in (
        ("gradient_of_final_state_ignored", "the gradient of the final state", _BACK),
        (
            "gradient_of_final_normalizer_ignored",
            "the gradient of the final normalizer",
            ("key_divisor",),
        ),
        (
            "gradient_of_final_memory_ignored",
            "the gradient of the final memory",
            ("key", "value"),
        ),
        ("initial_state_ignored_backwards", "the initial state", _READ),
    ):
        yield pullback(
            name,
            f"gradients that ignore {phrase}",
            **_without(lambda pairs: pairs.handed > 0, sums),
        )


def changed(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients of another input or head, or that lack rows or a factor."""
    yield Deviation(
        "gradients_swapped",
        "the gradients of query and key swapped",
        lambda problem: _of_other(problem, {"query": "key", "key": "query"}),
    )
    for name in INPUT_NAMES:
        of = f"the gradient of the {name}"
        for word, phrase, move in (
            ("lost", f"{of} zero", np.zeros_like),
            ("first_token_lost", f"{of} zero in the first token", _without_row(0)),
            ("last_token_lost", f"{of} zero in the last token", _without_row(-1)),
            ("mixes_heads", f"{of} averaged over heads", _averaged),
            ("mixes_heads", f"{of} summed over heads", _summed),
            ("mixes_heads", f"{of} of the first head", _of_first_head),
            ("mixes_heads", f"{of} of the next head", lambda x: np.roll(x, -1, 1)),
            ("mixes_heads", f"{of} of the head before", lambda x: np.roll(x, 1, 1)),
            ("mixes_batches", f"{of} averaged over the batch", _over_batch),
            ("reversed", f"{of} in reverse", lambda x: x[..., ::-1, :]),
        ):
            yield _moved(f"gradient_{word}", phrase, {name: move})
    yield from _scaled(evidence)


def _of_other(problem: Problem, other: dict[str, str]) -> Bounded | None:
    name = problem.knobs["of"]
    if name not in other:
        return differentiate(problem, Pullback())
    if problem.shape.length != problem.shape.keys:
        return None
    exact = problem.solve_gradients()
    return exact[other[name]]


def _moved(
    name: str, phrase: str, moves: dict[str, Callable[[Real], Real]]
) -> Deviation:
    def predict(problem: Problem) -> Bounded:
        exact: Bounded = problem.knobs["exact"]
        move = moves.get(problem.knobs["of"])
        if move is None:
            return exact
        return Bounded(move(exact.output), abs(move(exact.bound)))

    return Deviation(name, phrase, predict)


def _without_row(row: int) -> Callable[[Real], Real]:
    def move(x: Real) -> Real:
        x = x.copy()
        x[..., row, :] = 0
        return x

    return move


def _averaged(x: Real) -> Real:
    return np.broadcast_to(x.mean(1, keepdims=True), x.shape)


def _summed(x: Real) -> Real:
    return np.broadcast_to(x.sum(1, keepdims=True), x.shape)


def _of_first_head(x: Real) -> Real:
    return np.broadcast_to(x[:, :1], x.shape)


def _over_batch(x: Real) -> Real:
    return np.broadcast_to(x.mean(0, keepdims=True), x.shape)


def _scaled(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients with a measured factor, of one input or of all."""
    wrong = sorted({probe.problem.knobs["of"] for probe in evidence.telling})
    exact = Deviation("", "", lambda problem: problem.knobs["exact"])
    typical = typical_ratio(evidence, exact)
    of = "gradients of the " + " and ".join(wrong)
    for spelling, power in (("K^-0.5", -0.5), ("K^0.5", 0.5)):

        def by_power(problem: Problem, power: float = power) -> Bounded:
            return _times(problem, wrong, problem.shape.key_dim**power)

        yield Deviation("gradient_scaled", f"{of} times {spelling}", by_power)
    if not typical:
        return
    for size in decimals(abs(typical)):
        factor = float(np.copysign(size, typical))
        predict = partial(_times, wrong=wrong, factor=factor)
        yield Deviation("gradient_scaled", f"{of} times {spelt(factor)}", predict)


def _times(problem: Problem, wrong: list[str], factor: float) -> Bounded:
    exact: Bounded = problem.knobs["exact"]
    if problem.knobs["of"] not in wrong:
        return exact
    u = problem.scope.contract.precisions(problem.scope.dtype).unit
    size = abs(factor) * (abs(exact.output) + exact.bound)
    return Bounded(factor * exact.output, abs(factor) * exact.bound + 2 * u * size)


def narrowed(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients whose stages are rounded: outputs, states, results."""
    for to in formats(evidence):
        saved = Pullback(saved=to)

        def of_saved(problem: Problem, saved: Pullback = saved) -> Bounded:
            if problem.integers is not None:
                return differentiate(problem, saved)
            return _unknown(problem)

        phrase = f"gradients formed with outputs {to.phrase}"
        yield Deviation("output_saved_rounded", phrase, of_saved, "on reals")
    wrong = {probe.problem.knobs["of"] for probe in evidence.telling}
    if "query" not in wrong and evidence.scope.operator.causal:
        yield from _narrow_states(evidence)
    for to in formats(evidence):

        def of_result(problem: Problem, to: Format = to) -> Bounded:
            exact: Bounded = problem.knobs["exact"]
            return rounded(exact, to) if problem.knobs["of"] in wrong else exact

        phrase = f"gradients of the {' and '.join(sorted(wrong))} {to.phrase}"
        yield Deviation("gradient_rounded", phrase, of_result)


def _narrow_states(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients of a state that are rounded on their way back."""
    for to in formats(evidence):
        for chunk in (1, *evidence.all_sizes):

            def predict(
                problem: Problem, to: Format = to, chunk: int = chunk
            ) -> Bounded:
                if problem.knobs["of"] == "query":
                    exact: Bounded = problem.knobs["exact"]
                    return exact
                if problem.integers is not None:
                    return carry_back(problem, to, chunk)
                return _unknown(problem)

            every = f"every {chunk} tokens" if chunk > 1 else "every token"
            yield Deviation(
                "gradient_of_state_rounded",
                f"gradients of a state {to.phrase} after {every}",
                predict,
                silent="on reals",
            )


def _unknown(problem: Problem) -> Bounded:
    """Return the gradient without a bound: how reals round is up to the order."""
    exact: Bounded = problem.knobs["exact"]
    return Bounded(exact.output, np.full_like(exact.bound, np.inf))

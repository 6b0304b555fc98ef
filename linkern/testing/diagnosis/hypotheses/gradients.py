"""Gradients that are wrong although the output is right."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.formats import Format, rounded
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    EXACT,
    Deviation,
    gated,
    hypothesis,
    linear,
    takes,
)
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
from linkern.testing.diagnosis.hypotheses.rules import (
    first_only,
    meaning,
    operator_of,
)
from linkern.testing.problems.problem import Problem

# The sums in which queries hand back to keys, and those in which keys are read.
_BACK = ("key", "key_divisor", "value")
_READ = ("query", "query_divisor")
_ALL = (*_BACK, *_READ)
# Where the scale is inside of something that is not linear, it is no factor.
_NOT_A_FACTOR = ("gsa", "abc", "based", "rebased")


def _exact_of(problem: Problem) -> Bounded:
    exact: Bounded = problem.knobs["exact"]
    return exact


# -- sums of linear attention without some pairs


def _without(condition: Condition, sums: tuple[str, ...]) -> dict[str, Weights]:
    """Return the parts in which the pairs of `condition` do not count."""
    return dict.fromkeys(sums, lambda pairs: pairs.seen & ~condition(pairs))


@hypothesis("gradients", 10, linear, lambda scope: not scope.contract.eps)
def paths(evidence: Evidence) -> Iterator[Deviation]:
    """Yield sums in which some pairs do not count."""
    for name, phrase, condition, rows in (
        (
            "gradient_without_normalizer",
            "a gradient of the {} without the path through the normalizer",
            seen,
            (
                ("query and key", ("query_divisor", "key_divisor")),
                ("query", ("query_divisor",)),
                ("key", ("key_divisor",)),
            ),
        ),
        (
            "gradient_without_diagonal",
            "a gradient of the {} without every query's own key",
            lambda pairs: pairs.own,
            (
                ("value", ("value",)),
                ("query", _READ),
                ("key", ("key", "key_divisor")),
                ("all inputs", _ALL),
            ),
        ),
    ):
        for which, sums in rows:
            yield pullback(name, phrase.format(which), **_without(condition, sums))
    for slopes, which in (
        (("key",), "query"),
        (("query",), "key"),
        ((), "query and key"),
    ):
        yield pullback(
            "gradient_ignores_feature_map",
            f"a gradient of the {which} without the slope of the feature map",
            slopes=slopes,
        )
    for chunk in evidence.all_sizes:
        yield from _at_edges(chunk)


def _at_edges(chunk: int) -> Iterator[Deviation]:
    for which, residue in (("last", chunk - 1), ("first", 0)):
        for one, sums in (("query", _BACK), ("key", _READ)):
            yield pullback(
                f"{one}_lost_backwards_at_chunk_edge",
                f"gradients in which the {which} {one} of every chunk of {chunk} is "
                "lost",
                **_without(_at_edge(one, chunk, residue), sums),
            )
    which_sums: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("keys and values", _BACK),
        ("keys through the normalizer", ("key_divisor",)),
        ("queries", _READ),
        ("queries through the normalizer", ("query_divisor",)),
        ("all inputs", _ALL),
    )
    for who, without in which_sums:
        yield pullback(
            "gradient_of_state_not_carried",
            f"gradients of {who} without what other chunks of {chunk} contribute",
            **_without(lambda pairs: pairs.carried(chunk), without),
        )


def _at_edge(one: str, chunk: int, residue: int) -> Condition:
    return lambda pairs: pairs.carried(chunk) & (getattr(pairs, one) % chunk == residue)


# -- states between spans


@hypothesis("gradients_of_spans", 10)
def through_states(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients that end where one call hands over to the next."""
    if gated(evidence.scope):
        phrase = "gradients that do not go back through the state"
        yield Deviation("gradient_of_state_lost", phrase, _of_spans)
        return
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


def _of_spans(problem: Problem) -> Bounded:
    """Return gradients of spans that start from the right state, each by itself."""
    assert problem.cotangent is not None
    name, exact, operator = (
        problem.knobs["of"],
        _exact_of(problem),
        operator_of(problem),
    )
    axis = problem.scope.operator.input(name).token_axis
    state, outputs, bounds = None, [], []
    for first, last in pairwise((0, *problem.knobs["cuts"], problem.length)):
        asked = meaning(problem.span(first, last))
        cotangent = problem.cotangent[..., first:last, :].astype(np.float64)
        call = (asked.meant, cotangent, asked.scale, asked.precisions)
        part = operator.bounded_gradients(*call, state=state)[name]
        outputs.append(part.output)
        bounds.append(part.bound)
        state = operator.evaluate(asked.meant, asked.scale, state).state
    if axis is None:
        return Bounded(np.sum(outputs, axis=0), np.sum(bounds, axis=0) + exact.bound)
    # The state that a span starts from has errors of its own.
    bound = np.concatenate(bounds, axis) + exact.bound
    return Bounded(np.concatenate(outputs, axis), bound)


# -- right gradients, changed


@hypothesis("gradients", 15, gated)
def other_scale(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients of an operator with another factor on the scores."""
    operator = evidence.scope.operator
    if not operator.has_scale or operator.name in _NOT_A_FACTOR:
        return
    for phrase, power in (("K^-0.5", -0.5), ("1", 0.0)):

        def predict(problem: Problem, power: float = power) -> Bounded:
            exact = _exact_of(problem)
            ratio = problem.sizes["k"] ** power / meaning(problem).scale
            return Bounded(exact.output * ratio, exact.bound * max(abs(ratio), 1.0))

        yield Deviation(
            "gradient_with_other_scale", f"gradients with a scale of {phrase}", predict
        )


@hypothesis("gradients", 20, takes("query", "key"))
@hypothesis("gradients_of_spans", 20, takes("query", "key"))
def swapped(evidence: Evidence) -> Iterator[Deviation]:
    """Yield the gradients of query and key swapped."""
    del evidence
    other = {"query": "key", "key": "query"}

    def predict(problem: Problem) -> Bounded | None:
        name = other.get(problem.knobs["of"])
        if name is None:
            return _exact_of(problem)
        same = problem.query.shape == problem.key.shape
        return problem.solve_gradients()[name] if same else None

    phrase = "the gradients of query and key swapped"
    yield Deviation("gradients_swapped", phrase, predict)


# Of the gradient of one input along one of its axes.
Move = Callable[[Real, int], Real]


def _spread(reduce: Callable[..., Real]) -> Move:
    return lambda x, axis: np.broadcast_to(reduce(x, axis, keepdims=True), x.shape)


def _without_token(token: int) -> Move:
    def move(x: Real, axis: int) -> Real:
        x = x.copy()
        x[(slice(None),) * axis + (token,)] = 0
        return x

    return move


# Name, phrase, letters of the axis, and what happens along it.
_CHANGES: tuple[tuple[str, str, str, Move], ...] = (
    ("lost", "zero", "", lambda x, _: np.zeros_like(x)),
    ("negated", "negated", "", lambda x, _: -x),
    ("first_token_lost", "zero in the first token", "ts", _without_token(0)),
    ("last_token_lost", "zero in the last token", "ts", _without_token(-1)),
    ("reversed", "in reverse", "ts", np.flip),
    ("mixes_heads", "averaged over heads", "hg", _spread(np.mean)),
    ("summed_over_heads", "summed over heads", "hg", _spread(np.sum)),
    ("of_first_head", "of the first head", "hg", first_only),
    ("mixes_heads", "of the next head", "hg", lambda x, axis: np.roll(x, -1, axis)),
    ("mixes_heads", "of the head before", "hg", lambda x, axis: np.roll(x, 1, axis)),
    ("mixes_batches", "averaged over the batch", "b", _spread(np.mean)),
    ("of_first_batch", "of the first batch entry", "b", first_only),
)


@hypothesis("gradients", 21)
@hypothesis("gradients_of_spans", 21)
def changed(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients of one input that are lost, or of another token or head."""
    for one in evidence.scope.operator.inputs:
        which = f"the gradient of the {one.name}"
        for word, phrase, letters, move in _CHANGES:
            axes = [one.axes.index(x) for x in letters if x in one.axes]
            if axes or not letters:
                name, along = f"gradient_{word}", partial(_along, move, (*axes, 0)[0])
                yield _of_one(one.name, name, f"{which} {phrase}", along)
        if "b" not in one.axes:
            phrase = f"{which} averaged over the batch, not summed"
            name = "gradient_averaged_over_batch"
            yield _of_one(one.name, name, phrase, _over_batch)


def _of_one(
    one: str, name: str, phrase: str, change: Callable[[Bounded, Problem], Bounded]
) -> Deviation:
    def predict(problem: Problem) -> Bounded:
        exact = _exact_of(problem)
        return change(exact, problem) if problem.knobs["of"] == one else exact

    return Deviation(name, phrase, predict)


def _along(move: Move, axis: int, exact: Bounded, problem: Problem) -> Bounded:
    del problem
    output, bound = move(exact.output, axis), abs(move(exact.bound, axis))
    return Bounded(output, 1.01 * bound)


def _over_batch(exact: Bounded, problem: Problem) -> Bounded:
    return Bounded(exact.output / problem.sizes["b"], exact.bound)


@hypothesis("gradients", 22)
@hypothesis("gradients_of_spans", 22)
def scaled(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients with a measured factor, of the inputs that are wrong."""
    wrong = sorted({probe.problem.knobs["of"] for probe in evidence.informative})
    typical = typical_ratio(evidence, EXACT)
    which = "gradients of the " + " and ".join(wrong)
    factors: list[tuple[str, Callable[[Problem], float]]] = [
        (f"K^{power}", partial(_power, power=power)) for power in (-0.5, 0.5)
    ]
    for size in decimals(abs(typical)) if typical else ():
        factor = float(np.copysign(size, typical or 0.0))
        factors.append((spelt(factor), partial(_constant, factor=factor)))
    for spelling, factor_of in factors:
        predict = partial(_times, wrong=wrong, factor_of=factor_of)
        yield Deviation("gradient_scaled", f"{which} times {spelling}", predict)


def _power(problem: Problem, power: float) -> float:
    return float(problem.sizes["k"] ** power)


def _constant(problem: Problem, factor: float) -> float:
    del problem
    return factor


def _times(
    problem: Problem, wrong: list[str], factor_of: Callable[[Problem], float]
) -> Bounded:
    exact, factor = _exact_of(problem), factor_of(problem)
    if problem.knobs["of"] not in wrong:
        return exact
    u = problem.scope.contract.precisions(problem.scope.dtype).unit
    size = abs(factor) * (abs(exact.output) + exact.bound)
    return Bounded(factor * exact.output, abs(factor) * exact.bound + 2 * u * size)


# -- stages in few bits


@hypothesis("gradients", 30, linear)
def narrowed(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients formed with rounded outputs or rounded gradients of states."""
    for to in formats(evidence):
        phrase = f"gradients formed with outputs {to.phrase}"
        saved = partial(differentiate, exchanged=Pullback(saved=to))
        inputs = evidence.scope.operator.names
        yield _on_integers("output_saved_rounded", phrase, inputs, saved)
    wrong = {probe.problem.knobs["of"] for probe in evidence.informative}
    if "query" in wrong or not evidence.scope.operator.causal:
        return
    for to in formats(evidence):
        for chunk in (1, *evidence.all_sizes):
            every = f"every {chunk} tokens" if chunk > 1 else "every token"
            phrase = f"gradients of a state {to.phrase} after {every}"
            carried = partial(carry_back, rounding=to, chunk=chunk)
            inputs = ("key", "value")
            yield _on_integers("gradient_of_state_rounded", phrase, inputs, carried)


def _on_integers(
    name: str,
    phrase: str,
    inputs: tuple[str, ...],
    predict: Callable[[Problem], Bounded],
) -> Deviation:
    """Return a deviation of the gradients of some inputs, known on integers only."""

    def on_integers(problem: Problem) -> Bounded:
        exact = _exact_of(problem)
        if problem.knobs["of"] not in inputs:
            return exact
        if problem.integers is not None:
            return predict(problem)
        # The order of the sums decides how reals round.
        return Bounded(exact.output, np.full_like(exact.bound, np.inf))

    return Deviation(name, phrase, on_integers, allow_unknown="on reals")


@hypothesis("gradients", 31)
def rounded_results(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients that are rounded when they are returned."""
    wrong = {probe.problem.knobs["of"] for probe in evidence.informative}
    for to in formats(evidence):

        def predict(problem: Problem, to: Format = to) -> Bounded:
            exact = _exact_of(problem)
            return rounded(exact, to) if problem.knobs["of"] in wrong else exact

        phrase = f"gradients of the {' and '.join(sorted(wrong))} {to.phrase}"
        yield Deviation("gradient_rounded", phrase, predict)

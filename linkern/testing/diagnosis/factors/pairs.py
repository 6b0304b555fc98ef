"""Scores of pairs of tokens, and the sums of them that a row is divided by."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from linkern.testing.diagnosis.factors.logs import Logs, Made, log_of
from linkern.testing.diagnosis.factors.places import Places
from linkern.testing.influence.maps import Index, Real
from linkern.testing.spec.operators import Operator

__all__ = ["carried_sums", "sums_of_pairs"]

# The most pairs of tokens of which scores are kept.
PAIRS = 2**23
# The weights of a pair of tokens by their score, where no feature map is declared.
_WEIGHTS: Mapping[str, Callable[[Real], Real]] = {
    "based": lambda x: 1 + x + x * x / 2,
    "rebased": lambda x: x * x,
}
# Those of features one or both of which lack a factor.
_OTHER_WEIGHTS: Mapping[str, Mapping[str, Callable[[Real], Real]]] = {
    "based": {
        "with x^2 / sqrt(2) in place of x^2 / 2": lambda x: (
            1 + x + x * x / np.sqrt(2.0)
        ),
        "with x^2 in place of x^2 / 2": lambda x: 1 + x + x * x,
    },
}


def sums_of_pairs(places: Places) -> Made:
    """Yield scores, numerators, and sums of these that a weight can be divided by."""
    inputs, sizes, problem = places.inputs, places.sizes, places.entries.problem
    pairs = sizes["b"] * sizes["h"] * sizes["t"] * sizes["s"]
    if not places.sourced or not {"query", "key"} <= inputs.keys() or pairs > PAIRS:
        return
    operator = problem.scope.operator
    weigh = _WEIGHTS.get(operator.name)

    def read(x: Real, row: Index, key: Index) -> Real:
        b, h = places.index["b"], places.index["h"]
        row, key = row.clip(0, x.shape[-2] - 1), key.clip(0, x.shape[-1] - 1)
        return np.asarray(x[b, h, row, key])

    def weights() -> Real:
        x = _scores(places)
        x = weigh(x) if weigh else x
        seen = np.tril(x) if operator.causal else x
        return np.stack([x, *(np.cumsum(each, axis=-1) for each in (seen, x))])

    every, sums, sums_of_all = problem.recalled("numerators", weights)
    row, at = places.row, places.key
    # A weight that leaks is one of a token behind the row.
    weight, itself = read(every, row, at), read(every, row, row)
    name = "numerator" if _weighs(operator) else "query[row] . key[source]"
    yield name, 2.5, partial(log_of, weight)
    for words, other in _OTHER_WEIGHTS.get(operator.name, {}).items():
        values = read(other(_scores(places)), row, at)
        yield f"(numerator {words})", 4.0, partial(log_of, values)
    if not problem.scope.normalised:
        return
    end = 0 * row + sizes["s"] - 1
    whole = read(sums, row, end)
    beyond_the_row = [("over all tokens", read(sums_of_all, row, end))]
    if places.chunk is not None:
        last = (row // places.chunk + 1) * places.chunk - 1
        beyond_the_row += [("up to the end of the chunk", read(sums_of_all, row, last))]
    for name, cost, values in (
        ("denominator", 2.0, whole),
        ("denominator[row - 1]", 3.5, read(sums, row - 1, end)),
        ("denominator[the last token]", 4.0, read(sums, end, end)),
        ("(denominator - numerator)", 3.5, whole - weight),
        ("(denominator + numerator)", 3.5, whole + weight),
        ("(denominator - numerator[row])", 3.5, whole - itself),
        ("(denominator + numerator[row])", 3.5, whole + itself),
        ("(denominator + numerator[row + 1])", 4.0, whole + read(every, row, row + 1)),
        *((f"sum of numerators {which}", 4.0, x) for which, x in beyond_the_row),
    ):
        yield name, cost, partial(log_of, values)
    for name, first, behind, cost in places.ranges():
        upto, before = (
            np.where(i > 0, read(sums, row, i - 1), 0.0) for i in (behind, first)
        )
        yield f"sum of numerators over {name}", cost, partial(log_of, upto - before)
    if places.chunk is None:
        return
    first, token = row // places.chunk * places.chunk, np.arange(sizes["s"])
    for which, place in (("first", 0), ("last", places.chunk - 1)):
        chosen = np.where(token % places.chunk == place, every, 0.0)
        lost = read(np.cumsum(chosen, axis=-1), row, first - 1)
        values = whole - np.where(first > 0, lost, 0.0)
        name = f"(denominator - numerators of the {which} tokens of earlier chunks)"
        yield name, 4.5, partial(log_of, values)


def carried_sums(places: Places) -> Made:
    """Yield sums of weights of a row, those of earlier chunks as they are carried.

    A kernel carries numerator and denominator from chunk to chunk, and may decay the
    denominator less, or make it of other features. Exact weights of a row sum to 1.
    """
    chunk, problem, length = places.chunk, places.entries.problem, places.sizes["t"]
    if not problem.scope.normalised or chunk is None or not places.sourced:
        return
    if places.sizes["s"] != length or length**2 > PAIRS:
        return
    call, token = problem.oracle_call, np.arange(length)
    earlier = token < token[:, None] // chunk * chunk

    def weights() -> Real:
        value = call.meant["value"]
        assert value is not None
        ones = np.broadcast_to(np.eye(length), (*value.shape[:-1], length))
        meant = {**call.meant, "value": ones}
        options = call.options()
        return call.operator.evaluate(meant, call.scale, options=options).output

    def total(ratio: Callable[[], Real]) -> Logs:
        every = problem.recalled("weights", weights)
        with np.errstate(all="ignore"):
            sums = (every * np.where(earlier, ratio(), 1.0)).sum(axis=-1)
        return places.at(log_of(sums), "bgt", places.row)

    for words, ratio in (*_undecayed(places, chunk), *_of_other_features(places)):
        text = f"(sum of weights, those of earlier chunks {words})"
        yield text, 5.0, partial(total, ratio)


def _undecayed(places: Places, chunk: int) -> Iterator[tuple[str, Callable[[], Real]]]:
    """Yield weights over exact ones, if the decays over some tokens are left out."""
    if places.axes.get("log_decay") != "bgt":
        return
    length, log_decay = places.sizes["t"], places.inputs["log_decay"]
    row, source = np.ogrid[:length, :length]
    first, end = row // chunk * chunk, (source // chunk + 1) * chunk
    end = end.clip(max=length)
    sums = np.zeros((*log_decay.shape[:2], length + 1))
    sums[..., 1:] = np.cumsum(log_decay, axis=-1)

    def without(begin: Index, stop: Index) -> Real:
        lacking = sums[..., stop] - sums[..., begin]
        return np.asarray(np.exp(np.where(end <= first, -lacking, 0.0)))

    for name, begin, stop in (
        ("the chunk up to the row", first, row + 1),
        ("the chunks between", end, first),
        ("the rest of the source's chunk", source + 1, end),
    ):
        every = np.broadcast_arrays(begin, stop, row + source)[:2]
        yield f"not decayed over {name}", partial(without, *every)


def _of_other_features(places: Places) -> Iterator[tuple[str, Callable[[], Real]]]:
    """Yield weights over exact ones, if features lack a factor."""
    name, groups = places.entries.problem.scope.operator.name, places.groups

    def over(other: Callable[[Real], Real]) -> Real:
        x = np.repeat(_scores(places), groups, axis=1)
        return np.asarray(other(x) / _WEIGHTS[name](x))

    for words, other in _OTHER_WEIGHTS.get(name, {}).items():
        yield words, partial(over, other)


def _scores(places: Places) -> Real:
    """Return products of queries and keys, of their features if there are some."""
    problem = places.entries.problem
    scope, scale = problem.scope, problem.oracle_call.scale

    def products() -> Real:
        query, key = places.inputs["query"], places.inputs["key"]
        if scope.operator.feature_map:
            query, key = scope.query_map.value(query), scope.key_map.value(key)
        x = np.einsum("bhtk,bhsk->bhts", query, key)
        return np.asarray(scale * x if _weighs(scope.operator) else x)

    return problem.recalled("scores", products)


def _weighs(operator: Operator) -> bool:
    """Return True if weights are functions of scores alone."""
    return bool(operator.feature_map) or operator.name in _WEIGHTS

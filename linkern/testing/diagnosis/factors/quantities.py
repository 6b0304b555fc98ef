"""Quantities at hand: the numbers of a problem that a weight can be a product of.

Each entry of an influence map has a row, a source, a head and perhaps channels. Every
input of the operator has a number at these places, and so have their neighbours, the
first and last tokens of their chunks, and the same places of another head. Log-decays
and factors of erasing also add up over ranges of tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from linkern.testing.diagnosis.factors.lookup import LEAST, Lookup
from linkern.testing.influence.maps import Flags, Index, InfluenceMap, Real

__all__ = ["Quantity", "part", "quantities", "signed_quantities"]

# The most pairs of tokens of which scores are kept.
PAIRS = 2**23
# The weights of a pair of tokens by their score, where no feature map is declared.
_WEIGHTS: dict[str, Callable[[Real], Real]] = {
    "based": lambda x: 1 + x + x * x / 2,
    "rebased": lambda x: x * x,
}


@dataclass(frozen=True, eq=False)
class Quantity:
    """One quantity, in all entries of a map.

    Parameters
    ----------
    log, sign : array (N,)
        The logarithm of its magnitude and its sign; NaN where there is none.
    cost : float
        How far it is to seek, in bits.
    """

    log: Real
    sign: Real
    cost: float = 0.0


def part(entries: InfluenceMap, chosen: Flags | Index) -> InfluenceMap:
    """Return the map of some entries."""
    return replace(
        entries,
        measured=entries.measured[chosen],
        exact=entries.exact[chosen],
        bound=entries.bound[chosen],
        likely=entries.likely[chosen],
        coordinates={name: x[chosen] for name, x in entries.coordinates.items()},
    )


def quantities(entries: InfluenceMap, chunk: int | None) -> dict[str, Real]:
    """Return the log magnitude of each quantity at hand, for every entry."""
    table = signed_quantities(entries, chunk)
    return {name: one.log for name, one in table.items()}


def signed_quantities(
    entries: InfluenceMap, chunk: int | None, only: frozenset[str] | None = None
) -> dict[str, Quantity]:
    """Return the quantities at hand by their names.

    Parameters
    ----------
    entries : InfluenceMap
        The entries.
    chunk : int or None
        The size of chunks, if one is known.
    only : frozenset of str, optional
        The names that are asked for; all by default.
    """
    table: dict[str, Quantity] = {}
    for name, cost, make in _everything(Lookup(entries, chunk)):
        if name not in table and (only is None or name in only):
            one = make()
            known = np.isfinite(one.log)
            if known.any():
                log, sign = (np.where(known, x, np.nan) for x in (one.log, one.sign))
                table[name] = Quantity(log, sign, cost)
    return table


def _number(values: Real) -> Quantity:
    with np.errstate(divide="ignore"):
        return Quantity(np.log(abs(values)), np.sign(values))


def _exponent(log: Real) -> Quantity:
    return Quantity(log, np.ones(log.shape))


Made = Iterator[tuple[str, float, Callable[[], Quantity]]]


def _everything(look: Lookup) -> Made:
    """Yield the names of quantities, what they cost, and their makers."""
    yield from _constants(look)
    yield from _inputs_at_tokens(look)
    yield from _slopes(look)
    yield from _products(look)
    yield from _ranges(look)
    yield from _counts(look)


def _constants(look: Lookup) -> Made:
    """Yield the quantities that all entries of a map share."""
    scale = look.entries.problem._oracle_call.scale
    numbers = {"scale": scale, "chunk": look.chunk}
    numbers |= {letter.upper(): look.sizes[letter] for letter in "kvt"}
    for name, number in numbers.items():
        if number is not None:
            values = np.full(look.row.shape, float(number))
            yield name, 3.0, partial(_number, values)


def _inputs_at_tokens(look: Lookup) -> Made:
    """Yield every input at the tokens near an entry, and at other heads."""
    for name, x in look.inputs.items():
        axes = look.axes(name)
        places: list[tuple[str, Index | None, float]] = [("", None, 2.0)]
        if {"t", "s"} & {*axes}:
            places = [(f"[{at}]", token, cost) for at, token, cost in look.near()]
        if "s" in axes and look.sourced:
            first = look.source * look.micro
            places = [
                (at, look.key if at == "[source]" else token * look.micro, cost)
                for at, token, cost in places
                if token is not None
            ]
            places += [("[first of the source's micro-steps]", first, 4.0)]
        make = partial(_input, look, x, axes, name == "log_decay")
        for at, token, cost in places:
            for label, head in look.heads.items() if {"g", "h"} & {*axes} else ():
                if head is None or at in ("", "[row]", "[source]"):
                    more = 0.0 if head is None else 2.0
                    yield name + at + label, cost + more, partial(make, token, head)


def _slopes(look: Lookup) -> Made:
    """Yield the slope of the feature map in the input that a gradient is of."""
    scope = look.entries.problem.scope
    name = look.entries.tensor.removeprefix("gradient of ").split(" ")[0]
    token = {"query": look.row, "key": look.key}.get(name)
    if scope.operator.feature_map and token is not None:
        x = look.inputs[name]
        feature_map = scope.query_map if name == "query" else scope.key_map
        slope = feature_map.pullback(x, np.ones(x.shape))
        make = partial(_input, look, slope, look.axes(name), False, token, None)
        yield "slope of the feature map", 2.0, make


def _input(
    look: Lookup, x: Real, axes: str, log: bool, token: Index | None, head: int | None
) -> Quantity:
    values = look.at(x, axes, token, head)
    return _exponent(values) if log else _number(values)


# -- products of queries and keys


def _weights(look: Lookup) -> Real | None:
    """Return the numerators of all pairs of tokens, where an operator has some."""
    problem = look.entries.problem
    scope, operator = problem.scope, problem.scope.operator
    pairs = look.sizes["b"] * look.sizes["h"] * look.sizes["t"] * look.sizes["s"]
    weigh = _WEIGHTS.get(operator.name)
    if pairs > PAIRS or not (weigh or operator.feature_map):
        return None

    def compute() -> Real:
        query, key = look.inputs["query"], look.inputs["key"]
        if operator.feature_map:
            query, key = scope.query_map.value(query), scope.key_map.value(key)
        scores = np.einsum("bhtk,bhsk->bhts", query, key)
        made = weigh(problem._oracle_call.scale * scores) if weigh else scores
        return np.asarray(made)

    return problem.recalled("numerators", compute)


def _products(look: Lookup) -> Made:
    """Yield the products of queries and keys, and what they are divided by."""
    scope = look.entries.problem.scope
    if not look.sourced or not {"query", "key"} <= look.inputs.keys():
        return
    yield "query[row] . key[source]", 2.5, partial(_score, look)
    every = _weights(look)
    if every is None:
        return
    x = np.tril(every) if scope.operator.causal else every
    total = np.pad(np.cumsum(x, axis=-1), ((0, 0),) * 3 + ((1, 0),))
    weight = _pair(look, x, look.row, look.key)
    # A weight that leaks is one of a token behind the row.
    yield "numerator", 2.5, partial(_number, _pair(look, every, look.row, look.key))
    if not scope.normalised:
        return
    end = total.shape[-1] - 1
    whole = _pair(look, total, look.row, 0 * look.row + end)
    itself = _pair(look, x, look.row, look.row)
    after = _pair(look, every, look.row, look.row + 1)
    full = _pair(look, every.sum(axis=-1, keepdims=True), look.row, 0 * look.row)
    last = _pair(look, total, 0 * look.row + look.sizes["t"] - 1, 0 * look.row + end)
    for name, cost, values in (
        ("denominator", 2.0, whole),
        ("(1 - weight)", 3.5, 1 - weight / whole),
        ("(denominator - numerator)", 3.5, whole - weight),
        ("(denominator + numerator)", 3.5, whole + weight),
        ("(denominator - numerator[row])", 3.5, whole - itself),
        ("(denominator + numerator[row])", 3.5, whole + itself),
        ("(denominator + numerator[row + 1])", 4.0, whole + after),
        ("sum of numerators over all tokens", 4.0, full),
        ("denominator[row - 1]", 3.5, _pair(look, total, look.row - 1, look.row)),
        ("denominator[the last token]", 4.0, last),
    ):
        yield name, cost, partial(_number, values)
    for name, first, behind, cost in look.spans():
        before, after = (_pair(look, total, look.row, i) for i in (first, behind))
        values = after - before
        yield f"sum of numerators over {name}", cost, partial(_number, values)


def _score(look: Lookup) -> Quantity:
    query, key = look.inputs["query"], look.inputs["key"]
    row, at = look.row, look.key
    real = (at >= 0) & (at < key.shape[-2]) & (row >= 0) & (row < query.shape[-2])
    row, at = np.where(real, row, 0), np.where(real, at, 0)
    b, h = look.places["b"], look.places["h"]
    scores = np.einsum("nk,nk->n", query[b, h, row], key[b, h, at])
    return _number(np.where(real, scores, np.nan))


def _pair(look: Lookup, x: Real, row: Index, key: Index) -> Real:
    row = np.where((row < 0) | (row >= x.shape[-2]), 0, row)
    key = key.clip(0, x.shape[-1] - 1)
    return np.asarray(x[look.places["b"], look.places["h"], row, key])


# -- ranges of tokens


def _ranges(look: Lookup) -> Made:
    """Yield sums of log-decays, and products of what is not erased, over tokens."""
    decay = look.inputs.get("log_decay")
    if decay is not None:
        axes = look.axes("log_decay")
        if "t" not in axes:
            place = axes.index("g") + 1
            spread = np.expand_dims(decay, place)
            decay = np.repeat(spread, look.sizes["t"], place)
            axes = axes.replace("g", "gt")
        for name, cost, make in _sums(look, decay, None, axes):
            yield f"sum of log_decay over {name}", cost, make
    kept = _kept(look)
    if kept is not None:
        text, x = kept
        with np.errstate(divide="ignore"):
            log = np.maximum(np.log(abs(x)), LEAST)
        for at, token, cost in look.near():
            make = partial(_input, look, x, "bgtk", False, token, None)
            yield f"{text}[{at}]", cost + 1, make
        for name, cost, make in _sums(look, log, x < 0, "bgtk"):
            yield f"product of {text} over {name}", cost + 1, make


def _kept(look: Lookup) -> tuple[str, Real] | None:
    """Return the factor of each channel that a token leaves of the memory."""
    x, operator = look.inputs, look.entries.problem.scope.operator
    if look.micro > 1 or not operator.erases or operator.erase_along != "key":
        return None
    key = np.repeat(x["key"], look.groups, axis=1)
    decay = np.exp(x.get("log_decay", np.zeros((1, 1, 1))))
    decay = decay if decay.ndim == key.ndim else decay[..., None]
    beta = x.get("beta", np.ones((1, 1, 1)))[..., None]
    decayed = "exp(log decay)" if "log_decay" in x else "1"
    match operator.name:
        case "gdn2":
            gate = x.get("erase_gate", np.ones(1))
            return "(1 - erase_gate key^2)", 1 - gate * key**2
        case "comba":
            other = np.repeat(x["auxiliary_key"], look.groups, axis=1)
            text = f"({decayed} - beta key auxiliary_key)"
            return text, decay - beta * key * other
        case "iplr" | "dplr":
            return f"({decayed} + a b)", decay + x["a"] * x["b"]
        case "rwkv7":
            removed = x["removal_rate"] * x["removal_key"] ** 2
            return f"({decayed} - removal_rate removal_key^2)", decay - removed
    return "(1 - beta key^2)", 1 - beta * key**2


def _sums(look: Lookup, x: Real, negative: Flags | None, axes: str) -> Made:
    """Yield sums of logarithms over ranges of tokens, with signs of products."""
    axis, heads = axes.index("t"), look.heads.items()
    tokens = np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    width = [(int(i == axis), 0) for i in range(x.ndim)]

    def total(x: Real) -> Real:
        return np.asarray(np.pad(np.cumsum(x, axis=axis), width))

    def over(x: Real, first: Index, end: Index, head: int | None) -> Real:
        first, end = (i.clip(0, len(tokens)) for i in (first, end))
        before, after = (look.at(x, axes, i, head) for i in (first, end))
        return np.where(end <= first, 0 * after, after - before)

    def make(
        sums: Real, signs: Real | None, first: Index, end: Index, head: int | None
    ) -> Quantity:
        log = over(sums, first, end, head)
        if signs is None:
            return _exponent(log)
        return Quantity(log, 1 - 2 * (over(signs, first, end, head) % 2))

    signs = None if negative is None else total(negative.astype(float))
    sums = total(x)
    for name, first, end, cost in look.spans():
        for label, head in heads:
            more = 0.0 if head is None else 2.0
            text = name + label
            yield text, cost + more, partial(make, sums, signs, first, end, head)
    if look.chunk is None or not look.sourced:
        return
    begin, end = np.maximum(look.source, -1) + 1, look.row + 1
    for place, label in ((0, "first"), (look.chunk - 1, "last")):
        marked = tokens % look.chunk == place
        sums = total(x * marked)
        signs = None if negative is None else total(marked * negative.astype(float))
        text = f"the {label} tokens of chunks in (source, row]"
        yield text, 5.0, partial(make, sums, signs, begin, end, None)


def _counts(look: Lookup) -> Made:
    """Yield numbers of tokens."""
    row, source, chunk = (
        look.row.astype(float),
        look.source.astype(float),
        look.chunk,
    )
    numbers = [("(row + 1)", 3.0, row + 1), ("(row + 2)", 4.0, row + 2)]
    numbers += [("row", 4.0, row), ("(T - row)", 4.5, look.sizes["t"] - row)]
    powers = []
    if look.sourced:
        apart = row - source
        numbers += [
            ("(source + 1)", 4.0, source + 1),
            ("(row - source)", 4.0, apart),
        ]
        numbers += [("(row - source + 1)", 4.0, apart + 1)]
        powers += [("e^(row - source)", 4.0, apart)]
    if chunk is not None:
        numbers += [("(place in the chunk + 1)", 5.0, row % chunk + 1)]
    if chunk is not None and look.sourced:
        edges = row // chunk - np.maximum(source, 0) // chunk
        powers += [("e^(chunk edges crossed)", 4.0, edges)]
    for name, cost, values in numbers:
        yield name, cost, partial(_number, values)
    for name, cost, values in powers:
        yield name, cost, partial(_exponent, values)

"""Quantities at hand: the numbers of a problem that a weight can be a product of.

Each entry of an influence map has a row, a source, a head and perhaps channels. Every
input of the operator has a number at these places, and so have their neighbours, the
first and last tokens of their chunks, and the same places of another head. Log-decays
and factors of erasing also add up over ranges of tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from linkern.testing.diagnosis.influence import Flags, Index, InfluenceMap, Real

__all__ = ["Quantity", "part", "quantities", "signed_quantities"]

# Decays that are not finite stand for those of which the exponential is 0.
LEAST = -1e4


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
    cost: float


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


def signed_quantities(entries: InfluenceMap, chunk: int | None) -> dict[str, Quantity]:
    """Return the quantities at hand by their names, the nearest ones first.

    Parameters
    ----------
    entries : InfluenceMap
        The entries.
    chunk : int or None
        The size of chunks, if one is known.
    """
    lookup = _Lookup(entries, chunk)
    table: dict[str, Quantity] = {}
    for name, one in (
        *lookup.constants(),
        *lookup.tokens(),
        *lookup.products(),
        *lookup.ranges(),
        *lookup.counts(),
    ):
        if np.isfinite(one.log).any():
            table.setdefault(name, one)
    return table


def _number(values: Real, cost: float) -> Quantity:
    """Return the quantity of some numbers."""
    with np.errstate(divide="ignore"):
        return _exponent(np.log(abs(values)), cost, np.sign(values))


def _exponent(log: Real, cost: float, sign: Real | None = None) -> Quantity:
    """Return the quantity of some logarithms."""
    known = np.isfinite(log)
    signs = np.ones(log.shape) if sign is None else sign
    return Quantity(np.where(known, log, np.nan), np.where(known, signs, np.nan), cost)


Named = Iterator[tuple[str, Quantity]]


@dataclass(frozen=True, eq=False)
class _Lookup:
    """The entries of a map and the inputs of its problem."""

    entries: InfluenceMap
    chunk: int | None

    @cached_property
    def inputs(self) -> dict[str, Real]:
        """The inputs as the oracle takes them, those by default among them."""
        problem = self.entries.problem
        meant = problem._oracle_call.meant
        defaults = problem.scope.operator.defaults
        made = {name: make(meant) for name, make in defaults.items()}
        known = {**made, **{name: x for name, x in meant.items() if x is not None}}
        if "log_decay" in known:
            known["log_decay"] = np.maximum(known["log_decay"], LEAST)
        return known

    def axes(self, name: str) -> str:
        """Return the letters of the axes of an input."""
        operator = self.entries.problem.scope.operator
        if name in operator.names:
            return operator.input(name).axes[-self.inputs[name].ndim :]
        return "g"

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by its letter."""
        return self.entries.problem.sizes

    @cached_property
    def micro(self) -> int:
        """The keys of each query."""
        each = self.sizes["s"] // max(self.sizes["t"], 1)
        return each if self.entries.problem.scope.operator.micro_steps else 1

    @cached_property
    def row(self) -> Index:
        """The rows; the last token where a result comes after all."""
        last = np.full(self.entries.exact.shape, self.sizes["t"] - 1)
        return self.entries.coordinates.get("row", last)

    @cached_property
    def source(self) -> Index:
        """The sources; -2 where there is none."""
        none = np.full(self.entries.exact.shape, -2)
        return self.entries.coordinates.get("source", none)

    @cached_property
    def key(self) -> Index:
        """The places of the sources among the keys."""
        step = self.entries.coordinates.get("micro-step", 0)
        return np.asarray(self.source * self.micro + step)

    @cached_property
    def places(self) -> dict[str, Index]:
        """The index of every entry along each axis but those of tokens."""
        coordinates, problem = self.entries.coordinates, self.entries.problem
        zero = np.zeros(self.entries.exact.shape, np.int64)
        copies = problem.knobs.get("copies", 1)
        copy = coordinates.get("copy", self.key // self.sizes["v"] % copies)
        head = coordinates.get("head", zero)
        groups = self.sizes["g"] // max(self.sizes["h"], 1)
        batch = coordinates.get("batch", zero) * copies + copy
        places = {"b": batch, "g": head, "h": head // groups}
        if "value channel" in coordinates:
            places["v"] = coordinates["value channel"]
        if "key channel" in coordinates:
            places["k"] = coordinates["key channel"]
        elif "key" in self.inputs and "source" in coordinates:
            x = self.inputs["key"]
            if "k" in self.axes("key") and ((x != 0).sum(axis=-1) <= 1).all():
                at = self.key.clip(0, x.shape[-2] - 1)
                channels = abs(x).argmax(axis=-1)
                places["k"] = channels[places["b"], places["h"], at]
        return places

    def token_places(self) -> Iterator[tuple[str, Index, float]]:
        """Yield the tokens near an entry by their names."""
        row, source = self.row, self.source
        yield "row", row, 2.0
        sourced = "source" in self.entries.coordinates
        if sourced:
            yield "source", np.where(source < 0, -9, source), 2.0
        if "token" in self.entries.coordinates:
            yield "token", self.entries.coordinates["token"], 2.0
        if self.chunk is not None:
            first = row // self.chunk * self.chunk
            yield "first of the chunk", first, 3.0
            last = first + self.chunk - 1
            yield "last of the chunk before", first - 1, 3.5
            yield "last of the chunk", np.minimum(last, self.sizes["t"] - 1), 3.5
        if sourced:
            yield "source + 1", source + 1, 3.0
        yield "row - 1", row - 1, 3.0
        yield "row + 1", row + 1, 3.5
        if sourced:
            yield "source - 1", np.where(source < 0, -9, source - 1), 3.5
        if self.chunk is not None and sourced:
            first = np.where(source < 0, -9, source // self.chunk * self.chunk)
            last = np.minimum(first + self.chunk - 1, self.sizes["t"] - 1)
            yield "first of the source's chunk", first, 4.0
            yield "last of the source's chunk", last, 4.0
        yield "0", np.zeros_like(row), 4.0
        yield "the last token", np.full_like(row, self.sizes["t"] - 1), 4.0

    def at(self, x: Real, axes: str, token: Index | None, head: int | None) -> Real:
        """Return the numbers of an input at the places of the entries.

        NaN where there is no such token; all NaN where the entries have no channel.
        """
        places = dict(self.places)
        if token is not None:
            places |= {"t": token, "s": token}
        if head is not None:
            groups = self.sizes["g"] // max(self.sizes["h"], 1)
            places["g"] = np.full_like(self.row, head)
            places["h"] = places["g"] // groups
        shape = self.row.shape
        if not set(axes) <= places.keys():
            return np.full(shape, np.nan)
        index = [np.broadcast_to(places[letter], shape) for letter in axes]
        inside = np.ones(shape, bool)
        for i, size in zip(index, x.shape, strict=True):
            inside &= (i >= 0) & (i < size)
        safe = tuple(np.where(inside, i, 0) for i in index)
        return np.where(inside, x[safe], np.nan)

    def constants(self) -> Named:
        """Yield the quantities that all entries of a map share."""
        problem = self.entries.problem
        for name, number, cost in (
            ("scale", problem._oracle_call.scale, 1.0),
            ("K", self.sizes["k"], 2.0),
            ("V", self.sizes["v"], 3.0),
            ("T", self.sizes["t"], 3.0),
            ("chunk", self.chunk, 3.0),
        ):
            if number is not None:
                yield name, _number(np.full(self.row.shape, float(number)), cost)

    def tokens(self) -> Named:
        """Yield every input at the tokens near an entry, and at other heads."""
        heads = {"head 0": 0, "the last head": self.sizes["g"] - 1}
        for name, x in self.inputs.items():
            axes, exponent = self.axes(name), name == "log_decay"
            make = _exponent if exponent else _number
            others = heads if {"g", "h"} & {*axes} and self.sizes["g"] > 1 else {}
            places: list[tuple[str, Index | None, float]] = [("", None, 2.0)]
            if {"t", "s"} & {*axes}:
                near = self.token_places()
                places = [(f"[{place}]", at, cost) for place, at, cost in near]
            if "s" in axes:
                keys = ((p, self._keys(p, at), cost) for p, at, cost in places)
                places = [*keys]
                if self.micro > 1:
                    first = self.source * self.micro
                    places += [("[first of the source's micro-steps]", first, 4.0)]
            for place, at, cost in places:
                yield name + place, make(self.at(x, axes, at, None), cost)
                if place in ("", "[row]", "[source]"):
                    for label, head in others.items():
                        values = self.at(x, axes, at, head)
                        yield f"{name}{place} of {label}", make(values, cost + 2)

    def _keys(self, place: str, token: Index | None) -> Index:
        """Return the places of tokens among the keys, of which each may have many."""
        assert token is not None
        return self.key if place == "[source]" else token * self.micro

    def products(self) -> Named:
        """Yield the products of queries and keys, and what they are divided by."""
        if not {"query", "key"} <= self.inputs.keys():
            return
        query, key = self.inputs["query"], self.inputs["key"]
        scope, known = self.entries.problem.scope, self.entries.coordinates
        if "key channel" in known or "source" not in known:
            return
        b, h = self.places["b"], self.places["h"]
        rows, keys = (
            np.broadcast_to(at.clip(0, x.shape[-2] - 1), self.row.shape)
            for at, x in ((self.row, query), (self.key, key))
        )
        real = (self.key >= 0) & (self.key < key.shape[-2])
        scores = np.einsum("nk,nk->n", query[b, h, rows], key[b, h, keys])
        scores = np.where(real, scores, np.nan)
        yield "query[row] . key[source]", _number(scores, 2.5)
        scale = self.entries.problem._oracle_call.scale
        weigh = _WEIGHTS.get(scope.operator.name)
        if scope.operator.feature_map:
            query, key = scope.query_map.value(query), scope.key_map.value(key)
            scale, weigh = 1.0, np.asarray
        if weigh is None:
            return
        weights = weigh(scale * np.einsum("bhtk,bhsk->bhts", query, key))
        if scope.operator.causal:
            weights = np.tril(weights)
        numerators = np.where(real, weights[b, h, rows, keys], np.nan)
        yield "numerator", _number(numerators, 2.5)
        if scope.normalised:
            sums = weights.sum(axis=-1)
            before = np.where(rows > 0, sums[b, h, rows - 1], np.nan)
            yield "denominator", _number(sums[b, h, rows], 2.0)
            yield "denominator[row - 1]", _number(before, 3.5)
            yield "denominator[the last token]", _number(sums[b, h, -1], 4.0)

    def ranges(self) -> Named:
        """Yield sums of log-decays, and products of what is not erased, over tokens."""
        x, tokens = self.inputs.get("log_decay"), self.sizes["t"]
        if x is not None:
            axes = self.axes("log_decay")
            if "t" not in axes:
                x = np.repeat(
                    np.expand_dims(x, axes.index("g") + 1),
                    tokens,
                    -1 - (len(axes) - 1 - axes.index("g")),
                )
                axes = axes.replace("g", "gt")
            for name, log, _, cost in self._sums(x, None, axes):
                yield f"sum of log_decay over {name}", _exponent(log, cost)
        kept = self._kept()
        if kept is not None:
            name, factor = kept
            with np.errstate(divide="ignore"):
                x = np.maximum(np.log(abs(factor)), LEAST)
            for place, token, cost in self.token_places():
                values = self.at(factor, "bgtk", token, None)
                yield f"{name}[{place}]", _number(values, cost + 1)
            for text, log, sign, cost in self._sums(x, factor < 0, "bgtk"):
                yield f"product of {name} over {text}", _exponent(log, cost + 1, sign)

    def _kept(self) -> tuple[str, Real] | None:
        """Return the factor of each channel that a token leaves of the memory."""
        x, groups = self.inputs, self.sizes["g"] // max(self.sizes["h"], 1)
        operator = self.entries.problem.scope.operator
        if self.micro > 1 or not operator.erases or operator.erase_along != "key":
            return None
        key = np.repeat(x["key"], groups, axis=1)
        decay = np.exp(x.get("log_decay", np.zeros((1, 1, 1))))
        decay = decay if decay.ndim == key.ndim else decay[..., None]
        beta = x.get("beta", np.ones((1, 1, 1)))[..., None]
        decayed = "exp(log decay)" if "log_decay" in x else "1"
        match operator.name:
            case "gdn2":
                gate = x.get("erase_gate", np.ones(1))
                return "(1 - erase_gate key^2)", 1 - gate * key**2
            case "comba":
                other = np.repeat(x["auxiliary_key"], groups, axis=1)
                name = f"({decayed} - beta key auxiliary_key)"
                return name, decay - beta * key * other
            case "iplr" | "dplr":
                return f"({decayed} + a b)", decay + x["a"] * x["b"]
            case "rwkv7":
                removed = x["removal_rate"] * x["removal_key"] ** 2
                return f"({decayed} - removal_rate removal_key^2)", decay - removed
        return "(1 - beta key^2)", 1 - beta * key**2

    def _spans(self) -> Iterator[tuple[str, Index, Index, float]]:
        """Yield ranges of tokens: their names, first tokens and ends."""
        row, source, chunk = self.row, np.maximum(self.source, -1), self.chunk
        start, end, sourced = 0 * row, 0 * row + self.sizes["t"], self.source.max() > -2
        if sourced:
            yield "(source, row]", source + 1, row + 1, 3.0
        yield "the tokens up to the row", start, row + 1, 4.0
        yield "the tokens after the row", row + 1, end, 4.5
        if sourced:
            yield "the tokens up to the source", start, source + 1, 4.5
        if chunk is None:
            return
        first = row // chunk * chunk
        yield "the chunk up to the row", first, row + 1, 3.5
        yield "the chunk", first, first + chunk, 4.0
        yield "the chunk before", first - chunk, first, 4.0
        yield "the chunk before the row", first, row, 4.0
        yield "the rest of the chunk", row + 1, first + chunk, 4.0
        if sourced:
            begin = source // chunk * chunk
            after = np.where(source < 0, 0, begin + chunk)
            yield "the source's chunk", np.maximum(begin, 0), after, 4.0
            yield "the rest of the source's chunk", source + 1, after, 4.0
            yield "the chunks between", after, first, 4.0
            yield "the tokens from the source to the chunk", source + 1, first, 4.0

    def _sums(
        self, x: Real, negative: Flags | None, axes: str
    ) -> Iterator[tuple[str, Real, Real, float]]:
        """Yield sums of logarithms over ranges of tokens, and the signs of products."""
        axis, last = axes.index("t"), self.sizes["t"]
        spans: list[tuple[str, Index, Index, float, int | None]]
        spans = [(*span, None) for span in self._spans()]
        chunk = self.chunk or 1
        if self.chunk is not None and self.source.max() > -2:
            begin, end = np.maximum(self.source, -1) + 1, self.row + 1
            for at, name in ((0, "first"), (chunk - 1, "last")):
                text = f"the {name} tokens of chunks in (source, row]"
                spans.append((text, begin, end, 5.0, at))
        tokens = np.arange(last).reshape((-1,) + (1,) * (x.ndim - axis - 1))
        width = [(int(i == axis), 0) for i in range(x.ndim)]

        def over(x: Real, first: Index, end: Index, place: int | None) -> Real:
            marked = x if place is None else x * (tokens % chunk == place)
            total = np.pad(np.cumsum(marked, axis=axis), width)
            first, end = first.clip(0, last), end.clip(0, last)
            head = self.at(total, axes, first, None)
            difference = self.at(total, axes, end, None) - head
            return np.where(end <= first, 0.0, difference)

        for name, first, end, cost, place in spans:
            sign = np.ones(self.row.shape)
            if negative is not None and negative.any():
                sign = 1 - 2 * (over(negative.astype(float), first, end, place) % 2)
            yield name, over(x, first, end, place), sign, cost

    def counts(self) -> Named:
        """Yield numbers of tokens."""
        row, source = self.row.astype(float), self.source.astype(float)
        yield "(row + 1)", _number(row + 1, 3.0)
        yield "(row + 2)", _number(row + 2, 4.0)
        yield "row", _number(row, 4.0)
        yield "(T - row)", _number(self.sizes["t"] - row, 4.5)
        sourced = self.source.max() > -2
        if sourced:
            yield "(source + 1)", _number(source + 1, 4.0)
            yield "(row - source)", _number(row - source, 4.0)
            yield "(row - source + 1)", _number(row - source + 1, 4.0)
        if self.chunk is not None:
            yield "(place in the chunk + 1)", _number(row % self.chunk + 1, 5.0)
        if self.chunk is not None and sourced:
            edges = row // self.chunk - np.maximum(source, 0) // self.chunk
            yield "2^(chunk edges crossed)", _exponent(edges * np.log(2.0), 5.0)


# The weights of a pair of tokens by their score, where no feature map is declared.
_WEIGHTS: dict[str, Callable[[Real], Real]] = {
    "based": lambda x: 1 + x + x * x / 2,
    "rebased": lambda x: x * x,
}

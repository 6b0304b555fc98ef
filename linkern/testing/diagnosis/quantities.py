"""Quantities at hand: the numbers of a problem that a weight can be a product of.

Each entry of an influence map has a row, a source, a head and perhaps channels. Every
input of the operator has a number at these places, and so have their neighbours, the
first and last tokens of their chunks, and the same places of another head. Log-decays
and factors of erasing also add up over ranges of tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from linkern.testing.diagnosis.influence import Flags, Index, InfluenceMap, Real

__all__ = ["Quantity", "part", "quantities", "signed_quantities"]

# The logarithm of a decay to zero, and of a factor that is zero.
LEAST = -1e4
# The most pairs of tokens of which scores are kept.
PAIRS = 2**23
# No token.
NOWHERE = -9
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
    for name, cost, make in _Lookup(entries, chunk).everything():
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


@dataclass(frozen=True, eq=False)
class _Lookup:
    """The entries of a map, and numbers of its problem at their places."""

    entries: InfluenceMap
    chunk: int | None

    def everything(self) -> Made:
        """Yield the names of quantities, what they cost, and their makers."""
        yield from self.constants()
        yield from self.inputs_at_tokens()
        yield from self.products()
        yield from self.ranges()
        yield from self.counts()

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
    def groups(self) -> int:
        """The heads of values for each head of keys."""
        return self.sizes["g"] // max(self.sizes["h"], 1)

    @cached_property
    def micro(self) -> int:
        """The keys of each query."""
        each = self.sizes["s"] // max(self.sizes["t"], 1)
        return each if self.entries.problem.scope.operator.micro_steps else 1

    @cached_property
    def row(self) -> Index:
        """The rows; the last token where a result comes after all of them."""
        last = np.full(self.entries.exact.shape, self.sizes["t"] - 1)
        return self.entries.coordinates.get("row", last)

    @cached_property
    def source(self) -> Index:
        """The sources: `NOWHERE` where there are none."""
        none = np.full(self.entries.exact.shape, NOWHERE)
        return self.entries.coordinates.get("source", none)

    @cached_property
    def sourced(self) -> bool:
        """True if some entries have a source."""
        return bool(self.source.max(initial=NOWHERE) > NOWHERE)

    @cached_property
    def key(self) -> Index:
        """The places of the sources among the keys."""
        step = self.entries.coordinates.get("micro-step", 0)
        return np.asarray(self.source * self.micro + step)

    @cached_property
    def places(self) -> dict[str, Index]:
        """The index of every entry along each axis but those of tokens."""
        known = self.entries.coordinates
        zero = np.zeros(self.row.shape, np.int64)
        head = known.get("head", zero)
        places = {"b": known.get("batch", zero), "g": head, "h": head // self.groups}
        names = {"k": "key channel", "v": "value channel", "m": "slot", "l": "level"}
        return places | {x: known[name] for x, name in names.items() if name in known}

    def near(self) -> Iterator[tuple[str, Index, float]]:
        """Yield the tokens near an entry by their names."""
        row, last = self.row, self.sizes["t"] - 1
        source = np.where(self.source < 0, NOWHERE, self.source)
        yield "row", row, 2.0
        if self.sourced:
            yield "source", source, 2.0
            yield "source + 1", source + 1, 3.0
            yield "source - 1", source - 1, 3.5
        if "written" in self.entries.coordinates:
            yield "written", self.entries.coordinates["written"], 2.0
        yield "row - 1", row - 1, 3.0
        yield "row + 1", row + 1, 3.5
        yield "0", 0 * row, 4.0
        yield "the last token", 0 * row + last, 4.0
        chunk = self.chunk
        if chunk is None:
            return
        first = row // chunk * chunk
        yield "first of the chunk", first, 3.0
        yield "last of the chunk before", first - 1, 3.5
        yield "last of the chunk", np.minimum(first + chunk - 1, last), 3.5
        if self.sourced:
            first = np.where(source < 0, NOWHERE, source // chunk * chunk)
            end = np.where(source < 0, NOWHERE, first + chunk - 1)
            yield "first of the source's chunk", first, 4.0
            yield "last of the source's chunk", np.minimum(end, last), 4.0

    def at(
        self, x: Real, axes: str, token: Index | None = None, head: int | None = None
    ) -> Real:
        """Return numbers at the places of the entries; NaN where there is no place."""
        places = dict(self.places)
        if token is not None:
            places |= {"t": token, "s": token}
        if head is not None:
            places |= {
                "g": 0 * self.row + head,
                "h": 0 * self.row + head // self.groups,
            }
        if not set(axes) <= places.keys():
            return np.full(self.row.shape, np.nan)
        inside = np.ones(self.row.shape, bool)
        for letter, size in zip(axes, x.shape, strict=True):
            inside &= (places[letter] >= 0) & (places[letter] < size)
        safe = tuple(np.where(inside, places[letter], 0) for letter in axes)
        return np.where(inside, x[safe], np.nan)

    @cached_property
    def heads(self) -> dict[str, int | None]:
        """The head of an entry and others, by what is appended to a name."""
        last = self.sizes["g"] - 1
        others = {" of head 0": 0, " of the last head": last} if last else {}
        return {"": None, **others}

    def constants(self) -> Made:
        """Yield the quantities that all entries of a map share."""
        scale = self.entries.problem._oracle_call.scale
        numbers = {"scale": scale, "chunk": self.chunk}
        numbers |= {letter.upper(): self.sizes[letter] for letter in "kvt"}
        for name, number in numbers.items():
            if number is not None:
                values = np.full(self.row.shape, float(number))
                yield name, 3.0, partial(_number, values)

    def inputs_at_tokens(self) -> Made:
        """Yield every input at the tokens near an entry, and at other heads."""
        for name, x in self.inputs.items():
            axes = self.axes(name)
            places: list[tuple[str, Index | None, float]] = [("", None, 2.0)]
            if {"t", "s"} & {*axes}:
                places = [(f"[{at}]", token, cost) for at, token, cost in self.near()]
            if "s" in axes and self.sourced:
                first = self.source * self.micro
                places = [
                    (at, self.key if at == "[source]" else token * self.micro, cost)
                    for at, token, cost in places
                    if token is not None
                ]
                places += [("[first of the source's micro-steps]", first, 4.0)]
            make = partial(self._input, x, axes, name == "log_decay")
            for at, token, cost in places:
                for label, head in self.heads.items() if {"g", "h"} & {*axes} else ():
                    if head is None or at in ("", "[row]", "[source]"):
                        more = 0.0 if head is None else 2.0
                        yield name + at + label, cost + more, partial(make, token, head)

    def _input(
        self, x: Real, axes: str, log: bool, token: Index | None, head: int | None
    ) -> Quantity:
        values = self.at(x, axes, token, head)
        return _exponent(values) if log else _number(values)

    # -- products of queries and keys

    @cached_property
    def weights(self) -> Real | None:
        """The numerators of all pairs of tokens, where an operator has some."""
        problem = self.entries.problem
        scope, operator = problem.scope, problem.scope.operator
        pairs = self.sizes["b"] * self.sizes["h"] * self.sizes["t"] * self.sizes["s"]
        weigh = _WEIGHTS.get(operator.name)
        if pairs > PAIRS or not (weigh or operator.feature_map):
            return None

        def compute() -> Real:
            query, key = self.inputs["query"], self.inputs["key"]
            if operator.feature_map:
                query, key = scope.query_map.value(query), scope.key_map.value(key)
            scores = np.einsum("bhtk,bhsk->bhts", query, key)
            made = weigh(problem._oracle_call.scale * scores) if weigh else scores
            return np.asarray(made)

        return problem.recalled("numerators", compute)

    def products(self) -> Made:
        """Yield the products of queries and keys, and what they are divided by."""
        scope = self.entries.problem.scope
        if not self.sourced or not {"query", "key"} <= self.inputs.keys():
            return
        yield "query[row] . key[source]", 2.5, self._score
        if self.weights is None:
            return
        every = self.weights
        x = np.tril(every) if scope.operator.causal else every
        total = np.pad(np.cumsum(x, axis=-1), ((0, 0),) * 3 + ((1, 0),))
        weight = self._pair(x, self.row, self.key)
        yield "numerator", 2.5, partial(_number, weight)
        if not scope.normalised:
            return
        end = total.shape[-1] - 1
        whole = self._pair(total, self.row, 0 * self.row + end)
        itself = self._pair(x, self.row, self.row)
        after = self._pair(every, self.row, self.row + 1)
        full = self._pair(every.sum(axis=-1, keepdims=True), self.row, 0 * self.row)
        last = self._pair(total, 0 * self.row + self.sizes["t"] - 1, 0 * self.row + end)
        for name, cost, values in (
            ("denominator", 2.0, whole),
            ("(1 - weight)", 3.5, 1 - weight / whole),
            ("(denominator - numerator)", 3.5, whole - weight),
            ("(denominator + numerator)", 3.5, whole + weight),
            ("(denominator - numerator[row])", 3.5, whole - itself),
            ("(denominator + numerator[row])", 3.5, whole + itself),
            ("(denominator + numerator[row + 1])", 4.0, whole + after),
            ("sum of numerators over all tokens", 4.0, full),
            ("denominator[row - 1]", 3.5, self._pair(total, self.row - 1, self.row)),
            ("denominator[the last token]", 4.0, last),
        ):
            yield name, cost, partial(_number, values)
        for name, first, behind, cost in self._spans():
            before, after = (self._pair(total, self.row, i) for i in (first, behind))
            values = after - before
            yield f"sum of numerators over {name}", cost, partial(_number, values)

    def _score(self) -> Quantity:
        query, key = self.inputs["query"], self.inputs["key"]
        row, at = self.row, self.key
        real = (at >= 0) & (at < key.shape[-2]) & (row >= 0) & (row < query.shape[-2])
        row, at = np.where(real, row, 0), np.where(real, at, 0)
        b, h = self.places["b"], self.places["h"]
        scores = np.einsum("nk,nk->n", query[b, h, row], key[b, h, at])
        return _number(np.where(real, scores, np.nan))

    def _pair(self, x: Real, row: Index, key: Index) -> Real:
        row = np.where((row < 0) | (row >= x.shape[-2]), 0, row)
        key = key.clip(0, x.shape[-1] - 1)
        return np.asarray(x[self.places["b"], self.places["h"], row, key])

    # -- ranges of tokens

    def ranges(self) -> Made:
        """Yield sums of log-decays, and products of what is not erased, over tokens."""
        decay = self.inputs.get("log_decay")
        if decay is not None:
            axes = self.axes("log_decay")
            if "t" not in axes:
                place = axes.index("g") + 1
                spread = np.expand_dims(decay, place)
                decay = np.repeat(spread, self.sizes["t"], place)
                axes = axes.replace("g", "gt")
            for name, cost, make in self._sums(decay, None, axes):
                yield f"sum of log_decay over {name}", cost, make
        kept = self._kept()
        if kept is not None:
            text, x = kept
            with np.errstate(divide="ignore"):
                log = np.maximum(np.log(abs(x)), LEAST)
            for at, token, cost in self.near():
                make = partial(self._input, x, "bgtk", False, token, None)
                yield f"{text}[{at}]", cost + 1, make
            for name, cost, make in self._sums(log, x < 0, "bgtk"):
                yield f"product of {text} over {name}", cost + 1, make

    def _kept(self) -> tuple[str, Real] | None:
        """Return the factor of each channel that a token leaves of the memory."""
        x, operator = self.inputs, self.entries.problem.scope.operator
        if self.micro > 1 or not operator.erases or operator.erase_along != "key":
            return None
        key = np.repeat(x["key"], self.groups, axis=1)
        decay = np.exp(x.get("log_decay", np.zeros((1, 1, 1))))
        decay = decay if decay.ndim == key.ndim else decay[..., None]
        beta = x.get("beta", np.ones((1, 1, 1)))[..., None]
        decayed = "exp(log decay)" if "log_decay" in x else "1"
        match operator.name:
            case "gdn2":
                gate = x.get("erase_gate", np.ones(1))
                return "(1 - erase_gate key^2)", 1 - gate * key**2
            case "comba":
                other = np.repeat(x["auxiliary_key"], self.groups, axis=1)
                text = f"({decayed} - beta key auxiliary_key)"
                return text, decay - beta * key * other
            case "iplr" | "dplr":
                return f"({decayed} + a b)", decay + x["a"] * x["b"]
            case "rwkv7":
                removed = x["removal_rate"] * x["removal_key"] ** 2
                return f"({decayed} - removal_rate removal_key^2)", decay - removed
        return "(1 - beta key^2)", 1 - beta * key**2

    def _spans(self) -> Iterator[tuple[str, Index, Index, float]]:
        """Yield ranges of tokens: their names, first tokens and ends."""
        row, chunk, known = self.row, self.chunk, self.entries.coordinates
        source, start, end = np.maximum(self.source, -1), 0 * row, 0 * row
        end = end + self.sizes["t"]
        if self.sourced:
            yield "(source, row]", source + 1, row + 1, 3.0
            yield "the tokens up to the source", start, source + 1, 4.5
        if "written" in known:
            written = np.maximum(known["written"], -1)
            yield "(written, row]", written + 1, row + 1, 3.0
            yield "(written, source]", written + 1, source + 1, 3.0
        yield "the tokens up to the row", start, row + 1, 4.0
        yield "the tokens after the row", row + 1, end, 4.5
        if chunk is None:
            return
        first = row // chunk * chunk
        yield "the chunk up to the row", first, row + 1, 3.5
        yield "the chunk", first, first + chunk, 4.0
        yield "the chunk before", first - chunk, first, 4.0
        yield "the chunk before the row", first, row, 4.0
        yield "the rest of the chunk", row + 1, first + chunk, 4.0
        if self.sourced:
            begin = source // chunk * chunk
            after = np.where(source < 0, 0, begin + chunk)
            yield "the source's chunk", np.maximum(begin, 0), after, 4.0
            yield "the rest of the source's chunk", source + 1, after, 4.0
            yield "the chunks between", after, first, 4.0
            yield "the tokens from the source to the chunk", source + 1, first, 4.0

    def _sums(self, x: Real, negative: Flags | None, axes: str) -> Made:
        """Yield sums of logarithms over ranges of tokens, with signs of products."""
        axis, heads = axes.index("t"), self.heads.items()
        tokens = np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - axis - 1))
        width = [(int(i == axis), 0) for i in range(x.ndim)]

        def total(x: Real) -> Real:
            return np.asarray(np.pad(np.cumsum(x, axis=axis), width))

        def over(x: Real, first: Index, end: Index, head: int | None) -> Real:
            first, end = (i.clip(0, len(tokens)) for i in (first, end))
            before, after = (self.at(x, axes, i, head) for i in (first, end))
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
        for name, first, end, cost in self._spans():
            for label, head in heads:
                more = 0.0 if head is None else 2.0
                text = name + label
                yield text, cost + more, partial(make, sums, signs, first, end, head)
        if self.chunk is None or not self.sourced:
            return
        begin, end = np.maximum(self.source, -1) + 1, self.row + 1
        for place, label in ((0, "first"), (self.chunk - 1, "last")):
            marked = tokens % self.chunk == place
            sums = total(x * marked)
            signs = None if negative is None else total(marked * negative.astype(float))
            text = f"the {label} tokens of chunks in (source, row]"
            yield text, 5.0, partial(make, sums, signs, begin, end, None)

    def counts(self) -> Made:
        """Yield numbers of tokens."""
        row, source, chunk = (
            self.row.astype(float),
            self.source.astype(float),
            self.chunk,
        )
        numbers = [("(row + 1)", 3.0, row + 1), ("(row + 2)", 4.0, row + 2)]
        numbers += [("row", 4.0, row), ("(T - row)", 4.5, self.sizes["t"] - row)]
        powers = []
        if self.sourced:
            apart = row - source
            numbers += [
                ("(source + 1)", 4.0, source + 1),
                ("(row - source)", 4.0, apart),
            ]
            numbers += [("(row - source + 1)", 4.0, apart + 1)]
            powers += [("e^(row - source)", 4.0, apart)]
        if chunk is not None:
            numbers += [("(place in the chunk + 1)", 5.0, row % chunk + 1)]
        if chunk is not None and self.sourced:
            edges = row // chunk - np.maximum(source, 0) // chunk
            powers += [("e^(chunk edges crossed)", 4.0, edges)]
        for name, cost, values in numbers:
            yield name, cost, partial(_number, values)
        for name, cost, values in powers:
            yield name, cost, partial(_exponent, values)

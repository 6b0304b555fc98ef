"""Views of delta rules: what rows erase of each source, and what they read of it.

Where each key has one channel, the weights ``W`` between tokens of a channel are a
product ``P (1 + A)^-1``: ``P`` is what a row reads of what a source has written, and
``A`` what it erases of it, both with the decays between the two. A weight is a sum over
all ways from its source to its row, so that a fault in one of both is wrong in weights
by no factor; in ``A`` or in ``P`` it is wrong once, where it is. A factor of what a
token writes is in a column of both, and is told by its own row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from linkern.testing.diagnosis.factors.places import places_of
from linkern.testing.influence.maps import Index, InfluenceMap, Real

__all__ = ["erased", "read", "written"]

# Coordinates of the weights of a call that is neither cut nor packed.
OF_WEIGHTS = {"row", "source", "batch", "head", "value channel", "key channel"}
# No entry.
MISSING = -1


@dataclass(frozen=True, eq=False)
class _Channel:
    """Weights between the tokens of a channel, and their entries in the map.

    Parameters
    ----------
    entries : array (n, n)
        The entry of each row and source; that of the token itself ahead of it.
    measured, exact, bound, likely, reads : array (n, n)
        The weights, the largest errors, and ``P``.
    """

    entries: Index
    measured: Real
    exact: Real
    bound: Real
    likely: Real
    reads: Real


Term = Callable[[_Channel], tuple[Real, ...]]


def erased(one: InfluenceMap) -> InfluenceMap | None:
    """Return what rows erase of each source, if rows read what was written.

    None if weights are no products, if a token is wrong in its own row or in earlier
    ones or has no weight there, or if the map lacks sources.
    """
    return _view(one, "erase of each source by each row", _erases, own=False)


def read(one: InfluenceMap) -> InfluenceMap | None:
    """Return what rows read of what each source has written, if that is right.

    None where `erased` is; but a token may be wrong in its own row.
    """

    def term(x: _Channel) -> tuple[Real, ...]:
        erases = _solved(x)
        errors = (y @ abs(erases) for y in (x.bound, x.likely))
        return x.measured @ erases, x.reads, *errors

    return _view(one, "score of each row with each source", term, own=True)


def written(one: InfluenceMap) -> InfluenceMap | None:
    """Return what each token writes, read in its own row, if that is all that is wrong.

    Where tokens write ``D`` times what they should, weights are ``P D (1 + A D)^-1``,
    so that ``W^-1 P = D^-1 + A``. None where `erased` is, but for tokens that are wrong
    in their own row, and if anything below the diagonal is wrong.
    """
    entries = list[Index]()
    for x in _channels(one):
        if (x.measured.diagonal() == 0).any():
            return None
        measured, exact, bound, _ = _erases(x)
        if np.tril(abs(measured - exact) > bound, -1).any():
            return None
        entries.append(x.entries.diagonal())
    if not entries:
        return None
    writes = one.part(np.concatenate(entries))
    sources = {name: x for name, x in writes.coordinates.items() if name != "row"}
    return replace(writes, tensor="write of each token", coordinates=sources)


def _erases(x: _Channel) -> tuple[Real, ...]:
    """Return ``1 + A`` as measured, exact, and its largest and likely errors."""
    inverse = np.asarray(np.linalg.inv(x.measured), np.float64)
    measured = inverse @ x.reads
    errors = (abs(inverse) @ y @ abs(measured) for y in (x.bound, x.likely))
    return measured, _solved(x), *errors


def _solved(x: _Channel) -> Real:
    return np.asarray(np.linalg.solve(x.exact, x.reads), np.float64)


def _view(
    one: InfluenceMap, noun: str, term: Term, *, own: bool
) -> InfluenceMap | None:
    """Return the map of one term, between different tokens of a channel.

    Where a token is wrong in its own row, the map has that as well if the term has an
    entry of its `own` there; of another term there is no map.
    """
    every, tables = list[Index](), list[list[Real]]()
    for channel in _channels(one):
        itself = channel.entries.diagonal()
        wrong = (one.wrong[itself] | (one.measured[itself] == 0)).any()
        if wrong and not own:
            return None
        below = np.tril(np.ones(channel.entries.shape, bool), -1 + wrong)
        every.append(channel.entries[below])
        tables.append([x[below] for x in term(channel)])
    if not sum(map(len, every)):
        return None
    entries = np.concatenate(every)
    measured, exact, bound, likely = (
        np.concatenate(x) for x in zip(*tables, strict=True)
    )
    return replace(
        one.part(entries),
        tensor=noun,
        measured=measured,
        exact=exact,
        bound=bound,
        likely=likely,
    )


def _channels(one: InfluenceMap) -> Iterator[_Channel]:
    """Yield the channels of a map of products; none if one of them says nothing."""
    operator, known = one.problem.scope.operator, one.coordinates
    if not one.is_product or {*known} != OF_WEIGHTS:
        return
    along_keys = operator.erases and operator.erase_along == "key"
    if not along_keys or operator.micro_steps or operator.state != (("k", "v"),):
        return
    ahead = known["row"] < known["source"]
    if one.wrong[ahead].any():
        return
    entry = _table(one)
    if entry is None:
        return
    length = entry.shape[-1]
    at_itself = entry[..., range(length), range(length)]
    channel = known["key channel"][at_itself]
    if (one.exact[at_itself] == 0).any():
        return
    reads = _reads(one, entry)[entry]
    for batch, head in np.ndindex(entry.shape[:2]):
        for number in np.unique(channel[batch, head]):
            tokens = np.flatnonzero(channel[batch, head] == number)
            some = np.ix_([batch], [head], tokens, tokens)
            at = entry[some][0, 0]
            weights = (one.measured, one.exact, one.bound, one.likely)
            measured, exact, bound, likely = (np.tril(x[at]) for x in weights)
            read_of = np.tril(reads[some][0, 0])
            yield _Channel(at, measured, exact, bound, likely, read_of)


def _table(one: InfluenceMap) -> Index | None:
    """Return an entry for each batch entry, head, row and source, if there is one."""
    known, sizes = one.coordinates, one.problem.sizes
    shape = (sizes["b"], sizes["g"], sizes["t"], sizes["t"])
    table = np.full(shape, MISSING)
    at = tuple(known[name] for name in ("batch", "head", "row", "source"))
    table[at] = np.arange(len(one.exact))
    return None if (table == MISSING).any() else table


def _reads(one: InfluenceMap, entry: Index) -> Real:
    """Return what each row reads of what each source has written, entry by entry.

    That is the weight of a source in its own row, with the query of another row and the
    decays up to it.
    """
    places, known = places_of(one, None), one.coordinates
    row, source = known["row"], known["source"]
    x, axes = places.inputs["query"], places.axes["query"]
    with np.errstate(all="ignore"):
        reads = places.at(x, axes, row) / places.at(x, axes, source)
        if "log_decay" in places.inputs:
            axes = places.axes["log_decay"]
            sums = np.cumsum(places.inputs["log_decay"], axes.index("t"))
            upto, before = (places.at(sums, axes, x) for x in (row, source))
            reads = reads * np.exp(upto - before)
    itself = entry[known["batch"], known["head"], source, source]
    return np.asarray(reads * one.exact[itself])

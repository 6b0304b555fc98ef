r"""The products of matrices in one recurrence, and which of them are differentiated.

Each is listed once, with what its operands depend on. Going forwards takes it once;
going back, a span is computed again, and each operand that depends on an input takes
another product of the same size.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from linkern.core.scan import spans
from linkern.cost.counts import Counts
from linkern.cost.recurrences import (
    Recurrence,
    Spans,
    chunk,
    rows_of,
    spans_of,
    token,
)
from linkern.operators.forms import Form

__all__ = ["Gradient", "Product", "forward", "gradient"]


class Product(NamedTuple):
    """A product of matrices in a chunk or for a token.

    Parameters
    ----------
    size : int
        Multiply-adds.
    varying : int
        Operands that depend on an input, the memory not among them.
    memory : {"", "own", "stacked"}
        Whether an operand is the memory before the chunk: this one's alone, or in one
        array with those of the other chunks of its span.
    last : bool
        Whether the result goes nowhere but into the next memory.
    pulled : int, optional
        Multiply-adds for its cotangents, where they are no products of the same size.
    """

    size: int
    varying: int
    memory: str = ""
    last: bool = False
    pulled: int | None = None


class Gradient(NamedTuple):
    """Multiply-adds of a result and of its vector-Jacobian product.

    Parameters
    ----------
    forward, recomputed, pulled : int
        For the result; for recomputing spans in the backward pass; for cotangents.
    """

    forward: int
    recomputed: int
    pulled: int

    def __add__(self, other: object) -> "Gradient":
        """Return the numbers of both."""
        if not isinstance(other, Gradient):
            return NotImplemented
        return Gradient(*(x + y for x, y in zip(self, other, strict=True)))

    def times(self, count: int) -> "Gradient":
        """Return the numbers of `count` alike."""
        return Gradient(*(x * count for x in self))


def forward(
    recurrence: Recurrence, length: int, form: Form, *, padded: bool = True
) -> Counts:
    """Count all that a form does with one recurrence over `length` tokens."""
    if _by_token(form):
        once = Counts(sum(x.size for x in _of_token(recurrence))) + token(recurrence)
        return once * length
    counts = Counts()
    for span in spans_of(length, form, padded=padded):
        products = Counts(sum(x.size for x in _of_chunk(recurrence, span.size)))
        counts += (products + chunk(recurrence, span.size)) * (span.times * span.chunks)
    return counts


def gradient(
    recurrence: Recurrence, length: int, form: Form, every: int | None = None
) -> Gradient:
    """Count the products of a result and its gradient, from no state and to none.

    The form is called anew after `every` tokens, if that is given.
    """
    cut = [x.stop - x.start for x in spans(length, every or length)]
    calls = [list(spans_of(part, form)) for part in cut]
    once = pulled = 0
    for span in chain.from_iterable(calls):
        products = list(_products(recurrence, form, span))
        times = span.times * span.chunks
        once += times * sum(x.size for x in products)
        pulled += times * sum(map(_pulled, products))
    # Nothing depends on the memory before the first chunk, if that stands alone, ...
    first, last = calls[0][0], calls[-1][-1]
    alone = first.chunks == 1 or _by_token(form)
    for x in _products(recurrence, form, first):
        pulled -= x.size * (x.memory == "own" or (x.memory == "stacked" and alone))
    # ... and what the last one only leaves behind is not asked for.
    pulled -= sum(_pulled(x) for x in _products(recurrence, form, last) if x.last)
    return Gradient(once, once, pulled)


def _pulled(product: Product) -> int:
    """Return the multiply-adds for the cotangents of both operands."""
    if product.pulled is not None:
        return product.pulled
    return product.size * (product.varying + bool(product.memory))


def _by_token(form: Form) -> bool:
    """Return True if the equation for one token is used instead of that for chunks."""
    return form.size == 1 and form.together == 1


def _products(recurrence: Recurrence, form: Form, span: Spans) -> Iterator[Product]:
    return (
        _of_token(recurrence) if _by_token(form) else _of_chunk(recurrence, span.size)
    )


def _of_token(recurrence: Recurrence) -> Iterator[Product]:
    """List the products of `linkern.core.recurrence.token`."""
    size = recurrence.rows * recurrence.columns
    query, key, value = (_varies(recurrence, x) for x in ("query", "key", "value"))
    if recurrence.erase:
        # A decayed memory depends on the decay, whatever the memory depends on.
        if recurrence.early_erase or not recurrence.decays:
            yield Product(size, 1, "own", last=recurrence.early_read)
        else:
            yield Product(size, 2, last=recurrence.early_read)
    yield Product(size, key + (value or recurrence.erase), last=recurrence.early_read)
    yield (
        Product(size, query, "own")
        if recurrence.early_read
        else Product(size, query + 1)
    )


def _of_chunk(recurrence: Recurrence, size: int) -> Iterator[Product]:
    """List the products of `linkern.core.chunkwise.chunks` in one chunk."""
    rows, keys, values = rows_of(recurrence, size), recurrence.rows, recurrence.columns
    query, key = _varies(recurrence, "query"), _varies(recurrence, "key")
    written = _varies(recurrence, "value") or recurrence.erase
    decay = recurrence.decays > 0
    if recurrence.follow:
        yield from _of_pair(recurrence, rows, decay=decay)
        keys = 2 * keys
    single = rows == 1  # erases nothing of its own: its inverse is 1
    if recurrence.erase:
        yield _pairs(recurrence, rows, () if single else ("erase", "key"))
        # `linkern.core.triangular.inverse`; some products are with ones. Its cotangent
        # is two products of whole matrices.
        inverse = rows * (rows * rows - 1) // 3
        yield Product(inverse, 1, pulled=0 if single else 2 * rows**3)
        yield Product(rows * keys * values, 1, "own")
        yield Product(rows * rows * values, 1 + (not single))
    yield Product(rows * keys * values, (key or decay) + written, last=True)
    if recurrence.transpose_state:
        yield Product(rows * rows * values, query + written)
        yield Product(rows * keys * values, query, "stacked")
        weights = query or written
        if recurrence.by_channel:
            yield Product(keys * rows * (rows - 1) // 2, weights + 1)
        else:
            yield Product(rows * rows * keys, (weights or decay) + key)
        return
    yield _pairs(recurrence, rows, ("query", "key"))
    yield Product(rows * keys * values, query or decay, "stacked")
    weights = query or key or decay
    if single and recurrence.by_channel and recurrence.early_read:
        weights = False  # sees nothing of itself
    yield Product(rows * rows * values, weights + written)


def _of_pair(recurrence: Recurrence, rows: int, *, decay: bool) -> Iterator[Product]:
    """List the products of `linkern.core.momentum.PairDecay` in one chunk."""
    second = decay or _varies(recurrence, "follow")
    yield Product(2 * rows * rows, 0)  # of ones, for two triangles
    yield Product(rows**3, decay + second)
    yield Product(rows * rows, decay + second)


def _pairs(recurrence: Recurrence, rows: int, names: Sequence[str]) -> Product:
    """Return the product that gives each pair of tokens its weight."""
    if (
        recurrence.by_channel
    ):  # blocks between earlier and later halves, decayed beforehand
        return Product(recurrence.rows * rows * (rows - 1) // 2, 2)
    return Product(
        rows * rows * recurrence.rows, sum(_varies(recurrence, x) for x in names)
    )


def _varies(recurrence: Recurrence, name: str) -> bool:
    return name not in recurrence.constant

r"""Cost of one recurrence, from the sizes of its memory and its switches alone.

``K`` and ``V`` are the rows and columns of the memory, ``R`` the tokens of a chunk,
rounded up to a power of two where triangular matrices are made by halves. The counts
follow `linkern.core.recurrence` and `linkern.core.chunkwise` line by line; the products
of matrices have a list of their own (`linkern.cost.products`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from linkern.core.triangular import power_of_two
from linkern.cost.counts import Counts
from linkern.operators.forms import Form

__all__ = ["Recurrence", "Spans", "chunk", "rows_of", "spans_of", "token"]


@dataclass(frozen=True)
class Recurrence:
    """The sizes and switches of `linkern.core.recurrence.Terms`.

    Parameters
    ----------
    rows, columns : int
        Of the memory, ``K`` and ``V``.
    decays : int
        Log-decays for each token: 0, 1 or ``K``.
    erase, early_erase, early_read, transpose_state : bool
        As there; `erase` says whether there is one.
    follow : bool
        Whether there are two memories of these sizes, and decays for both.
    constant : frozenset of str
        Terms that no input changes: nothing is differentiated by them.
    """

    rows: int
    columns: int
    decays: int = 0
    erase: bool = False
    early_erase: bool = False
    early_read: bool = False
    transpose_state: bool = False
    follow: bool = False
    constant: frozenset[str] = frozenset()

    @property
    def by_channel(self) -> bool:
        """True if each key channel has a decay of its own."""
        return self.decays > 1

    @property
    def memory(self) -> int:
        """Numbers of all memories."""
        return (1 + self.follow) * self.rows * self.columns


class Spans(NamedTuple):
    """So many spans of tokens alike: each has `chunks` of `size` tokens."""

    times: int
    chunks: int
    size: int


def spans_of(length: int, form: Form, *, padded: bool = True) -> Iterator[Spans]:
    """Cut a sequence as `Form` does; the last chunk is filled up if `padded`."""
    if form.size is None:
        yield Spans(1, 1, length)
        return
    if form.together == 1 or not padded:
        whole, rest = divmod(length, form.size)
        parts = Spans(1, whole, form.size), Spans(1, 1, rest)
        yield from (x for x in parts if x.chunks and x.size)
        return
    count, rest = divmod(length, form.size * form.together)
    if count:
        yield Spans(count, form.together, form.size)
    if rest:
        size = min(form.size, rest)
        yield Spans(1, -(-rest // size), size)


def rows_of(recurrence: Recurrence, size: int) -> int:
    """Return ``R``: the tokens of a chunk, and what fills them up to halves."""
    return power_of_two(size) if recurrence.by_channel or recurrence.erase else size


def token(recurrence: Recurrence) -> Counts:
    """Count the elementwise part of the equation for one token."""
    memory = recurrence.rows * recurrence.columns
    decay = Counts(0, memory, recurrence.decays) if recurrence.decays else Counts()
    once = decay + Counts(0, memory)
    if recurrence.follow:  # both decay, one is written, and followed by a share of it
        once = decay + decay + Counts(0, 3 * memory)
    return once + Counts(0, recurrence.erase * recurrence.columns)


def chunk(recurrence: Recurrence, size: int) -> Counts:
    """Count the elementwise part of the equation for a chunk of `size` tokens."""
    rows = rows_of(recurrence, size)
    if recurrence.follow:
        return _pair(recurrence, rows)
    counts = _decay(recurrence, rows) if recurrence.decays else Counts()
    written = recurrence.rows * recurrence.columns  # added to the memory
    read = rows * (
        recurrence.rows if recurrence.transpose_state else recurrence.columns
    )  # held and paired, added
    counts += Counts(0, written + read)
    if recurrence.erase:
        # What is erased is taken away; the inverse changes signs block by block.
        negative = rows * (rows - 1) // 2
        counts += _weighing(recurrence, rows) + Counts(
            0, rows * recurrence.columns + negative
        )
    return counts + (
        _mixing(recurrence, rows)
        if recurrence.transpose_state
        else _weighing(recurrence, rows)
    )


def _pair(recurrence: Recurrence, rows: int) -> Counts:
    """Count the same of two memories, which `linkern.core.momentum` decays."""
    keys, values = recurrence.rows, recurrence.columns
    # Shares of what comes from the second memory, from each token and from the edge;
    # weights of two triangles of scores; signs of the inverse.
    pairs = 3 * rows * rows + rows + rows * (rows - 1) // 2
    # Two halves of what erases, of what reads and, of one, of what is written.
    edges = 5 * rows * keys
    # Erased, read, and both memories decayed, passed on and written.
    values_of = 2 * rows * values + 6 * keys * values
    counts = Counts(0, pairs + edges + values_of)
    if not recurrence.decays:
        return counts
    # Two matrices of decays; sums from and to the edges, their exponentials, and one
    # times these; and the other half of what is written.
    weights = Counts(0, 2 * rows * (2 * rows - 1), 2 * rows * rows)
    sums = Counts(0, 4 * (rows - 1) + 5 * rows + rows * keys, 4 * rows)
    return counts + weights + sums


def _decay(recurrence: Recurrence, rows: int) -> Counts:
    """Count the sums of log-decays, their exponentials, and what these multiply."""
    levels = rows.bit_length() - 1
    # Who reads before the decay of its own token needs exponentials of its own.
    readings = {recurrence.early_read and not recurrence.transpose_state}
    if recurrence.erase:
        readings.add(recurrence.early_erase)
    if recurrence.by_channel:
        sums, weights = levels * rows * recurrence.rows, Counts()
        factors = recurrence.rows * (rows + rows // 2 * levels)
    else:
        sums, factors = 2 * (rows - 1), rows
        weights = Counts(0, rows * (rows - 1), rows * rows)
    whole = Counts(
        0,
        (rows - 1) * recurrence.decays + recurrence.rows * recurrence.columns,
        recurrence.decays,
    )
    edges = (
        rows * recurrence.rows * (3 if recurrence.erase else 2)
    )  # entering and leaving
    exponentials = factors * (1 + len(readings))
    return Counts(0, sums + edges, exponentials) + whole + weights * len(readings)


def _weighing(recurrence: Recurrence, rows: int) -> Counts:
    """Count what makes weights of the products of rows with keys."""
    if not recurrence.by_channel:
        return Counts(0, rows * rows if recurrence.decays else 0)
    levels = rows.bit_length() - 1
    own = rows * recurrence.rows + rows * (
        recurrence.rows - 1
    )  # each token with itself
    return Counts(0, own + levels * rows * recurrence.rows)


def _mixing(recurrence: Recurrence, rows: int) -> Counts:
    """Count the same where the pairs come first, and the keys are mixed by them."""
    if not recurrence.by_channel:
        return Counts(0, rows * rows if recurrence.decays else 0)
    levels = rows.bit_length() - 1
    return Counts(
        0, rows * recurrence.rows + levels * 3 * (rows // 2) * recurrence.rows
    )

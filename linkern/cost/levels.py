"""Cost of log-linear attention: blocks of powers of two, a memory for each level."""

from collections.abc import Iterator

from linkern.cost.counts import Counts
from linkern.cost.products import Gradient
from linkern.cost.work import Given, Sizes
from linkern.operators.forms import Form

__all__ = ["levels_counts", "levels_gradient", "levels_steps"]


def _blocks(sizes: Sizes, form: Form) -> Iterator[tuple[int, int]]:
    """Yield how many blocks of ``2^i`` tokens there are, and ``i``, in their order."""
    length = sizes["t"]
    largest = min(form.size or length, length).bit_length() - 1
    yield length >> largest, largest
    for power in range(largest - 1, -1, -1):
        if length >> power & 1:
            yield 1, power


def levels_counts(sizes: Sizes, given: Given, form: Form) -> Counts:
    """Count what is done for one head."""
    keys, values = sizes["k"], sizes["v"]
    memory = keys * values
    counts = Counts()
    for count, power in _blocks(sizes, form):
        size, above = 1 << power, sizes["l"] - power - 1
        # Pairs by the weights of their levels; what is read of each memory, weighed.
        each = Counts(
            sum(_products(size, above, memory, keys + values)),
            size * size + above * 2 * size * values,
        )
        if "log_decay" in given:
            # Sums, decayed rows, the weights of pairs, and the memories above once.
            sums = 2 * (size - 1) + size * (size - 1) + size - 1
            decayed = 2 * size * keys + size * size + above * memory
            each += Counts(0, sums + decayed, 2 * size + size * size + 1)
        # The memory of a block joins one for each trailing one of its number: as many
        # in all as there are blocks, less the ones in how many there are.
        merged = count - count.bit_count()
        counts += each * count + Counts(0, merged * memory)
    return counts


def levels_steps(sizes: Sizes, form: Form) -> int:
    """Return how many blocks there are."""
    return sum(count for count, _ in _blocks(sizes, form))


def levels_gradient(sizes: Sizes, form: Form) -> Gradient:
    """Count the products of a result and its gradient; nothing is computed again."""
    keys, values = sizes["k"], sizes["v"]
    once = pulled = 0
    blocks = list(_blocks(sizes, form))
    for count, power in blocks:
        above = sizes["l"] - power - 1
        products = _products(1 << power, above, keys * values, keys + values)
        once += count * sum(products)
        pulled += count * 2 * sum(products)
    # The first block finds memories that depend on nothing; the last one's is unread.
    first, last = blocks[0][1], blocks[-1][1]
    unread = (sizes["l"] - first - 1) * (1 << first) + 2 * (1 << last)
    return Gradient(once, 0, pulled - unread * keys * values)


def _products(size: int, above: int, memory: int, width: int) -> tuple[int, int, int]:
    """Return the multiply-adds of a block: pairs, memories read, the memory written."""
    return size * size * width, above * size * memory, size * memory

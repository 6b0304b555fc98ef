"""Strategies for sizes: lengths around the edges of tiles, dimensions beside them.

Hypothesis examines a strategy when it is first drawn from, which takes longer than the
draw: what many examples draw from is made once and kept.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from linkern.testing.errors import DoesNotApply, skipped
from linkern.testing.problems import reach as reaches
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.reach import Reach

__all__ = [
    "EDGES",
    "FEW_LENGTHS",
    "FEW_TILE_DIMS",
    "INTERPRETED",
    "LARGE",
    "LONGEST",
    "TILE_DIMS",
    "Sizes",
    "fitted",
    "kept",
    "longest",
    "nearest_shape",
    "one_of",
    "shapes",
    "short_lengths",
]

# Tiles and chunks are powers of two: these lengths leave a full one, an almost full one
# and a tail of one, up to a chunk of 512.
EDGES = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256)
LONG = (200, 257, 300, 511, 513, 640, 1025)
LONGEST = 320
STEPS = 200
# Where each shape is compiled: around one chunk of 16, one of 64 and one of 128. Checks
# share what was compiled, so a length has one value dimension: those of some equal K.
FEW_LENGTHS = (1, 2, 17, 65, 130)
FEW_SQUARE = (2, 65)
FEW_DIMS = (4,)
DIMS = (1, 2, 3, 4, 5, 8, 16, 17, 33, 60, 64, 65, 100, 128, 129)
# Above one tile in one or both, none of them a power of two.
TILE_DIMS = (
    (160, 136),
    (129, 5),
    (5, 129),
    (192, 60),
    (33, 200),
    (257, 3),
    (3, 257),
    (130, 192),
)
# The first that an operator takes, where each shape is compiled: above a tile of 128.
FEW_TILE_DIMS = ((160, 136), (33, 200), (5, 129))
# Beyond this many entries of all states together, or tokens, one head is enough.
LARGE = 2**20
# Tokens beyond which an interpreted kernel gets one head: a chunk of 64 and a tail. On
# several ranks, those of one.
INTERPRETED = 66
# Keys of each query, where an operator takes several.
MICRO = (2, 1, 3)
# Keys of a token that lie side by side.
RANKS = (2, 1, 3)
MANY = 400
# Batch, heads, length, key and value dimension.
Sizes = tuple[int, int, int, int, int]
# More than the runs of one process have of them at once.
kept = lru_cache(maxsize=512, typed=True)


@kept
def one_of(*values: Any) -> st.SearchStrategy[Any]:
    """One of some values."""
    return st.sampled_from(values)


def fitted(
    scope: Scope,
    *,
    least: int = 1,
    most: int | None = None,
    reach: Reach | None = None,
) -> Callable[[int], int]:
    """Return what moves a length to the nearest one that the contract allows."""
    contract = scope.contract
    step = contract.length_multiple_of
    least = max(least, contract.shortest)
    limit = longest(scope, most, reach)
    shortest = -(-least // step) * step
    if contract.max_length is not None and shortest > contract.max_length:
        reason = f"the contract allows no sequence of {least} tokens or more"
        raise DoesNotApply(skipped(reason, f"accept a sequence of {least} tokens"))

    def allowed(length: int) -> int:
        rounded = -(-length // step) * step
        return max(min(rounded, limit // step * step), shortest)

    return allowed


def longest(scope: Scope, most: int | None = None, reach: Reach | None = None) -> int:
    """Return the largest length to try, of outputs if no reach is given."""
    reach = reach or reaches.of_outputs(scope)
    limits = [most, scope.contract.max_length, reach.most, 10**9]
    if scope.contract.interface == "step":
        limits.append(STEPS)  # one call of the target for each token
    return min(x for x in limits if x is not None)


@kept
def drawn_lengths(
    scope: Scope,
    *,
    least: int = 1,
    most: int | None = None,
    reach: Reach | None = None,
) -> st.SearchStrategy[int]:
    """Lengths that the contract allows, around every edge of a tile or chunk.

    Reaches: lost and doubled keys at chunk edges, tails not written, masks off by one
    in the last tile.
    """
    reach = reach or reaches.of_outputs(scope)
    allowed = fitted(scope, least=least, most=most, reach=reach)
    limit = longest(scope, most, reach)
    usual = min(limit, reach.usual or LONGEST)
    least = max(least, scope.contract.shortest)
    if scope.few_shapes:
        return st.sampled_from(FEW_LENGTHS).map(allowed)
    edges: tuple[int, ...] = EDGES + LONG
    if scope.interpreted:  # those beyond would all be the longest, which takes longest
        edges = tuple(n for n in edges if n <= limit) or (limit,)
    if reach.usual is not None:
        edges = tuple(min(n, usual) for n in edges)
    lengths = st.one_of(st.integers(least, max(least, usual)), st.sampled_from(edges))
    far = tuple(n for n in reach.far if usual < n <= limit)
    if reach.usual is not None and far:
        last = round(1 / reach.share) - 1
        turns, near, rest = st.integers(0, last), lengths, st.sampled_from(far)
        lengths = turns.flatmap(lambda turn: rest if turn == last else near)
    return lengths.map(allowed)


@kept
def _fitted_lengths(
    scope: Scope,
    lengths: tuple[int, ...],
    *,
    least: int,
    most: int | None,
    reach: Reach | None,
) -> st.SearchStrategy[int]:
    """Given lengths, as far as the contract allows them."""
    fitting = st.sampled_from(lengths[:1] if scope.few_shapes else lengths)
    return fitting.map(fitted(scope, least=least, most=most, reach=reach))


@kept
def dims(
    allowed: tuple[int, ...], preferred: tuple[int, ...] = ()
) -> st.SearchStrategy[int]:
    """Dimensions that the contract allows, small ones most of the time.

    Reaches: swapped channels, tiles that assume K = V or a multiple of 8.
    """
    if allowed:
        return st.sampled_from(sorted(allowed))
    usual = st.one_of(st.integers(1, 8), st.sampled_from(DIMS))
    return st.sampled_from(preferred) | usual if preferred else usual


@kept
@st.composite
def shapes(
    draw: st.DrawFn,
    scope: Scope,
    *,
    least: int = 1,
    most: int | None = None,
    least_heads: int = 1,
    lengths: tuple[int, ...] = (),
    key_dims: tuple[int, ...] = (),
    pairs: tuple[tuple[int, int], ...] = (),
    reach: Reach | None = None,
) -> Shape:
    """Shapes that the contract allows, K != V and several heads among them.

    `lengths` and `pairs` of dimensions restrict the choice, as far as the contract
    leaves it; `key_dims` only weighs it. The lengths are within `reach`, by default
    that of outputs.
    """
    contract, reach = scope.contract, reach or reaches.of_outputs(scope)
    within: dict[str, Any] = {"least": least, "most": most, "reach": reach}
    if lengths:
        length = draw(_fitted_lengths(scope, lengths, **within))
    else:
        length = draw(drawn_lengths(scope, **within))
    keys = length
    if not scope.operator.causal and not contract.equal_lengths and draw(st.booleans()):
        keys = draw(drawn_lengths(scope, **{**within, "least": max(least, 1)}))
    few = FEW_DIMS if scope.few_shapes else ()
    wanted = contract.key_dims
    if contract.equal_dims and contract.value_dims:
        wanted = tuple(n for n in contract.value_dims if not wanted or n in wanted)
    most_dim = scope.operator.largest_key_dim
    if most_dim is not None:
        pairs = tuple(pair for pair in pairs if pair[0] <= most_dim)
    key_dim, value_dim = draw(one_of(*pairs)) if pairs else (0, 0)
    if not pairs or wanted:
        key_dim = draw(dims(wanted or few, key_dims))
        if most_dim is not None and not wanted:
            key_dim = min(key_dim, most_dim)
    square = not pairs and key_dim in (contract.value_dims or (key_dim,))
    if contract.equal_dims or (square and draw(_squares(scope, length))):
        value_dim = key_dim
    elif not pairs or contract.value_dims:
        value_dim = draw(dims(contract.value_dims or tuple(n + 1 for n in few)))
    far = reach.usual is not None and length > reach.usual
    if far:
        key_dim, value_dim = _provable(scope, reach, length, (key_dim, value_dim))
    tokens = max(length, keys)
    if not contract.key_dims:
        key_dim = _affordable(scope, tokens * value_dim, key_dim)
    many = INTERPRETED * max(scope.ranks, default=1) if scope.interpreted else MANY
    large = far or tokens * key_dim * value_dim > LARGE or tokens > many
    batch, heads = draw(leading_axes(scope, least_heads, large=large))
    of_tokens = Shape(batch, heads, length, keys, key_dim, value_dim)
    if scope.operator.feature_map:
        return of_tokens
    return draw(_completed(scope, of_tokens, reach.keys))


def _squares(scope: Scope, length: int) -> st.SearchStrategy[bool]:
    """Draw True for values that have the dimension of keys.

    Square states are the only ones that can be transposed in silence.
    """
    if scope.few_shapes and length in FEW_LENGTHS:
        return one_of(length in FEW_SQUARE)
    return one_of(False, False, True)


def _provable(
    scope: Scope, reach: Reach, length: int, sizes: tuple[int, int]
) -> tuple[int, int]:
    """Return dimensions of which the proof for that length does not take too long."""
    contract, by_value = scope.contract, scope.operator.erase_along == "value"
    rows = length * max(MICRO) if scope.operator.micro_steps else length
    most = reach.largest_dim(rows)
    if most is None:
        return sizes
    smaller = []
    for size, declared in zip(
        sizes, (contract.key_dims, contract.value_dims), strict=True
    ):
        fitting = [n for n in declared if n <= most] or [*declared[:1], most][:1]
        smaller.append(min(size, max(fitting)))
    if contract.equal_dims:
        return min(smaller), min(smaller)
    return (sizes[0], smaller[1]) if by_value else (smaller[0], sizes[1])


def _affordable(scope: Scope, columns: int, key_dim: int) -> int:
    """Return a key dimension whose monomials do not take too long in the oracle."""
    if not {"features", "squares", "degree 2"} & {*scope.operator.state[0]}:
        return key_dim
    return min(key_dim, max(8, int((LARGE / max(columns, 1)) ** 0.5)))


@st.composite
def _completed(draw: st.DrawFn, scope: Scope, shape: Shape, most: int | None) -> Shape:
    """Add the sizes that only some operators have.

    Reaches: value heads that meet the wrong key head, slots taken for channels, levels
    that are one too few, micro-steps taken for tokens.
    """
    letters = {axis for one in scope.operator.inputs for axis in one.axes}
    groups, slots, levels, keys = 1, 1, 1, shape.keys
    if scope.contract.value_groups and "h" in letters and draw(st.booleans()):
        groups = 2
    if "m" in letters:
        slots = draw(one_of(*((4,) if scope.few_shapes else (3, 1, 4, 8, 17))))
    if "l" in letters:
        levels = shape.length.bit_length() + 1  # of the next token, too
    ranks = (2,) if scope.few_shapes else RANKS
    rank = draw(one_of(*ranks)) if scope.operator.ranks else 1
    if scope.operator.pairs:
        shape = _with_a_pair(scope, shape, rank)
    if scope.operator.micro_steps:
        tokens = shape.length
        steps = tuple(n for n in MICRO if most is None or n * tokens <= most) or (1,)
        keys = shape.length * draw(one_of(*((2,) if scope.few_shapes else steps)))
    more = {"groups": groups, "slots": slots, "levels": levels, "keys": keys}
    return replace(shape, **more)


def _with_a_pair(scope: Scope, shape: Shape, rank: int) -> Shape:
    """Return a shape with two channels or more for each of the keys of a token."""
    if scope.contract.key_dims:  # those of all its keys together
        rank = next(n for n in (rank, *RANKS, 1) if shape.key_dim % n == 0)
    key_dim = shape.key_dim if rank == 1 else -(-shape.key_dim // rank) * rank
    key_dim = max(key_dim, 2 * rank)
    value_dim = key_dim if scope.contract.equal_dims else shape.value_dim
    return replace(shape, key_dim=key_dim, value_dim=value_dim, rank=rank)


@kept
@st.composite
def leading_axes(
    draw: st.DrawFn, scope: Scope, least_heads: int, *, large: bool
) -> tuple[int, int]:
    """Batch and heads; as few as possible for large problems.

    Reaches: swapped heads, batches taken for heads, a last head that is left out.
    """
    batches, heads = [1, 2], [n for n in (1, 2, 3, 5) if n >= least_heads]
    if scope.few_shapes:  # several of both, unless the contract has one alone
        batches, heads = ([1], [2]) if large else ([2], [3])
    elif large:  # of ranks with several chunks, some have a second head
        batches, heads = [1], heads[: 2 if scope.ranks else 1]
    layout = scope.contract.layout
    return (
        draw(one_of(*batches)) if "b" in layout else 1,
        draw(one_of(*heads)) if "h" in layout else 1,
    )


def short_lengths(scope: Scope) -> list[int]:
    """Return the lengths among 1 and 0 that the contract allows."""
    contract = scope.contract
    most = 1 if contract.max_length is None else min(contract.max_length, 1)
    # A recurrence of no step returns nothing that could be looked at.
    least = max(contract.shortest, int(contract.interface == "step"))
    step = contract.length_multiple_of
    return [n for n in range(most, least - 1, -1) if n % step == 0]


def nearest_shape(scope: Scope, sizes: Sizes) -> Shape:
    """Return the shape nearest to `sizes` that operator and contract allow."""
    batch, heads, length, key_dim, value_dim = sizes
    contract, operator = scope.contract, scope.operator
    axes = {letter for one in operator.inputs for letter in one.axes}
    per_query = 2 if operator.micro_steps else 1
    length = fitted(scope)(-(-length // per_query))  # as many keys as others have
    keys = length * per_query
    if not operator.causal and not contract.equal_lengths:
        keys = fitted(scope)(length - length // 5)
    key_dim = _nearest(key_dim, contract.key_dims)
    value_dim = _nearest(value_dim, contract.value_dims)
    shape = Shape(
        batch if "b" in contract.layout else 1,
        heads if "h" in contract.layout else 1,
        length,
        keys,
        key_dim,
        key_dim if contract.equal_dims else value_dim,
        groups=2 if contract.value_groups else 1,
        slots=3 if "m" in axes else 1,
        levels=length.bit_length() + 1 if "l" in axes else 1,
    )
    return _with_a_pair(scope, shape, RANKS[0]) if operator.ranks else shape


def _nearest(wanted: int, allowed: tuple[int, ...]) -> int:
    return min(allowed, key=lambda n: abs(n - wanted)) if allowed else wanted

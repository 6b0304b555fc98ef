r"""Log-linear attention: a memory for each power of two of distance.

Positions are cut into blocks of ``2^l`` tokens, aligned as the bits of their numbers.
For a query at position ``t``, the tokens before it fall into at most one block for each
set bit of ``t`` (a Fenwick tree), and each such level has a weight of its own.
"""

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, Unpack, cast

from linkern import validate
from linkern.array import concat, device_of, mT, namespace, ones, zeros
from linkern.autodiff.scan import scan
from linkern.core.causal import lower_product
from linkern.core.decay import Decay
from linkern.operators.definition import (
    QKV,
    Definition,
    Inputs,
    Prepared,
    prepare_terms,
)
from linkern.operators.forms import Form
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["log_linear_attention"]


class _Rows(NamedTuple):
    """Inputs of a span of tokens, ``(..., T, D)`` each."""

    query: Array
    key: Array
    value: Array
    level_scales: Array
    log_decay: Array | None

    def span(self, tokens: slice) -> "_Rows":
        """Return the inputs of some tokens."""
        parts: Any = (None if x is None else x[..., tokens, :] for x in self)
        return _Rows(*parts)


def _log_linear(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    level_scales: Array,
    position: int,
) -> tuple[Array, State]:
    memory, outputs = _in_use(state.memory, position), []
    rows = _Rows(query, key, value, level_scales, log_decay)
    length = key.shape[-2]
    blocks = _blocks(position, length, form.size or max(length, 1))
    for size, run in groupby(blocks, lambda block: block[1]):
        starts = [start for start, _ in run]
        part = rows.span(slice(starts[0] - position, starts[-1] - position + size))
        step = _Block(starts[0] // size)
        output, memory = scan(step, memory, part, size, counted=True)
        assert output is not None
        outputs.append(output)
    if not outputs:
        return value, state
    return concat(outputs, axis=-2), State(memory, None)


def _in_use(memory: Array, position: int) -> Array:
    """Return the memories with zeros in the levels that hold no token so far.

    A form that takes several tokens at once does not read them, nor may another.
    """
    xp, levels = namespace(memory), memory.shape[-3]
    used = [bool(position << 1 >> level & 1) for level in range(levels)]
    chosen = xp.asarray(used, device=device_of(memory))[:, None, None]
    return cast(Array, xp.where(chosen, memory, xp.zeros_like(memory)))


def _blocks(position: int, length: int, most: int) -> list[tuple[int, int]]:
    """Cut positions into aligned blocks of powers of two, none above `most`."""
    blocks, end = [], position + length
    while position < end:
        aligned = position & -position or 1 << (end - position).bit_length()
        size = min(aligned, 1 << (min(most, end - position).bit_length() - 1))
        blocks.append((position, size))
        position += size
    return blocks


@dataclass(frozen=True)
class _Block:
    """The step of one of several aligned blocks of one size.

    Parameters
    ----------
    first : int
        Number of the first block: its position over the size.
    """

    first: int

    def __call__(self, memory: Array, rows: _Rows, i: Any) -> tuple[Array, Array]:
        """Take the step of block `i` of them."""
        return _block(memory, rows, self.first + i)


def _block(memory: Array, rows: _Rows, number: Any) -> tuple[Array, Array]:
    """Read and update the memories ``(..., L, K, V)`` for one aligned block.

    Inside a block of ``2^s`` tokens only levels up to ``s`` occur; everything before
    it is in the memories of higher levels.
    """
    query, key, value, level_scales, log_decay = rows
    size = query.shape[-2]
    inside = size.bit_length() - 1
    decay = Decay(log_decay)
    pairs = decay.scores(query, key) * _weights(level_scales, size)
    output = lower_product(pairs, value)
    reading = decay.entering(query)
    for level in range(inside + 1, memory.shape[-3]):
        weight = level_scales[..., level : level + 1]
        output = output + weight * (reading @ memory[..., level, :, :])

    left, remaining = mT(decay.leaving(key)) @ value, decay.whole()
    levels = [memory[..., level, :, :] for level in range(inside + 1, memory.shape[-3])]
    if remaining is not None:
        levels = [remaining * x for x in levels]
    # Behind an aligned block the levels inside of it are empty, whatever is decayed.
    empty = [namespace(left).zeros_like(left)] * (inside + 1)
    levels = [*empty, *_merged(levels, left, number)]
    return output, concat([x[..., None, :, :] for x in levels], axis=-3)


def _merged(levels: list[Array], left: Array, number: Any) -> list[Array]:
    """Return the memories of the levels above a block, with what that block left.

    The number of the next block differs from this one's in its trailing ones and the
    zero above them: their memories merge into one. `number` is an integer, or an array
    where a loop is compiled for all numbers.
    """
    carried, merged = True, list(levels)
    for level, kept in enumerate(levels):
        onward = carried & (number >> level & 1 == 1)
        if onward is False:
            merged[level] = _chosen(carried, left, kept)
            break
        nothing, joined = namespace(left).zeros_like(left), left + kept
        merged[level] = _chosen(onward, nothing, _chosen(carried, left, kept))
        left, carried = _chosen(onward, joined, left), onward
    return merged


def _chosen(condition: Any, x: Array, y: Array) -> Array:
    """Return `x` where a condition holds, or `y`."""
    if isinstance(condition, bool):
        return x if condition else y
    return cast(Array, namespace(x).where(condition, x, y))


def _weights(level_scales: Array, size: int) -> Array:
    """Return the weight of each pair of a block, by level; 0 above the diagonal."""
    xp = namespace(level_scales)
    of_pairs = xp.asarray(_levels(size), device=device_of(level_scales))
    weights = zeros((*level_scales.shape[:-1], size), like=level_scales)
    for level in range(size.bit_length()):
        chosen = level_scales[..., level : level + 1]
        weights = xp.where(of_pairs == level, chosen, weights)
    return weights


def _levels(size: int) -> list[list[int]]:
    """Return the level of each pair: 0 for a token itself, else ``log2`` of what
    differs in their positions, rounded down, plus 1; -1 for a token and a later one.
    """
    return [
        [(i ^ j).bit_length() if j <= i else -1 for j in range(size)]
        for i in range(size)
    ]


def _enough_levels(position: int, query: Array, level_scales: Array) -> None:
    """Check that the last token, and the one after it, have a level for each bit."""
    needed = (position + query.shape[-2]).bit_length() + 1
    if level_scales.shape[-1] < needed:
        msg = (
            f"`level_scales` must have at least {needed} levels (last axis) for "
            f"{position + query.shape[-2]} tokens and the one that may follow, got "
            f"{level_scales.shape[-1]}; append columns, their values do not matter."
        )
        raise ValueError(msg)


def _prepare(
    definition: Definition,
    inputs: Inputs,
    settings: Inputs,
    form: Form,
    scale: float | None,
) -> Prepared:
    """Check that there are levels enough for all positions, or fill in ones."""
    query, level_scales = inputs["query"], inputs["level_scales"]
    position = validate.dimension("position", settings.get("position", 0))
    validate.wide_dtype("query", query)
    if query.ndim > 1 and level_scales is None:
        levels = (position + query.shape[-2]).bit_length() + 1
        level_scales = ones((query.shape[-2], levels), like=query)
    elif query.ndim > 1:
        validate.wide_dtype("level_scales", level_scales)
        if level_scales.ndim > 1:
            _enough_levels(position, query, level_scales)
    inputs = {**inputs, "level_scales": level_scales}
    ready = prepare_terms(definition, inputs, settings, form, scale)
    return replace(ready, options={"position": position})


LOG_LINEAR_ATTENTION = Definition(
    "log_linear_attention",
    {
        **QKV,
        "log_decay": "t",
        "level_scales": "tl",
    },
    _log_linear,
    memory=lambda n: (n["l"], n["k"], n["v"]),
    inverse_root_scale=False,
    affine=False,
    prepare=_prepare,
)


@operator(LOG_LINEAR_ATTENTION)
def log_linear_attention(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    level_scales: ArrayT | None = None,
    *,
    position: int = 0,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Linear attention that weighs the past by the power of two of its distance.

    Parameters
    ----------
    log_decay : array (..., T), optional
        Natural logarithms of the decays, in ``[-inf, 0]``. Default: none.
    level_scales : array (..., T, L), optional
        Weight of each level for each query; ``L`` must cover the tokens so far and the
        one that may follow: ``L > log2(position + T) + 1``. Default: 1.
    position : int
        How many tokens the state has seen; levels are counted from the first of them.
        Levels of `initial_state` that hold none of them are not read. With
        `cu_seqlens`, the same for every sequence.
    **options
        `scale` (default 1), `initial_state`, `cu_seqlens`, `form` and `chunk_size`
        (rounded down to a power of two), as in `simple_gla`.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with a memory ``(..., L, K, V)``, one for each
        level as the next token will find it, and no normalizer.

    Raises
    ------
    TypeError, ValueError
        As `simple_gla`; also if there are too few levels.

    Notes
    -----
    .. math::

        o_t = scale \sum_{j \le t} \lambda_{t, \ell(t, j)} \,
              e^{g_{j+1} + \dots + g_t} \, (q_t . k_j) \, v_j

    with level 0 for ``j = t`` and otherwise :math:`\ell(t, j) = \lfloor \log_2 (t
    \oplus j) \rfloor + 1`, positions counted from 0 and :math:`\oplus` the exclusive
    or. With all weights 1 it is `simple_gla` with a scale of 1. The state grows with
    the logarithm of the length.

    Source: Guo et al. 2025, "Log-Linear Attention", equations 4 to 6.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((3, 1))
    >>> scales = np.asarray([[1.0, 10.0, 100.0]] * 3)
    >>> linkern.log_linear_attention(ones, ones, ones, None, scales).output[:, 0]
    array([  1.,  11., 201.])
    """

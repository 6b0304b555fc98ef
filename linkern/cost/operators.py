"""Cost of an operator in any form: arithmetic, bytes and state."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from typing import Any

from linkern import validate
from linkern.core.scan import spans
from linkern.cost.checking import (
    checked,
    definition_named,
    name_of,
    numbers_read,
    width_of,
)
from linkern.cost.counts import Counts
from linkern.cost.levels import (
    levels_counts,
    levels_gradient,
    levels_steps,
)
from linkern.cost.products import Gradient, forward, gradient
from linkern.cost.recurrences import spans_of
from linkern.cost.work import WORK, Given, Pass, Sizes, elimination
from linkern.operators.forms import FORM_NAMES, Form, form_named
from linkern.state import AttentionResult

__all__ = ["OperatorCost", "gradient_cost", "operator_cost"]

_LEVELS = "log_linear_attention"


@dataclass(frozen=True)
class OperatorCost:
    """Exact counts for all heads and batches of one call.

    Parameters
    ----------
    multiply_adds : int
        Products in matrix products; those of Gaussian elimination for `mesa`.
    elementwise : int
        Additions, subtractions, multiplications, divisions and changes of sign outside
        of them; a sum of ``n`` numbers is ``n - 1`` additions.
    exponentials : int
        Values of exponential and logarithmic functions.
    state : int
        Numbers in the state after the last token.
    read_bytes, written_bytes : int
        Compulsory: all inputs once; the output and the state once.
    memory_bytes : int
        What goes to and from the memory if it is read and written at each step of the
        form, in the dtype of the computation.
    """

    multiply_adds: int
    elementwise: int
    exponentials: int
    state: int
    read_bytes: int
    written_bytes: int
    memory_bytes: int

    @property
    def operations(self) -> int:
        """Floating-point operations: two for each multiply-add, one for all others."""
        return 2 * self.multiply_adds + self.elementwise + self.exponentials

    @property
    def intensity(self) -> float:
        """Operations for each compulsory byte."""
        return self.operations / (self.read_bytes + self.written_bytes)


def operator_cost(
    op: str | Callable[..., AttentionResult[Any]],
    length: int,
    *,
    value_dim: int,
    key_dim: int | None = None,
    slots: int | None = None,
    steps: int = 1,
    levels: int | None = None,
    heads: int = 1,
    batch: int = 1,
    form: str = "auto",
    chunk_size: int | None = None,
    padded: bool = True,
    dtype: str = "float32",
    without: Collection[str] = (),
) -> OperatorCost:
    r"""Count the arithmetic, the state and the bytes of one call of an operator.

    Parameters
    ----------
    op : callable or str
        An operator, such as `linkern.gla`, or its name, ``"gla"``.
    length : int
        Tokens, ``T``; at least 1.
    value_dim, key_dim : int
        ``V``, and ``K`` where the operator has keys.
    slots : int, optional
        ``M``, for `gsa` and `abc`.
    steps : int
        Steps for each token, for `gated_delta_product`; keys of a token, ``R``, for
        `mamba3_mimo`.
    levels : int, optional
        ``L``, for `log_linear_attention`. Default: the fewest.
    heads, batch : int
        How many there are; all of them cost the same.
    form, chunk_size
        As in the operator.
    padded : bool
        Whether a last chunk that is not whole is filled up, as the array API forms do.
        False: it is as short as it is, as on NumPy for operators that only add. Where
        an operator needs a power of two inside a chunk, both are rounded up to it.
    dtype : {"float16", "bfloat16", "float32", "float64"}
        Of the inputs, gates among them.
    without : collection of str
        Optional inputs that are not given. Default: all are given, and `scale` is not.

    Returns
    -------
    OperatorCost
        Without `padded`, `multiply_adds` is exact; the other arithmetic is that of the
        array API forms on chunks of these sizes.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown, missing or out of range.

    Notes
    -----
    For a memory ``(K, V)`` without decay or erase, a token is written and read with ``2
    K V`` multiply-adds and chunks of ``C`` tokens add ``C (K + V)``; what decays and
    erases add is in the `cost page <cost.html>`_. Feature maps are those of the
    operator, for `linear_attention` ``elu(x) + 1``; it is causal and normalised, for
    other options see `linear_cost`.

    Examples
    --------
    >>> from linkern.cost import operator_cost
    >>> cost = operator_cost("simple_gla", 128, key_dim=64, value_dim=64)
    >>> cost.multiply_adds == 128 * (64 * (64 + 64) + 2 * 64 * 64)
    True
    >>> cost.state
    4096
    """
    name = name_of(op)
    call = checked(name, length, value_dim, key_dim, slots, steps, levels, without)
    sizes = {**call.sizes, "h": validate.positive_integer("heads", heads)}
    batch = validate.positive_integer("batch", batch)
    order = form_named(
        validate.form(form, FORM_NAMES), validate.chunk_size(chunk_size, form)
    )
    padded = validate.flag("padded", padded)
    width = width_of(dtype)
    wide = max(width, 4)  # bytes of a number while computing
    many = batch * sizes["h"]
    counts = _arithmetic(name, sizes, call.inputs, order, padded=padded) * many
    counts += WORK[name].once(sizes, call.inputs)
    state = many * sum(prod(x) for x in call.state)
    output = many * sizes["t"] * sizes["v"]
    return OperatorCost(
        counts.multiply_adds,
        counts.elementwise,
        counts.exponentials,
        state,
        width * numbers_read(call, sizes["h"], batch),
        width * output + wide * state,
        2 * wide * many * _memory(name, sizes, call.inputs, order, padded=padded),
    )


def gradient_cost(
    op: str | Callable[..., AttentionResult[Any]],
    length: int,
    *,
    value_dim: int,
    key_dim: int | None = None,
    slots: int | None = None,
    steps: int = 1,
    levels: int | None = None,
    heads: int = 1,
    batch: int = 1,
    form: str = "auto",
    chunk_size: int | None = None,
    without: Collection[str] = (),
) -> Gradient:
    """Count the multiply-adds of an operator and of its vector-Jacobian product.

    Parameters
    ----------
    op, length, value_dim, key_dim, slots, steps, levels, heads, batch, form
        As in `operator_cost`.
    chunk_size, without
        As in `operator_cost`.

    Returns
    -------
    Gradient
        ``(forward, recomputed, pulled)``: what the result takes, what is computed again
        on the way back, and the products that give cotangents; of the array API forms,
        for the gradient of every input, without an initial state and without a
        cotangent of the last one.

    Raises
    ------
    TypeError, ValueError
        As `operator_cost`.

    Notes
    -----
    Each product of two matrices that both depend on an input is taken four times in
    all. What the literature counts is the first and the last two of these.

    Examples
    --------
    >>> from linkern.cost import gradient_cost
    >>> gradient_cost("simple_gla", 640, key_dim=64, value_dim=64)
    Gradient(forward=10485760, recomputed=10485760, pulled=20447232)
    """
    name = name_of(op)
    call = checked(name, length, value_dim, key_dim, slots, steps, levels, without)
    heads = validate.positive_integer("heads", heads)
    many = heads * validate.positive_integer("batch", batch)
    order = form_named(
        validate.form(form, FORM_NAMES), validate.chunk_size(chunk_size, form)
    )
    sizes = call.sizes
    if name == _LEVELS:
        return levels_gradient(sizes, order).times(many)
    total = Gradient(0, 0, 0)
    for one in WORK[name].passes:
        recurrence = one.of(sizes, call.inputs)
        each = gradient(recurrence, sizes[one.steps], order, one.every)
        total += each.times(sizes[one.heads])
    if name == "mesa":
        # Two systems with the transposed matrix, and the product that gives its own.
        solved = elimination(sizes["k"]).multiply_adds
        back = 2 * solved + sizes["kk"]
        total += Gradient(solved, 0, back).times(sizes["t"])
    return total.times(many)


def _arithmetic(
    op: str, sizes: Sizes, given: Given, form: Form, *, padded: bool
) -> Counts:
    """Count what is done for one head."""
    counts = WORK[op].surroundings(sizes, given)
    if definition_named(op).inverse_root_scale and sizes["k"] > 1:
        counts += Counts(0, sizes["t"] * sizes["k"])  # the scale, at the query
    if op == _LEVELS:
        return counts + levels_counts(sizes, given, form)
    for one in WORK[op].passes:
        recurrence = one.of(sizes, given)
        for part in _parts(one, sizes):
            each = forward(recurrence, part, form, padded=padded)
            counts += each * sizes[one.heads]
    return counts


def _memory(op: str, sizes: Sizes, given: Given, form: Form, *, padded: bool) -> int:
    """Return how many numbers of the memory are replaced, for one head."""
    if op == _LEVELS:
        return levels_steps(sizes, form) * sizes["l"] * sizes["k"] * sizes["v"]
    numbers = 0
    for one in WORK[op].passes:
        recurrence = one.of(sizes, given)
        for part in _parts(one, sizes):
            cut = spans_of(part, form, padded=padded)
            times = sum(x.times * x.chunks for x in cut)
            times *= sizes[one.heads]
            numbers += times * recurrence.memory
    return numbers


def _parts(one: Pass, sizes: Sizes) -> list[int]:
    """Return the lengths of the calls of one recurrence."""
    length = sizes[one.steps]
    cut = spans(length, one.every or length)
    return [x.stop - x.start for x in cut]

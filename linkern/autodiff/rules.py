# ruff: noqa: ARG005 -- all rules of a table take the same arguments
"""Derivative rules: one for each function of the array API that this package uses,
and those of triangular products and inverses (`linkern.core.derivatives`).

A rule takes a namespace and plain arrays, and returns the result together with one
function for each array: from a cotangent of the result to one of that array. What has
no rule cannot be differentiated, and `linkern.autodiff.tape` says so: a gradient
that is silently zero would be worse than none.
"""

from collections.abc import Callable
from typing import Any

from linkern.array import device_of
from linkern.core import causal, derivatives, triangular

__all__ = ["BINARY", "CONSTANT", "RULES", "UNARY"]

Pull = Callable[[Any], Any]
Rule = Callable[..., tuple[Any, tuple[Pull, ...]]]

# Functions of one array: how the result changes with it, from (namespace, x, result).
UNARY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "abs": lambda xp, x, y: xp.sign(x),
    "cos": lambda xp, x, y: -xp.sin(x),
    "cosh": lambda xp, x, y: xp.sinh(x),
    "exp": lambda xp, x, y: y,
    "expm1": lambda xp, x, y: y + 1,
    "log": lambda xp, x, y: 1 / x,
    "log1p": lambda xp, x, y: 1 / (1 + x),
    "negative": lambda xp, x, y: -xp.ones_like(x),
    "sin": lambda xp, x, y: xp.cos(x),
    "sinh": lambda xp, x, y: xp.cosh(x),
    "sqrt": lambda xp, x, y: 0.5 / y,
    "square": lambda xp, x, y: 2 * x,
    "tanh": lambda xp, x, y: 1 - y * y,
}

# Functions of two arrays that broadcast: factors on the cotangent, for each operand.
BINARY: dict[str, Callable[[Any, Any, Any, Any], tuple[Any, Any]]] = {
    "add": lambda xp, x, y, z: (1, 1),
    "subtract": lambda xp, x, y, z: (1, -1),
    "multiply": lambda xp, x, y, z: (y, x),
    "divide": lambda xp, x, y, z: (1 / y, -z / y),
    "logaddexp": lambda xp, x, y, z: (_share(xp, x, z), _share(xp, y, z)),
    "maximum": lambda xp, x, y, z: _chosen(xp, z, x > y, x == y),
    "minimum": lambda xp, x, y, z: _chosen(xp, z, x < y, x == y),
}

# What depends on values in steps, or not at all: no gradient passes through.
CONSTANT = frozenset(
    [
        "any",
        "all",
        "arange",
        "argmax",
        "argmin",
        "ceil",
        "empty_like",
        "equal",
        "eye",
        "floor",
        "full",
        "full_like",
        "greater",
        "greater_equal",
        "isfinite",
        "isinf",
        "isnan",
        "less",
        "less_equal",
        "not_equal",
        "ones",
        "ones_like",
        "round",
        "sign",
        "zeros",
        "zeros_like",
    ]
)


def _share(xp: Any, x: Any, total: Any) -> Any:
    """Return ``exp(x - total)``, which is 0 where both are the logarithm of nothing."""
    nothing = xp.zeros_like(total)
    same = x == total  # an infinity less itself would be NaN
    apart = xp.where(same, nothing, x) - xp.where(same, nothing, total)
    return xp.where(xp.isinf(x) & (x < 0), nothing, xp.exp(apart))


def _chosen(xp: Any, chosen: Any, first: Any, tie: Any) -> tuple[Any, Any]:
    """Return the part of two operands in a maximum, in its dtype; a tie is split."""
    nothing, all_of_it = xp.zeros_like(chosen), xp.ones_like(chosen)
    one = xp.where(tie, 0.5 * all_of_it, xp.where(first, all_of_it, nothing))
    return one, 1 - one


def _unary(name: str) -> Rule:
    def rule(xp: Any, x: Any) -> tuple[Any, tuple[Pull, ...]]:
        value = getattr(xp, name)(x)
        return value, (lambda c: c * UNARY[name](xp, x, value),)

    return rule


def _binary(name: str) -> Rule:
    def rule(xp: Any, x: Any, y: Any) -> tuple[Any, tuple[Pull, ...]]:
        x, y = _alike(xp, x, y)
        value = getattr(xp, name)(x, y)

        def factors() -> tuple[Any, Any]:
            return BINARY[name](xp, x, y, value)

        return value, (
            lambda c: _fitted(xp, c * factors()[0], x),
            lambda c: _fitted(xp, c * factors()[1], y),
        )

    return rule


def _alike(xp: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return both operands as arrays: one may be a Python number."""
    like = x if hasattr(x, "shape") else y

    def made(v: Any) -> Any:
        if hasattr(v, "shape"):
            return v
        return xp.asarray(v, dtype=like.dtype, device=device_of(like))

    return made(x), made(y)


def _pow(xp: Any, x: Any, exponent: float) -> tuple[Any, tuple[Pull, ...]]:
    del xp
    return x**exponent, (lambda c: c * exponent * x ** (exponent - 1),)


def _matmul(xp: Any, x: Any, y: Any) -> tuple[Any, tuple[Pull, ...]]:
    mT = xp.matrix_transpose  # noqa: N806 -- the array API's own name
    return xp.matmul(x, y), (
        lambda c: _fitted(xp, xp.matmul(c, mT(y)), x),
        lambda c: _fitted(xp, xp.matmul(mT(x), c), y),
    )


def _vecdot(xp: Any, x: Any, y: Any) -> tuple[Any, tuple[Pull, ...]]:
    """Return products of real vectors along the last axis."""
    return xp.vecdot(x, y), (
        lambda c: _fitted(xp, c[..., None] * y, x),
        lambda c: _fitted(xp, c[..., None] * x, y),
    )


def _ruled(known: derivatives.Rule) -> Rule:
    """Return the rule of this table for a rule that all libraries share."""

    def rule(xp: Any, *operands: Any, **options: Any) -> tuple[Any, tuple[Pull, ...]]:
        value = derivatives.ruled(known, *operands, **options)

        def pulled(i: int) -> Pull:
            pull = known.pulls[i]
            return lambda c: _fitted(
                xp, pull(c, value, *operands, **options), operands[i]
            )

        return value, tuple(map(pulled, range(len(operands))))

    return rule


def _where(xp: Any, condition: Any, x: Any, y: Any) -> tuple[Any, tuple[Pull, ...]]:
    """Select; the cotangent goes where the value came from."""
    x, y = _alike(xp, x, y)
    return xp.where(condition, x, y), (
        lambda c: c,  # of the condition, which nothing depends on smoothly
        lambda c: _fitted(xp, xp.where(condition, c, xp.zeros_like(c)), x),
        lambda c: _fitted(xp, xp.where(condition, xp.zeros_like(c), c), y),
    )


def _sum(
    xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False
) -> tuple[Any, tuple[Pull, ...]]:
    return xp.sum(x, axis=axis, keepdims=keepdims), (
        lambda c: xp.broadcast_to(_kept(xp, c, x, axis, keepdims=keepdims), x.shape),
    )


def _mean(
    xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False
) -> tuple[Any, tuple[Pull, ...]]:
    value, (pull,) = _sum(xp, x, axis=axis, keepdims=keepdims)
    ratio = _size(value) / max(_size(x), 1)
    return value * ratio, (lambda c: pull(c * ratio),)


def _size(x: Any) -> int:
    product = 1
    for n in x.shape:
        product *= n
    return product


def _max(
    xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False
) -> tuple[Any, tuple[Pull, ...]]:
    """Return the largest entry; ties share the cotangent."""

    def pull(c: Any) -> Any:
        largest = xp.max(x, axis=axis, keepdims=True)
        ties = xp.astype(x == largest, x.dtype)
        count = xp.sum(ties, axis=axis, keepdims=True)
        return _kept(xp, c, x, axis, keepdims=keepdims) * ties / count

    return xp.max(x, axis=axis, keepdims=keepdims), (pull,)


def _cumulative_sum(xp: Any, x: Any, *, axis: int) -> tuple[Any, tuple[Pull, ...]]:
    """Sum from the start; the cotangent is summed from the end."""

    def pull(c: Any) -> Any:
        backwards = xp.cumulative_sum(xp.flip(c, axis=axis), axis=axis)
        return xp.flip(backwards, axis=axis)

    return xp.cumulative_sum(x, axis=axis), (pull,)


def _flip(xp: Any, x: Any, *, axis: Any = None) -> tuple[Any, tuple[Pull, ...]]:
    return xp.flip(x, axis=axis), (lambda c: xp.flip(c, axis=axis),)


def _tril(xp: Any, x: Any, *, k: int = 0) -> tuple[Any, tuple[Pull, ...]]:
    return xp.tril(x, k=k), (lambda c: xp.tril(c, k=k),)


def _matrix_transpose(xp: Any, x: Any) -> tuple[Any, tuple[Pull, ...]]:
    return xp.matrix_transpose(x), (xp.matrix_transpose,)


def _reshape(xp: Any, x: Any, shape: Any) -> tuple[Any, tuple[Pull, ...]]:
    return xp.reshape(x, shape), (lambda c: xp.reshape(c, tuple(x.shape)),)


def _broadcast_to(xp: Any, x: Any, shape: Any) -> tuple[Any, tuple[Pull, ...]]:
    return xp.broadcast_to(x, shape), (lambda c: _fitted(xp, c, x),)


def _astype(
    xp: Any, x: Any, dtype: Any, *, copy: bool = True
) -> tuple[Any, tuple[Pull, ...]]:
    return xp.astype(x, dtype, copy=copy), (lambda c: xp.astype(c, x.dtype),)


def _concat(xp: Any, *arrays: Any, axis: int = 0) -> tuple[Any, tuple[Pull, ...]]:
    pulls, start = [], 0
    for x in arrays:
        stop = start + x.shape[axis]
        pulls.append(_cut(axis, x.ndim, slice(start, stop)))
        start = stop
    return xp.concat(list(arrays), axis=axis), tuple(pulls)


def _getitem(xp: Any, x: Any, key: Any) -> tuple[Any, tuple[Pull, ...]]:
    """Select by slices of step 1, integers, None and an ellipsis."""
    return x[key], (_placed(xp, x, key),)


def _solve(xp: Any, matrix: Any, x: Any) -> tuple[Any, tuple[Pull, ...]]:
    """Solve linear systems with several right-hand sides."""
    mT = xp.matrix_transpose  # noqa: N806 -- the array API's own name
    value = xp.linalg.solve(matrix, x)

    def back(c: Any) -> Any:
        return xp.linalg.solve(mT(matrix), c)

    return value, (
        lambda c: _fitted(xp, -back(c) @ mT(value), matrix),
        lambda c: _fitted(xp, back(c), x),
    )


RULES: dict[str, Rule] = {
    **{name: _unary(name) for name in UNARY},
    **{name: _binary(name) for name in BINARY},
    "astype": _astype,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "cumulative_sum": _cumulative_sum,
    "flip": _flip,
    "getitem": _getitem,
    "inverse": _ruled(triangular.INVERSE),
    **{name: _ruled(rule) for name, rule in causal.PRODUCTS.items()},
    "matmul": _matmul,
    "matrix_transpose": _matrix_transpose,
    "max": _max,
    "mean": _mean,
    "pow": _pow,
    "reshape": _reshape,
    "solve": _solve,
    "sum": _sum,
    "tril": _tril,
    "vecdot": _vecdot,
    "where": _where,
}


def _fitted(xp: Any, cotangent: Any, operand: Any) -> Any:
    """Sum a cotangent over the axes along which its operand was repeated."""
    shape = tuple(operand.shape)
    if tuple(cotangent.shape) == shape:
        return cotangent
    extra = cotangent.ndim - len(shape)
    if extra > 0:
        cotangent = xp.sum(cotangent, axis=tuple(range(extra)))
    repeated = tuple(
        i for i, n in enumerate(shape) if n == 1 and cotangent.shape[i] != 1
    )
    if repeated:
        cotangent = xp.sum(cotangent, axis=repeated, keepdims=True)
    return xp.broadcast_to(cotangent, shape)


def _kept(xp: Any, cotangent: Any, a: Any, axis: Any, keepdims: bool) -> Any:
    """Put the axes back that a reduction took away."""
    if keepdims:
        return cotangent
    axes = (
        range(a.ndim)
        if axis is None
        else (axis if isinstance(axis, tuple) else (axis,))
    )
    gone = {n % a.ndim for n in axes}
    return xp.reshape(
        cotangent, tuple(1 if i in gone else n for i, n in enumerate(a.shape))
    )


def _cut(axis: int, ndim: int, part: slice) -> Callable[[Any], Any]:
    """Return the function that takes one part of an axis."""
    key = (*(slice(None),) * (axis % ndim), part)
    return lambda c: c[(*key, ...)]


def _placed(xp: Any, a: Any, key: Any) -> Callable[[Any], Any]:
    """Return the function that puts a cotangent back where ``a[key]`` was taken."""
    ranges = _ranges(key, tuple(a.shape))

    def pull(c: Any) -> Any:
        c = xp.reshape(c, tuple(stop - start for start, stop in ranges))
        for axis, (start, stop) in enumerate(ranges):
            parts = []
            for size in (start, a.shape[axis] - stop):
                shape = (*c.shape[:axis], size, *c.shape[axis + 1 :])
                device = device_of(c)
                parts.append(xp.zeros(shape, dtype=c.dtype, device=device))
            if any(part.shape[axis] for part in parts):
                c = xp.concat([parts[0], c, parts[1]], axis=axis)
        return c

    return pull


def _ranges(key: Any, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the range that each axis is cut to."""
    items = [
        item for item in (key if isinstance(key, tuple) else (key,)) if item is not None
    ]
    if Ellipsis not in items:
        items.append(Ellipsis)
    place = items.index(Ellipsis)
    missing = len(shape) - len(items) + 1
    items[place : place + 1] = [slice(None)] * missing
    bounds = []
    for item, size in zip(items, shape, strict=True):
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            if step != 1:
                msg = "`linkern.vjp` has no rule for slices with a step."
                raise TypeError(msg)
            bounds.append((start, max(start, stop)))
        else:
            bounds.append((item % size, item % size + 1))
    return bounds

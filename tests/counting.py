"""Arrays of NumPy that count the arithmetic done with them.

A `Counted` array has an array API namespace of its own, so code that asks its arrays
for their namespace runs as it is, and everything it computes passes through here:

- multiply-adds: products in `matmul`, and in the elimination behind `solve`;
- elementwise operations: additions, subtractions, multiplications, divisions and
  changes of sign, one for each entry of the result; a sum of ``n`` numbers, running or
  not, is ``n - 1`` additions;
- exponentials: values of exponential, logarithmic, hyperbolic and trigonometric
  functions.

Moving, comparing, selecting and rounding numbers is no arithmetic. A function that is
in none of these classes is refused, so that nothing goes uncounted.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

ARITHMETIC = {"add", "subtract", "multiply", "divide", "negative", "square", "sqrt"}
EXPONENTIAL = {
    "exp", "expm1", "log", "log1p", "logaddexp", "cos", "cosh", "sin", "sinh", "tanh",
}  # fmt: skip
MOVING = {
    "abs", "all", "any", "arange", "argmax", "asarray", "astype", "broadcast_to",
    "concat", "equal", "eye", "flip", "floor", "full", "full_like", "greater",
    "isfinite", "isinf", "isnan", "less", "less_equal", "matrix_transpose", "max",
    "maximum", "minimum", "ones", "ones_like", "reshape", "sign", "tril", "where",
    "zeros", "zeros_like",
}  # fmt: skip


@dataclass
class Tally:
    """What has been counted, and the shape ``(batch, m, n, inner)`` of each product."""

    multiply_adds: int = 0
    elementwise: int = 0
    exponentials: int = 0
    products: list = field(default_factory=list)

    def counts(self):
        return self.multiply_adds, self.elementwise, self.exponentials


TALLY = Tally()


class Counted:
    """An array whose arithmetic is counted in `TALLY`."""

    __slots__ = ("value",)
    __array_ufunc__ = None  # NumPy leaves mixed expressions to this class

    def __init__(self, value):
        self.value = value

    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    size = property(lambda self: self.value.size)
    dtype = property(lambda self: self.value.dtype)
    device = property(lambda self: "cpu")

    def __array_namespace__(self, *, api_version=None):
        return NAMESPACE

    def __getitem__(self, key):
        return Counted(np.asarray(self.value[key]))

    def __bool__(self):
        return bool(self.value)

    def __int__(self):
        return int(self.value)


OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
    "matmul": "matmul",
}  # fmt: skip


def _operators():
    """Give the class the operators of Python, by their names in the standard."""
    for name, function in OPERATORS.items():

        def forwards(x, y, function=function):
            if hasattr(y, "untraced"):  # its own operators know what to do with us
                return NotImplemented
            return getattr(NAMESPACE, function)(x, y)

        def backwards(x, y, function=function):
            return getattr(NAMESPACE, function)(y, x)

        setattr(Counted, f"__{name}__", forwards)
        setattr(Counted, f"__r{name}__", backwards)
    for name in ("lt", "le", "gt", "ge", "eq", "ne", "and", "or"):
        method = f"__{name}__"

        def compared(x, y, method=method):
            return Counted(getattr(x.value, method)(raw(y)))

        setattr(Counted, method, compared)
    Counted.__neg__ = NAMESPACE.negative
    Counted.__hash__ = None


def raw(x):
    """Return the plain array inside, also of lists and tuples of them."""
    if isinstance(x, list | tuple):
        return type(x)(map(raw, x))
    return x.value if isinstance(x, Counted) else x


class CountingNamespace:
    """The array API over NumPy, counting."""

    __name__ = "counting"

    def __init__(self):
        self.linalg = SimpleNamespace(solve=solve)

    def __getattr__(self, name):
        if isinstance(getattr(np, name), type):
            return getattr(np, name)
        if name in ("sum", "cumulative_sum"):
            return _summing(name)
        if name not in ARITHMETIC | EXPONENTIAL | MOVING:
            msg = f"{name} is not counted"
            raise NotImplementedError(msg)
        return _entrywise(name)

    @property
    def float32(self):
        return np.dtype("float32")

    @property
    def float64(self):
        return np.dtype("float64")

    def matmul(self, x, y):
        made = np.matmul(raw(x), raw(y))
        inner, batch = raw(x).shape[-1], int(np.prod(made.shape[:-2]))
        TALLY.multiply_adds += made.size * inner
        TALLY.products.append((batch, *made.shape[-2:], inner))
        return Counted(made)

    def vecdot(self, x, y):
        made, terms = np.asarray(np.vecdot(raw(x), raw(y))), raw(x).shape[-1]
        TALLY.elementwise += made.size * max(2 * terms - 1, 0)
        return Counted(made)


def _entrywise(name):
    def call(*operands, **options):
        options.pop("device", None)
        made = np.asarray(getattr(np, name)(*map(raw, operands), **options))
        TALLY.elementwise += made.size * (name in ARITHMETIC)
        TALLY.exponentials += made.size * (name in EXPONENTIAL)
        return Counted(made)

    return call


def _summing(name):
    def call(x, **options):
        made = np.asarray(getattr(np, name)(raw(x), **options))
        if name == "sum":
            TALLY.elementwise += max(x.size - made.size, 0)
        else:
            rows = made.shape[options["axis"]]
            TALLY.elementwise += made.size - made.size // max(rows, 1)
        return Counted(made)

    return call


def solve(matrix, columns):
    """Solve linear systems, counting what Gaussian elimination does with each.

    One multiply-add for each entry that a row takes away from another, one division for
    each factor; then the same for the right-hand sides, down and up.
    """
    made = np.linalg.solve(raw(matrix), raw(columns))
    *lead, size, width = made.shape
    multiply_adds = divisions = 0
    for pivot in range(size):
        below = size - pivot - 1
        divisions += below  # factors of the rows below
        multiply_adds += below * below  # the rest of these rows
        multiply_adds += below * width  # their right-hand sides
        multiply_adds += below * width  # and on the way up, from the rows above
        divisions += width  # by the pivot
    systems = int(np.prod(lead))
    TALLY.multiply_adds += systems * multiply_adds
    TALLY.elementwise += systems * divisions
    return Counted(made)


NAMESPACE = CountingNamespace()
_operators()


def counted(x):
    """Return an array that counts, of one that does not; None stays None."""
    return None if x is None else Counted(np.asarray(x))


def tally(function, *inputs, **options):
    """Return what a call counts: arrays among its arguments become counting ones."""
    TALLY.__init__()
    made = function(
        *(counted(x) if isinstance(x, np.ndarray) else x for x in inputs),
        **{
            name: counted(x) if isinstance(x, np.ndarray) else x
            for name, x in options.items()
        },
    )
    return Tally(*TALLY.counts(), list(TALLY.products)), made

"""Reverse-mode differentiation of anything written against the array API.

A `Traced` array behaves as an array of the library that it wraps, and remembers how it
was made. The forward code of this package asks its arrays for their namespace, so it
runs on traced arrays as it is: each operator and form is written once, and its gradient
follows from `linkern.autodiff.rules`, one rule for each function of the standard.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import linkern.array as ground
from linkern.autodiff.rules import CONSTANT, RULES
from linkern.typing import Array

__all__ = ["Traced", "TracedNamespace", "cotangents", "joint", "raw", "recomputed"]

Pull = Callable[[Any], Any]

_serial = itertools.count()


class Traced:
    """An array that remembers how it was made.

    Parameters
    ----------
    value : array
        The array itself.
    parents : sequence of (Traced, callable)
        What it was made from, each with the function that takes a cotangent of this
        array to the contribution to the cotangent of that one.
    leaf : bool
        Whether it is one of the arrays to differentiate by. What has neither parents
        nor this mark is a constant.
    """

    __slots__ = ("parents", "serial", "value", "varies")
    __array_ufunc__ = None  # so that NumPy leaves mixed expressions to this class

    def __init__(
        self,
        value: Any,
        parents: Sequence[tuple["Traced", Pull]] = (),
        *,
        leaf: bool = False,
    ) -> None:
        self.value = value
        self.parents = tuple(parents)
        self.varies = leaf or bool(self.parents)
        self.serial = next(_serial)

    def __repr__(self) -> str:
        """Say that it is traced: it turns up in the error messages of feature maps."""
        return f"Traced({self.value!r})"

    @property
    def untraced(self) -> Any:
        """The array itself."""
        return self.value

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(self.value.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self.value.ndim)

    @property
    def dtype(self) -> Any:
        """Dtype of the array."""
        return self.value.dtype

    @property
    def device(self) -> Any:
        """Device of the array."""
        return ground.device_of(self.value)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """Return the namespace whose functions trace."""
        del api_version
        return TracedNamespace.over(ground.namespace(self.value))

    def _call(self, name: str, *operands: Any) -> Any:
        return getattr(self.__array_namespace__(), name)(*operands)

    def __add__(self, other: Any) -> Any:
        return self._call("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._call("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._call("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._call("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._call("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._call("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._call("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._call("divide", other, self)

    def __matmul__(self, other: Any) -> Any:
        return self._call("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return self._call("matmul", other, self)

    def __neg__(self) -> Any:
        return self._call("negative", self)

    def __pow__(self, exponent: float) -> Any:
        return self._call("pow", self, exponent)

    def __getitem__(self, key: Any) -> Any:
        return self._call("getitem", self, key)

    def __lt__(self, other: Any) -> Any:
        return self.value < raw(other)

    def __le__(self, other: Any) -> Any:
        return self.value <= raw(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > raw(other)

    def __ge__(self, other: Any) -> Any:
        return self.value >= raw(other)


def raw(x: Any) -> Any:
    """Return the array inside, or what is not traced as it is."""
    return x.value if isinstance(x, Traced) else x


class TracedNamespace:
    """The array API over one library, for arrays that remember how they were made."""

    def __init__(self, base: Any) -> None:
        self._base = base
        self.__name__ = base.__name__
        self.linalg = SimpleNamespace(solve=self._ruled("solve"))

    @classmethod
    @cache
    def over(cls, base: Any) -> "TracedNamespace":
        """Return the namespace over a library: always the same object."""
        return cls(base)

    def concat(self, arrays: Sequence[Any], /, *, axis: int = 0) -> Traced:
        """Join arrays along an axis."""
        return self._ruled("concat")(*arrays, axis=axis)

    def __getattr__(self, name: str) -> Any:
        """Return a function that traces, or what needs no tracing as it is."""
        if name in RULES:
            return self._ruled(name)
        member = getattr(self._base, name)
        if name in CONSTANT:
            return lambda *a, **k: Traced(member(*map(raw, a), **k))
        if callable(member) and not isinstance(member, type):
            return _refusing(name, member)
        return member  # a dtype or a constant

    def _ruled(self, name: str) -> Callable[..., Traced]:
        def call(*operands: Any, **options: Any) -> Traced:
            value, pulls = RULES[name](self._base, *map(raw, operands), **options)
            pairs = zip(operands, pulls, strict=False)  # what follows is no array
            varying = [
                (x, pull) for x, pull in pairs if isinstance(x, Traced) and x.varies
            ]
            return Traced(value, varying)

        return call


def _refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass calls on that no traced array takes part in, and refuse the others."""

    def call(*arguments: Any, **options: Any) -> Any:
        if any(isinstance(x, Traced) for x in (*arguments, *options.values())):
            msg = (
                f"`linkern.vjp` has no rule for `{name}`; write the feature map with "
                "other functions of the array API, or differentiate with your library."
            )
            raise TypeError(msg)
        return function(*arguments, **options)

    return call


def cotangents(outputs: Sequence[Any], of_outputs: Sequence[Any]) -> dict[int, Any]:
    """Return the cotangents of all arrays without parents, by serial number.

    Parameters
    ----------
    outputs : sequence of Traced
        Computed arrays. Anything that is not traced depends on nothing.
    of_outputs : sequence of array or None
        Their cotangents; None for zero.
    """
    pending: dict[int, Any] = {}
    nodes: dict[int, Traced] = {}
    order: list[int] = []

    def add(node: Traced, cotangent: Any) -> None:
        if node.serial in pending:
            pending[node.serial] = _sum(pending[node.serial], cotangent)
            return
        pending[node.serial], nodes[node.serial] = cotangent, node
        heapq.heappush(order, -node.serial)

    for node, cotangent in zip(outputs, of_outputs, strict=True):
        if isinstance(node, Traced) and cotangent is not None:
            add(node, cotangent)
    # What was made last comes first: all its uses have been seen by then.
    while order:
        node = nodes[-heapq.heappop(order)]
        if node.parents:
            cotangent = pending.pop(node.serial)
            for parent, pull in node.parents:
                add(parent, pull(cotangent))
    return pending


def _sum(one: Any, other: Any) -> Any:
    """Add two cotangents; those of a `recomputed` step come part by part."""
    if isinstance(one, dict):
        parts = {**other, **one}
        for key in one.keys() & other.keys():
            parts[key] = one[key] + other[key]
        return parts
    return one + other


def joint(
    function: Callable[..., tuple[Any, ...]],
    back: Callable[[Sequence[Any], Sequence[int], Mapping[int, Any]], Sequence[Any]],
    items: Sequence[Any],
) -> tuple[Any, ...]:
    """Call ``function(*items)``, a function whose gradient is known as a whole.

    Parameters
    ----------
    function : callable
        From arrays, and whatever else is among the items, to a tuple of arrays or None.
    back : callable
        ``back(items, varying, cotangents)`` returns the cotangents of the items at the
        positions `varying`, or None for zero. `cotangents` are those of the results, by
        position; what is missing is zero.
    items : sequence
        The arguments; some of them may be traced.
    """
    varying = [i for i, x in enumerate(items) if isinstance(x, Traced) and x.varies]
    plain = [raw(x) for x in items]
    results = function(*plain)
    if not varying:  # constants stay what they were: traced or not
        if not any(isinstance(x, Traced) for x in items):
            return results
        return tuple(None if x is None else Traced(x) for x in results)
    once: list[tuple[Any, Sequence[Any]]] = []

    def pull_of(position: int, value: Any) -> Pull:
        def pull(cotangent: dict[int, Any]) -> Any:
            if not once or once[0][0] is not cotangent:
                once[:] = [(cotangent, back(plain, varying, cotangent))]
            gradient = once[0][1][position]
            if gradient is None:
                return ground.namespace(value).zeros_like(value)
            return gradient

        return pull

    parents = [(items[i], pull_of(n, plain[i])) for n, i in enumerate(varying)]
    both = Traced(results, parents)

    def part(position: int) -> Pull:
        return lambda cotangent: {position: cotangent}

    return tuple(
        None if x is None else Traced(x, [(both, part(i))])
        for i, x in enumerate(results)
    )


def recomputed(
    step: Callable[[Array, Any], tuple[Array, Array]], memory: Array, terms: Any
) -> tuple[Array, Array]:
    """Call ``step(memory, terms)``; keep only its inputs for the pullback.

    The gradient of a sequence then needs the memory at the edges of its spans, and the
    inside of one span at a time: linear in the length, with a factor that does not grow
    with the size of a span. `terms` is a named tuple, some of whose items are arrays.
    """
    if Traced not in map(type, (memory, *terms)):
        return step(memory, terms)

    def run(*items: Any) -> tuple[Any, Any]:
        return step(items[0], type(terms)(*items[1:]))

    def back(
        _: Sequence[Any], varying: Sequence[int], cotangent: Mapping[int, Any]
    ) -> list[Any]:
        # Constants stay traced: strict arrays refuse to be combined with other kinds.
        filled = [memory, *terms]
        leaves = [Traced(raw(filled[i]), leaf=True) for i in varying]
        for i, x in zip(varying, leaves, strict=True):
            filled[i] = x
        gradients = cotangents(run(*filled), [cotangent.get(0), cotangent.get(1)])
        return [gradients.get(x.serial) for x in leaves]

    return cast(tuple[Array, Array], joint(run, back, (memory, *terms)))

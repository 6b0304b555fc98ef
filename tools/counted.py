"""Counting arrays: they record the NumPy calls that a function of linkern makes.

A subclass of `numpy.ndarray` records calls through its protocols (NEP 13 for ufuncs and
operators, NEP 18 for functions) and forwards them with plain arrays. While counting is
on, all new arrays of the library are of this class. A call with plain arrays alone
would be missed, so a plain array that meets a counted one raises an error.
"""

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import array_api_compat.numpy
import numpy as np
from numpy.lib.stride_tricks import as_strided

from linkern import array
from linkern.bench.memory import peak_by_tracing
from linkern.kernels.numpy import backend, workspace

TOTALS = ("calls", "multiply_adds", "elements", "arrays", "bytes", "peak")
PRODUCTS = {"matmul", "vecdot", "matvec", "vecmat", "dot", "inner"}
QUERIES = {"shape", "ndim", "size", "result_type", "can_cast", "shares_memory"}
# Methods of arrays that compute or copy and that neither protocol sees.
METHODS = [
    *("argmax", "argmin", "argsort", "astype", "choose", "clip", "compress", "copy"),
    *("cumprod", "cumsum", "diagonal", "dot", "fill", "flatten", "nonzero", "put"),
    *("ravel", "repeat", "reshape", "round", "searchsorted", "sort", "take"),
]
# Functions that make arrays of none, or arrays of no class of their own.
CREATORS = [
    *("arange", "array", "asarray", "ascontiguousarray", "empty", "empty_like", "eye"),
    *("from_dlpack", "frombuffer", "full", "full_like", "identity", "linspace", "ones"),
    *("ones_like", "tri", "zeros", "zeros_like"),
]

Call = Callable[[], object]


class Tally:
    """The counts so far."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset all counts."""
        self.names: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()

    def add(self, name: str, new: list[Any], elements: int, products: int = 0) -> None:
        """Record a call, its new arrays and its work."""
        self.names[name] += 1
        self.totals["calls"] += 1
        self.totals["multiply_adds"] += products
        self.totals["elements"] += elements
        self.totals["arrays"] += len(new)
        self.totals["bytes"] += sum(x.nbytes for x in new)


TALLY = Tally()


class Counted(np.ndarray):
    """An array that records the calls it takes part in."""

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        """Count a call of a ufunc or of one of its methods."""
        name = ufunc.__name__ + ("" if method == "__call__" else f".{method}")
        return passed_on(name, getattr(ufunc, method), inputs, options)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Count a function."""
        del types
        return passed_on(func.__name__, func, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        """Count an index that copies; a view is free."""
        plain = viewed(self)
        result = plain[viewed(key)]
        if isinstance(result, np.ndarray) and not is_view(result, [plain]):
            TALLY.add("getitem", [result], result.size)
        return viewed(result, Counted)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Count an assignment to an index."""
        _refuse_plain("setitem", [self, value])
        plain, key = viewed(self), viewed(key)
        TALLY.add("setitem", [], np.size(plain[key]))
        plain[key] = viewed(value)


def _method(name: str) -> Callable[..., Any]:
    plain = getattr(np.ndarray, name)
    return lambda *arguments, **options: passed_on(name, plain, arguments, options)


for _name in METHODS:
    setattr(Counted, _name, _method(_name))


def passed_on(name: str, call: Any, args: Any, options: Any) -> Any:
    """Forward a call with plain arrays, and count it if it computes or copies."""
    _refuse_plain(name, list(_arrays([args, options])))
    args, options = viewed(args), viewed(options)
    result = call(*args, **options)
    arguments, results = list(_arrays([args, options])), list(_arrays(result))
    new = [x for x in results if not is_view(x, arguments)]
    free = name in QUERIES or (results and not new and options.get("out") is None)
    if name in PRODUCTS:
        TALLY.add(name, new, 0, products=np.size(result) * np.shape(args[0])[-1])
    elif not free:
        filled = [] if name.startswith("empty") else results
        TALLY.add(name, new, max((x.size for x in (*arguments, *filled)), default=0))
    return viewed(result, Counted)


def is_view(x: Any, arrays: list[Any]) -> bool:
    """Return True if an array is empty or shares memory with one of `arrays`."""
    return not x.size or any(np.may_share_memory(x, y) for y in arrays)


def _refuse_plain(name: str, arrays: list[Any]) -> None:
    plain = [x.shape for x in arrays if type(x) is np.ndarray and x.ndim]
    if plain and any(type(x) is Counted for x in arrays):
        msg = f"`{name}` met an array of shape {plain[0]} that was made uncounted."
        raise TypeError(msg)


def _arrays(x: Any) -> Iterator[Any]:
    """Yield the arrays in nested tuples, lists and dicts."""
    if isinstance(x, np.ndarray):
        yield x
    elif isinstance(x, tuple | list):
        for y in x:
            yield from _arrays(y)
    elif isinstance(x, dict):
        yield from _arrays(list(x.values()))


def viewed(x: Any, into: type = np.ndarray) -> Any:
    """Return nested tuples, lists and dicts with their arrays viewed as `into`."""
    if isinstance(x, np.ndarray):
        return x.view(into)
    if isinstance(x, dict):
        return {name: viewed(y, into) for name, y in x.items()}
    if type(x) in (tuple, list):
        return type(x)(viewed(y, into) for y in x)
    return x


def _creating(plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: passed_on(
        plain.__name__, plain, arguments, options
    )


def _counting_copy(module: ModuleType) -> ModuleType:
    """Return a copy of NumPy, or of a compatible module, that makes counted arrays."""
    copy, names = ModuleType(module.__name__), vars(module)
    creators = {name: _creating(names[name]) for name in CREATORS if name in names}
    vars(copy).update({**names, **creators, "ndarray": Counted})
    return copy


NUMPY, NAMESPACE = _counting_copy(np), _counting_copy(array_api_compat.numpy)
assert backend  # loaded here: `counting` changes modules that are loaded
# Objects that modules of the library have imported, and their replacements.
REPLACED = [(np, NUMPY), (as_strided, _creating(as_strided))]


@contextmanager
def counting() -> Iterator[Tally]:
    """Make the library create counted arrays."""
    changed = [
        (vars(module), key, plain, counted)
        for name, module in list(sys.modules.items())
        if name.startswith("linkern")
        for key, result in vars(module).items()
        for plain, counted in REPLACED
        if result is plain
    ]
    namespaces = array._NAMESPACES
    saved = dict(namespaces)
    for kinds in ([Counted], [np.ndarray, Counted]):
        namespaces[frozenset(kinds)] = NAMESPACE
    for names, key, _, counted in changed:
        names[key] = counted
    TALLY.clear()
    workspace.clear()  # new workspaces are counted, and hold counted arrays
    try:
        yield TALLY
    finally:
        workspace.clear()
        for names, key, plain, _ in changed:
            names[key] = plain
        namespaces.clear()
        namespaces.update(saved)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread and no garbage collection, so that counts are reproducible."""
    name = "LINKERN_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def count(prepare: Callable[[type], Call]) -> dict[str, Any]:
    """Count one scenario: the second call of what `prepare` returns.

    Parameters
    ----------
    prepare : callable
        Takes the class of all input arrays; returns a function without arguments.

    Returns
    -------
    dict
        A number for each of `TOTALS`, and under ``"by"`` the calls by name.
    """
    with _one_thread():
        with counting() as tally:
            call = prepare(Counted)
            call()
            tally.clear()
            workspace.clear()
            call()
            by, totals = dict(sorted(tally.names.items())), dict(tally.totals)
        call = prepare(np.ndarray)
        call()
        workspace.clear()
        peak = peak_by_tracing(call)
    return {**{name: totals.get(name, 0) for name in TOTALS}, "peak": peak, "by": by}

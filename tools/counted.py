"""Arrays that count: what a function of linkern asks of NumPy, whatever the clock says.

They are of a subclass of `numpy.ndarray` whose protocols (NEP 13 for ufuncs and
operators, NEP 18 for functions) record a call and pass it on with plain arrays; while
counting is on, all new arrays of the library are such arrays. Calls with plain arrays
alone would be missed. So a plain array that meets a counted one is a stranger, and ends
the count with an error.
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
LOOKS = {"shape", "ndim", "size", "result_type", "can_cast", "shares_memory"}
# Methods of arrays that compute or copy and that neither protocol sees.
METHODS = [
    *("argmax", "argmin", "argsort", "astype", "choose", "clip", "compress", "copy"),
    *("cumprod", "cumsum", "diagonal", "dot", "fill", "flatten", "nonzero", "put"),
    *("ravel", "repeat", "reshape", "round", "searchsorted", "sort", "take"),
]
# Functions that make arrays of none, or arrays of no class of their own.
MAKING = [
    *("arange", "array", "asarray", "ascontiguousarray", "empty", "empty_like", "eye"),
    *("from_dlpack", "frombuffer", "full", "full_like", "identity", "linspace", "ones"),
    *("ones_like", "tri", "zeros", "zeros_like"),
]

Call = Callable[[], object]


class Tally:
    """What has been counted."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.names: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()

    def add(self, name: str, new: list[Any], elements: int, products: int = 0) -> None:
        """Record a call, the arrays it made and its work."""
        self.names[name] += 1
        self.totals["calls"] += 1
        self.totals["multiply_adds"] += products
        self.totals["elements"] += elements
        self.totals["arrays"] += len(new)
        self.totals["bytes"] += sum(x.nbytes for x in new)


TALLY = Tally()


class Counted(np.ndarray):
    """An array that counts what is done with it."""

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        """Count a ufunc: called, or one of its methods."""
        name = ufunc.__name__ + ("" if method == "__call__" else f".{method}")
        return passed_on(name, getattr(ufunc, method), inputs, options)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Count a function."""
        del types
        return passed_on(func.__name__, func, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        """Count a copy, but no view."""
        plain = turned(self)
        found = plain[turned(key)]
        if isinstance(found, np.ndarray) and not is_view(found, [plain]):
            TALLY.add("getitem", [found], found.size)
        return turned(found, Counted)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Count a copy into a part."""
        _refuse_strangers("setitem", [self, value])
        plain, key = turned(self), turned(key)
        TALLY.add("setitem", [], np.size(plain[key]))
        plain[key] = turned(value)


def _method(name: str) -> Callable[..., Any]:
    plain = getattr(np.ndarray, name)
    return lambda *given, **options: passed_on(name, plain, given, options)


for _name in METHODS:
    setattr(Counted, _name, _method(_name))


def passed_on(name: str, call: Any, args: Any, options: Any) -> Any:
    """Make a call with plain arrays, and count it if it computed or copied."""
    _refuse_strangers(name, list(_arrays([args, options])))
    args, options = turned(args), turned(options)
    result = call(*args, **options)
    given, made = list(_arrays([args, options])), list(_arrays(result))
    new = [x for x in made if not is_view(x, given)]
    looked = name in LOOKS or (made and not new and options.get("out") is None)
    if name in PRODUCTS:
        TALLY.add(name, new, 0, products=np.size(result) * np.shape(args[0])[-1])
    elif not looked:
        filled = [] if name.startswith("empty") else made
        TALLY.add(name, new, max((x.size for x in (*given, *filled)), default=0))
    return turned(result, Counted)


def is_view(x: Any, given: list[Any]) -> bool:
    """Whether an array lies in one of those given, or nowhere: it has no entries."""
    return not x.size or any(np.may_share_memory(x, y) for y in given)


def _refuse_strangers(name: str, met: list[Any]) -> None:
    plain = [x.shape for x in met if type(x) is np.ndarray and x.ndim]
    if plain and any(type(x) is Counted for x in met):
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


def turned(x: Any, into: type = np.ndarray) -> Any:
    """Return nested tuples, lists and dicts with their arrays seen as another type."""
    if isinstance(x, np.ndarray):
        return x.view(into)
    if isinstance(x, dict):
        return {name: turned(y, into) for name, y in x.items()}
    if type(x) in (tuple, list):
        return type(x)(turned(y, into) for y in x)
    return x


def _making(plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **options: passed_on(plain.__name__, plain, given, options)


def _counting(module: ModuleType) -> ModuleType:
    """Return a copy of NumPy, or of a module like it, that makes counted arrays."""
    copy, names = ModuleType(module.__name__), vars(module)
    making = {name: _making(names[name]) for name in MAKING if name in names}
    vars(copy).update({**names, **making, "ndarray": Counted})
    return copy


NUMPY, NAMESPACE = _counting(np), _counting(array_api_compat.numpy)
assert backend  # loaded here: `counting` changes modules that are loaded
# What modules of the library have imported, and what they see instead.
SEEN = [(np, NUMPY), (as_strided, _making(as_strided))]


@contextmanager
def counting() -> Iterator[Tally]:
    """Let the library make counted arrays."""
    changed = [
        (vars(module), key, plain, counted)
        for name, module in list(sys.modules.items())
        if name.startswith("linkern")
        for key, found in vars(module).items()
        for plain, counted in SEEN
        if found is plain
    ]
    known = array._NAMESPACES
    kept = dict(known)
    for kinds in ([Counted], [np.ndarray, Counted]):
        known[frozenset(kinds)] = NAMESPACE
    for names, key, _, counted in changed:
        names[key] = counted
    TALLY.clear()
    workspace.clear()  # buffers are counted, and of the class that counts
    try:
        yield TALLY
    finally:
        workspace.clear()
        for names, key, plain, _ in changed:
            names[key] = plain
        known.clear()
        known.update(kept)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let nothing depend on the number of cores, or on when cycles are collected."""
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
        From the class that all its arrays are of to a call without arguments.

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

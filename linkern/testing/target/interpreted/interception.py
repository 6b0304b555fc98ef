"""Loads, stores and atomics of Triton's interpreter, each checked before it is made.

The interpreter reads and writes through raw pointers. Here every pointer carries the
tag of its argument; entries out of bounds are recorded and left out, and a load of
memory that nothing wrote is recorded.
"""

from importlib import import_module
from typing import Any

import numpy as np

from linkern.testing.target.interpreted.accesses import Accesses
from linkern.testing.target.interpreted.allocations import mark, marked
from linkern.testing.target.interpreted.regions import plain

__all__ = ["install"]


def install(accesses: Accesses) -> None:
    """Have the interpreter check every access."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    _install_tags(interpreter, accesses)
    _install_loads(interpreter, accesses)
    _install_stores(interpreter, accesses)
    _install_atomics(interpreter, accesses)


def _install_tags(interpreter: Any, accesses: Accesses) -> None:
    """Tag the pointers of tensors that are passed to a launch."""
    names: dict[int, str] = {}
    executor, convert = interpreter.GridExecutor, interpreter._implicit_cvt
    to_host = executor._init_args_hst

    def named_on_host(self: Any, args: Any, keywords: Any) -> Any:
        on_host, keywords_on_host = to_host(self, args, keywords)
        names.clear()
        for name, x in zip(self.arg_names, on_host, strict=False):
            _name(names, name, x)
        for name, x in keywords_on_host.items():
            _name(names, name, x)
        return on_host, keywords_on_host

    def converted(x: Any) -> Any:
        tensor = convert(x)
        if hasattr(x, "data_ptr"):
            base = interpreter._unwrap_tensor(x)
            name = names.get(id(x), "an argument")
            tensor.handle.data[0] = accesses.regions.tagged(name, base)
        return tensor

    executor._init_args_hst = named_on_host
    interpreter._implicit_cvt = converted


def _name(names: dict[int, str], name: str, x: Any) -> None:
    """Name the tensors in an argument."""
    if hasattr(x, "data_ptr"):
        names[id(x)] = name
    elif isinstance(x, tuple):
        for i, one in enumerate(x):
            _name(names, f"{name}[{i}]", one)
    elif hasattr(x, "block_shape"):
        _name(names, name, x.base)


def _install_loads(interpreter: Any, accesses: Accesses) -> None:
    handle = interpreter.TensorHandle
    load = interpreter.InterpreterBuilder.create_masked_load

    def checked(
        self: Any, pointers: Any, mask: Any, other: Any, *policy: Any, **named: Any
    ) -> Any:
        wrong = accesses.checked(pointers, mask.data, "load", self.grid_idx)
        if wrong is not None:
            mask = handle(mask.data & ~wrong, mask.dtype)
        places = handle(plain(pointers.data), pointers.dtype)
        loaded = load(self, places, mask, other, *policy, **named)
        dtype = loaded.dtype.name
        unwritten = marked(loaded.data, dtype)
        if unwritten is not None and unwritten.any():
            accesses.note_unwritten(pointers.data[unwritten])
        if wrong is not None:
            mark(loaded.data, wrong, dtype)
        return loaded

    interpreter.InterpreterBuilder.create_masked_load = checked


def _install_stores(interpreter: Any, accesses: Accesses) -> None:
    handle = interpreter.TensorHandle
    store = interpreter.InterpreterBuilder.create_masked_store

    def checked(self: Any, pointers: Any, value: Any, mask: Any, *policy: Any) -> Any:
        wrong = accesses.checked(pointers, mask.data, "store", self.grid_idx)
        if wrong is not None:
            mask = handle(mask.data & ~wrong, mask.dtype)
        places = handle(plain(pointers.data), pointers.dtype)
        return store(self, places, value, mask, *policy)

    interpreter.InterpreterBuilder.create_masked_store = checked


def _install_atomics(interpreter: Any, accesses: Accesses) -> None:
    handle, builder = interpreter.TensorHandle, interpreter.InterpreterBuilder
    modify, exchange = builder.create_atomic_rmw, builder.create_atomic_cas

    def modified(
        self: Any, kind: Any, pointers: Any, value: Any, mask: Any, *order: Any
    ) -> Any:
        wrong = accesses.checked(pointers, mask.data, "atomic", self.grid_idx)
        if wrong is not None:
            mask = handle(mask.data & ~wrong, mask.dtype)
        places = handle(plain(pointers.data), pointers.dtype)
        return modify(self, kind, places, value, mask, *order)

    def exchanged(
        self: Any, pointers: Any, compared: Any, value: Any, *order: Any
    ) -> Any:
        everywhere = np.ones(pointers.data.shape, bool)
        wrong = accesses.checked(pointers, everywhere, "atomic", self.grid_idx)
        places = plain(pointers.data)
        scratch = np.zeros(1, np.uint64)
        if wrong is not None:  # it has no mask, so what is out of bounds goes elsewhere
            places = np.where(wrong, np.uint64(scratch.ctypes.data), places)
        places = handle(places, pointers.dtype)
        return exchange(self, places, compared, value, *order)

    builder.create_atomic_rmw, builder.create_atomic_cas = modified, exchanged

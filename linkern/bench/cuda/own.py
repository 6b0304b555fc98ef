"""linkern on arrays of CuPy, as a user calls it, and copying memory."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import linkern
from linkern.bench.cuda import prepared
from linkern.bench.cuda.clocks import CuPyClock
from linkern.bench.cuda.prepared import OnDevice
from linkern.bench.cuda.tasks import COPIED, rotated
from linkern.bench.tasks import Inputs, Real, Task
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["copy", "prepare"]

Arrays = list[Any]
_NAMES = ("query", "key", "value")


def prepare(inputs: Inputs, task: Task) -> OnDevice:
    """Return the calls of a task."""
    clock, length = CuPyClock(), inputs.query.shape[2]
    made = {"causal": _causal, "gradient": _gradient, "decode": _token}[task.kind]
    new = partial(_set, inputs, task)
    sets = [clock.run(new) for _ in range(rotated(task, length))]
    calls = tuple(clock.run(partial(made, given)) for given in sets)

    def answer(heads: list[int], rows: list[int]) -> list[Real]:
        if task.kind == "decode":
            return [clock.run(partial(_decoded, sets[0], heads, rows))]
        return [_read(x, heads, rows) for x in clock.run(calls[0])]

    return OnDevice(clock, calls, answer)


def _set(inputs: Inputs, task: Task) -> Arrays:
    """Return arrays ``(B, H, T, dim)`` of their own, on the device."""
    cupy = import_module("cupy")
    like = cupy.asarray(prepared.numbers_of_heads(task))
    found = []
    for x in prepared.parts(inputs, task):
        few = cupy.asarray(prepared.as_bits(x, task.dtype)[0])
        shape = (task.batch, task.heads, *few.shape[1:])
        found.append(few[like].reshape(shape).view(numpy_dtype(task.dtype)))
    return found


def _causal(given: Arrays) -> Callable[[], Arrays]:
    return lambda: [linkern.linear_attention(*given).output]


def _gradient(given: Arrays) -> Callable[[], Arrays]:
    """Go forwards once, and backwards in each call."""
    _, pullback = linkern.vjp(linkern.linear_attention, *given[:3])

    def call() -> Arrays:
        gradients = pullback(given[3])
        return [gradients[name] for name in _NAMES]

    return call


def _token(given: Arrays) -> Callable[[], Arrays]:
    """Take one token more after the first, in place."""
    _, decoder = _begun(given)
    second = [x[:, :, 1] for x in given]
    return lambda: [decoder.step(*second)]


def _begun(given: Arrays) -> tuple[Any, Any]:
    """Return the output of the first token, and a decoder of those that follow."""
    output, state = linkern.linear_attention_step(None, *(x[:, :, 0] for x in given))
    return output, linkern.Decoder(state, dtype=output.dtype.name)


def _decoded(given: Arrays, heads: list[int], rows: list[int]) -> Real:
    """Return the rows of all tokens, one after the other."""
    first, decoder = _begun(given)
    found = [_read(first[:, :, None], heads, [0])]
    for i in range(1, given[0].shape[2]):
        output = decoder.step(*(x[:, :, i] for x in given))
        found.append(_read(output[:, :, None], heads, [0]))
    return np.concatenate(found, axis=2)[:, :, rows]


def _read(x: Any, heads: list[int], rows: list[int]) -> Real:
    cupy = import_module("cupy")
    name = x.dtype.name
    bits = x.view({2: np.int16, 4: np.int32}[x.dtype.itemsize])
    bits = bits.reshape(-1, *x.shape[2:])
    some = bits[cupy.asarray(heads)][:, cupy.asarray(rows)]
    return prepared.from_bits(cupy.asnumpy(some), name)[None]


def copy(_inputs: Inputs, _task: Task) -> OnDevice:
    """Return copying an array to another."""
    cupy, clock = import_module("cupy"), CuPyClock()
    source = clock.run(lambda: cupy.ones(COPIED, "uint8"))
    target = clock.run(lambda: cupy.zeros_like(source))
    return OnDevice(clock, (lambda: cupy.copyto(target, source),), lambda *_: [])

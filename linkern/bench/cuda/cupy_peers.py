"""Peers in CuPy: linkern as a user calls it, and copying as the limit."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import linkern
from linkern.bench.cuda import arrays
from linkern.bench.cuda.clocks import CuPyClock, DeviceCalls, Fastest
from linkern.bench.tasks import Inputs, Real, Task
from linkern.kernels.cuda.launch import CuPyDevice
from linkern.kernels.cuda.plan import copy as copy_planner
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["COPIED", "copy", "prepare"]

Arrays = list[Any]
_NAMES = ("query", "key", "value")
# Bytes that are copied.
COPIED = 2**30


def prepare(inputs: Inputs, task: Task) -> DeviceCalls:
    """Return the calls of a task."""
    clock, length = CuPyClock(), inputs.query.shape[2]
    makers: dict[str, Callable[[Arrays], Callable[[], Arrays]]] = {
        "causal": _causal,
        "delta": _delta,
        "kda": _kda,
        "gradient": partial(_gradient, linkern.linear_attention),
        "delta-gradient": partial(_gradient, linkern.gated_delta_rule),
        "decode": _token,
    }
    make = makers[task.kind]
    new = partial(_set, inputs, task)
    sets = [clock.run(new) for _ in range(arrays.rotation(task, length))]
    calls = tuple(clock.run(partial(make, each)) for each in sets)
    heads = task.judged_heads()

    def answer(rows: list[int]) -> list[Real]:
        if task.kind == "decode":
            return [clock.run(partial(_decoded, sets[0], heads, rows))]
        return [_read(x, heads, rows) for x in clock.run(calls[0])]

    return DeviceCalls(clock, calls, answer)


def _set(inputs: Inputs, task: Task) -> Arrays:
    """Return a new set of arrays ``(B, H, T, dim)`` or ``(B, H, T)`` on the device."""
    cupy = import_module("cupy")
    heads = cupy.asarray(arrays.head_indices(task))
    results = []
    for x, dtype in arrays.of_task(inputs, task):
        few = cupy.asarray(arrays.as_bits(x, dtype)[0])
        shape = (task.batch, task.heads, *few.shape[1:])
        results.append(few[heads].reshape(shape).view(numpy_dtype(dtype)))
    return results


def _causal(inputs: Arrays) -> Callable[[], Arrays]:
    return lambda: [linkern.linear_attention(*inputs).output]


def _delta(inputs: Arrays) -> Callable[[], Arrays]:
    return lambda: [linkern.gated_delta_rule(*inputs).output]


def _kda(inputs: Arrays) -> Callable[[], Arrays]:
    return lambda: [linkern.kda(*inputs).output]


def _gradient(op: Callable[..., Any], inputs: Arrays) -> Callable[[], Arrays]:
    """Run the forward pass once, and the backward pass in each call."""
    query, key, value, cotangent, *gates = inputs
    _, pullback = linkern.vjp(op, query, key, value, *gates)

    def call() -> Arrays:
        gradients = pullback(cotangent)
        return [gradients[name] for name in _NAMES]

    return call


def _token(inputs: Arrays) -> Callable[[], Arrays]:
    """Decode the second token repeatedly, in place."""
    _, decoder = _begun(inputs)
    second = [x[:, :, 1] for x in inputs]
    return lambda: [decoder.step(*second)]


def _begun(inputs: Arrays) -> tuple[Any, Any]:
    """Return the output of the first token, and a decoder of those that follow."""
    output, state = linkern.linear_attention_step(None, *(x[:, :, 0] for x in inputs))
    return output, linkern.Decoder(state, dtype=output.dtype.name)


def _decoded(inputs: Arrays, heads: list[int], rows: list[int]) -> Real:
    """Decode all tokens and return some of them."""
    first, decoder = _begun(inputs)
    outputs = [_read(first[:, :, None], heads, [0])]
    for i in range(1, inputs[0].shape[2]):
        output = decoder.step(*(x[:, :, i] for x in inputs))
        outputs.append(_read(output[:, :, None], heads, [0]))
    return np.concatenate(outputs, axis=2)[:, :, rows]


def _read(x: Any, heads: list[int], rows: list[int]) -> Real:
    cupy = import_module("cupy")
    name = x.dtype.name
    bits = x.view({2: np.int16, 4: np.int32}[x.dtype.itemsize])
    bits = bits.reshape(-1, *x.shape[2:])
    some = bits[cupy.asarray(heads)][:, cupy.asarray(rows)]
    return arrays.from_bits(cupy.asnumpy(some), name)[None]


def copy(_inputs: Inputs, _task: Task) -> Fastest:
    """Return copying an array to another: by CuPy, and by a kernel of our own.

    A copy that is a node of a graph is slower than the same copy outside of one, and
    than a kernel in a graph: contestants are compared with what the memory can do.
    """
    cupy, clock, device = import_module("cupy"), CuPyClock(), CuPyDevice()
    source = clock.run(lambda: cupy.ones(COPIED, "uint8"))
    target = clock.run(lambda: cupy.zeros_like(source))
    launch = copy_planner.plan(device, source, target)
    calls = {
        "copyto": lambda: cupy.copyto(target, source),
        "kernel": lambda: device.launch(launch),
    }
    return Fastest(
        {
            name: DeviceCalls(clock, [call], lambda _: [], graph=name == "kernel")
            for name, call in calls.items()
        }
    )

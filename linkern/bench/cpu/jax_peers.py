"""Peers in JAX: linkern under `jax.jit`, and chunk forms written by hand as a scan.

The scans carry the state and take one chunk at a time. A task that compiles times
`jax.jit`, tracing included; what JAX has kept is thrown away before each call.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

import linkern
from linkern.bench.clocks import HostCall, Peak, Prepared, Real, Turn, timed
from linkern.bench.memory import peak_by_growth, peak_by_tracing
from linkern.bench.tasks import Inputs, Task

__all__ = ["delta_jitted", "delta_scan", "linkern_jitted", "scan"]

Traced = Any
Form = Callable[..., Traced]


def linkern_jitted(inputs: Inputs, task: Task) -> Prepared:
    """Return the call of linkern under `jax.jit`, its gradients by `linkern.vjp`."""
    arrays = _arrays(inputs.arrays()[:3], task)
    return _by_linkern(linkern.linear_attention, arrays, inputs, task)


def scan(inputs: Inputs, task: Task, *, size: int) -> Prepared:
    """Return the scan over chunks, jitted."""
    arrays = _arrays(inputs.arrays()[:3], task)
    return _by_hand(_form(size), arrays, inputs, task)


def delta_jitted(inputs: Inputs, task: Task) -> Prepared:
    """Return gated delta rule of linkern under `jax.jit`."""
    return _by_linkern(linkern.gated_delta_rule, _gated(inputs, task), inputs, task)


def delta_scan(inputs: Inputs, task: Task, *, size: int) -> Prepared:
    """Return gated delta rule as a scan over chunks, jitted."""
    return _by_hand(_delta_form(size), _gated(inputs, task), inputs, task)


def _arrays(arrays: Sequence[Any], task: Task) -> list[Traced]:
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", task.dtype == "float64")
    return [jax.numpy.asarray(x) for x in arrays]


def _gated(inputs: Inputs, task: Task) -> list[Traced]:
    """Return query, key, value, log-decays and rates."""
    return _arrays((*inputs.arrays()[:3], *inputs.gates(task.kind)), task)


def _by_linkern(op: Form, arrays: list[Traced], inputs: Inputs, task: Task) -> Prepared:
    def gradient(cotangent: Traced, *arrays: Traced) -> tuple[Traced, ...]:
        result, pullback = linkern.vjp(op, *arrays)
        return (result.output, *pullback(cotangent).values())

    return _call(lambda *x: op(*x).output, gradient, arrays, inputs, task)


def _by_hand(form: Form, arrays: list[Traced], inputs: Inputs, task: Task) -> Prepared:
    def gradient(cotangent: Traced, *arrays: Traced) -> tuple[Traced, ...]:
        output, pullback = import_module("jax").vjp(form, *arrays)
        return (output, *pullback(cotangent))

    return _call(form, gradient, arrays, inputs, task)


def _call(
    forward: Form, gradient: Form, arrays: list[Traced], inputs: Inputs, task: Task
) -> Prepared:
    """Return what a task times: a call or its compilation, alone or with gradients."""
    jax = import_module("jax")
    function = forward
    if task.kind != "causal":
        function, arrays = gradient, [*_arrays([inputs.cotangent], task), *arrays]

    def read(results: Any) -> list[Any]:
        arrays = map(np.asarray, jax.tree.leaves(results))
        return [x for x in arrays if x.ndim == inputs.query.ndim]  # no gates

    if task.kind in ("causal", "gradient"):
        run = jax.jit(function)  # the compiler runs with the first call, untimed
        return HostCall(lambda: jax.block_until_ready(run(*arrays)), read)

    def compiled() -> Any:
        jax.clear_caches()
        return jax.jit(function).lower(*arrays).compile()

    # With gradients of 65,536 tokens a run takes minutes, and nobody compares them.
    judged = task.kind != "compile-delta"
    return _Compilation(compiled, lambda made: read(made(*arrays)), judged)


@dataclass(frozen=True)
class _Compilation:
    """Tracing and compiling a call. What was compiled runs to be judged, untimed."""

    call: Callable[[], Any]
    # Runs what was compiled, and returns the arrays that are compared.
    read: Callable[[Any], list[Real]]
    judged: bool

    def answer(self, rows: list[int]) -> list[Real]:
        """Compile and run once, and return some tokens of all outputs, in float64."""
        return HostCall(self.call, self.read).answer(rows) if self.judged else []

    def turn(self, window: float) -> Turn:
        """Compile again for some seconds."""
        gc.collect()
        return timed(self.call, window)

    def peak(self, *, traced: bool) -> Peak:
        """Return the most memory of compiling once more."""
        return Peak((peak_by_tracing if traced else peak_by_growth)(self.call))


def _in_chunks(x: Traced, size: int) -> Traced:
    """Return ``(B, H, T, ...)`` as ``(T / size, B, H, size, ...)``."""
    split = x.reshape(*x.shape[:2], -1, size, *x.shape[3:])
    return import_module("jax.numpy").moveaxis(split, 2, 0)


def _folded(one: Form, state: Traced, arrays: Sequence[Traced], size: int) -> Traced:
    """Return the outputs of all chunks in the order of their tokens."""
    jax = import_module("jax")
    chunks = tuple(_in_chunks(x, size) for x in arrays)
    _, outputs = jax.lax.scan(one, state, chunks)
    return jax.numpy.moveaxis(outputs, 0, 2).reshape(arrays[2].shape)


def _form(size: int) -> Form:
    jax = import_module("jax")
    jnp = jax.numpy

    def one(state: Traced, chunk: tuple[Traced, ...]) -> tuple[Traced, Traced]:
        query, key, value = chunk
        q, k = jax.nn.elu(query) + 1, jax.nn.elu(key) + 1
        ones = jnp.ones((*value.shape[:-1], 1), value.dtype)
        values = jnp.concatenate((value, ones), -1)
        across = jnp.swapaxes(k, -1, -2)
        sums = jnp.tril(q @ across) @ values + q @ state
        return state + across @ values, sums[..., :-1] / sums[..., -1:]

    def form(query: Traced, key: Traced, value: Traced) -> Traced:
        shape = (*key.shape[:2], key.shape[-1], value.shape[-1] + 1)
        start = jnp.zeros(shape, value.dtype)
        return _folded(one, start, (query, key, value), size)

    return form


def _delta_form(size: int) -> Form:
    jax = import_module("jax")
    jnp = jax.numpy

    def one(state: Traced, chunk: tuple[Traced, ...]) -> tuple[Traced, Traced]:
        query, key, value, log_decay, beta = chunk
        sums = jnp.cumsum(log_decay, -1)
        between = jnp.tril(sums[..., :, None] - sums[..., None, :])
        weights, entering = jnp.tril(jnp.exp(between)), jnp.exp(sums)[..., None]
        erase, across = beta[..., None] * key, jnp.swapaxes(key, -1, -2)
        written = jax.lax.linalg.triangular_solve(
            jnp.tril(erase @ across * weights, -1),
            beta[..., None] * value - (erase * entering) @ state,
            left_side=True,
            lower=True,
            unit_diagonal=True,
        )
        output = (query * entering) @ state + (query @ across * weights) @ written
        leaving = jnp.exp(sums[..., -1:] - sums)[..., None, :]
        state = jnp.exp(sums[..., -1])[..., None, None] * state
        return state + (across * leaving) @ written, output / key.shape[-1] ** 0.5

    def form(*arrays: Traced) -> Traced:
        key, value = arrays[1:3]
        shape = (*key.shape[:2], key.shape[-1], value.shape[-1])
        return _folded(one, jnp.zeros(shape, value.dtype), arrays, size)

    return form

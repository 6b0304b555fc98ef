"""Peers in JAX: the chunk form as a compiled scan that carries the state."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from linkern.bench.clocks import HostCall
from linkern.bench.tasks import Inputs, Task

__all__ = ["scan"]

Traced = Any


def scan(inputs: Inputs, task: Task, *, size: int) -> HostCall:
    """Return the call, jitted; the compiler runs with the first one, untimed."""
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", task.dtype == "float64")
    arrays = [jax.numpy.asarray(x) for x in inputs.arrays()[:3]]
    form = _form(jax, size)
    if task.kind != "gradient":
        run = jax.jit(form)
        return HostCall(
            lambda: run(*arrays).block_until_ready(),
            lambda output: [np.asarray(output)],
        )
    cotangent = jax.numpy.asarray(inputs.cotangent)

    def both(*inputs: Traced) -> tuple[Traced, ...]:
        output, pullback = jax.vjp(form, *inputs)
        return (output, *pullback(cotangent))

    run = jax.jit(both)
    return HostCall(
        lambda: jax.block_until_ready(run(*arrays)),
        lambda results: [np.asarray(x) for x in results],
    )


def _form(jax: Any, size: int) -> Callable[..., Traced]:
    jnp = jax.numpy

    def in_chunks(x: Traced) -> Traced:
        """Return ``(..., T, dim)`` as ``(T / size, ..., size, dim)``."""
        batch = x.shape[:-2]
        split = x.reshape(*batch, -1, size, x.shape[-1])
        return jnp.moveaxis(split, -3, 0)

    def one(state: Traced, chunk: tuple[Traced, ...]) -> tuple[Traced, Traced]:
        query, key, value = chunk
        q, k = jax.nn.elu(query) + 1, jax.nn.elu(key) + 1
        ones = jnp.ones((*value.shape[:-1], 1), value.dtype)
        values = jnp.concatenate((value, ones), -1)
        across = jnp.swapaxes(k, -1, -2)
        sums = jnp.tril(q @ across) @ values + q @ state
        return state + across @ values, sums[..., :-1] / sums[..., -1:]

    def form(query: Traced, key: Traced, value: Traced) -> Traced:
        batch = query.shape[:-2]
        start = jnp.zeros((*batch, key.shape[-1], value.shape[-1] + 1), value.dtype)
        chunks = tuple(in_chunks(x) for x in (query, key, value))
        _, outputs = jax.lax.scan(one, start, chunks)
        return jnp.moveaxis(outputs, 0, -3).reshape(value.shape)

    return form

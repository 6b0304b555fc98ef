"""The chunk form as one writes it in JAX: a compiled scan that carries the memory."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from linkern.bench.tasks import Inputs, Task
from linkern.bench.worker import Prepared

__all__ = ["scan"]

Traced = Any


def scan(inputs: Inputs, task: Task, *, size: int) -> Prepared:
    """Return the call, jitted; the compiler runs with the first one, untimed."""
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", task.dtype == "float64")
    arrays = (inputs.query, inputs.key, inputs.value)
    given = [jax.numpy.asarray(x) for x in arrays]
    form = _form(jax, size)
    if task.kind != "gradient":
        run = jax.jit(form)
        return Prepared(
            lambda: run(*given).block_until_ready(), lambda made: [np.asarray(made)]
        )
    cotangent = jax.numpy.asarray(inputs.cotangent)

    def both(*inputs: Traced) -> tuple[Traced, ...]:
        made, pullback = jax.vjp(form, *inputs)
        return (made, *pullback(cotangent))

    run = jax.jit(both)
    return Prepared(
        lambda: jax.block_until_ready(run(*given)),
        lambda made: [np.asarray(x) for x in made],
    )


def _form(jax: Any, size: int) -> Callable[..., Traced]:
    jnp = jax.numpy

    def in_chunks(x: Traced) -> Traced:
        """Return ``(..., T, dim)`` as ``(T / size, ..., size, dim)``."""
        batch = x.shape[:-2]
        split = x.reshape(*batch, -1, size, x.shape[-1])
        return jnp.moveaxis(split, -3, 0)

    def one(memory: Traced, chunk: tuple[Traced, ...]) -> tuple[Traced, Traced]:
        query, key, value = chunk
        q, k = jax.nn.elu(query) + 1, jax.nn.elu(key) + 1
        ones = jnp.ones((*value.shape[:-1], 1), value.dtype)
        values = jnp.concatenate((value, ones), -1)
        across = jnp.swapaxes(k, -1, -2)
        sums = jnp.tril(q @ across) @ values + q @ memory
        return memory + across @ values, sums[..., :-1] / sums[..., -1:]

    def form(query: Traced, key: Traced, value: Traced) -> Traced:
        batch = query.shape[:-2]
        start = jnp.zeros((*batch, key.shape[-1], value.shape[-1] + 1), value.dtype)
        chunks = tuple(in_chunks(x) for x in (query, key, value))
        _, outputs = jax.lax.scan(one, start, chunks)
        return jnp.moveaxis(outputs, 0, -3).reshape(value.shape)

    return form

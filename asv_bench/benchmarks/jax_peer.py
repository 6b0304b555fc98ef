"""JAX under jit: compiling, and running beside a scan over chunks written by hand."""

import time

from .ground import DIM, HEADS, needed, package, ratio
from .inputs import inputs_of


def traced(operator, direction, length):
    """Return JAX, the call or the call with its gradients, and its inputs."""
    jax = package("jax")
    needed("scan", "linkern.core.compiled")  # before, compiling took minutes
    call, vjp = needed(operator), needed("vjp")
    inputs = inputs_of(call, length)
    arrays = {name: jax.numpy.asarray(x) for name, x in inputs.items()}

    def forward(**arrays):
        return call(**arrays).output

    def gradient(**arrays):
        result, pullback = vjp(call, **arrays)
        return result.output, pullback(jax.numpy.ones_like(result.output))

    return jax, forward if direction == "forward" else gradient, arrays


class JaxCompile:
    """Tracing and compiling, which should not grow with the length."""

    params = (
        ["linear_attention", "gated_delta_rule"],
        ["forward", "gradient"],
        [1024, 65536],
    )
    param_names = ("operator", "pass", "length")
    unit = "seconds"
    timeout = 300

    def setup(self, operator, direction, length):
        self.jax, self.function, self.arrays = traced(operator, direction, length)

    def track_compile(self, operator, direction, length):
        return min(self.compiled() for _ in range(3))

    def compiled(self):
        self.jax.clear_caches()
        start = time.perf_counter()
        self.jax.jit(self.function).lower(**self.arrays).compile()
        return time.perf_counter() - start


class JaxRun:
    """Time of a call over that of a scan written by hand, T = 4096."""

    params = ["forward", "gradient"]
    param_names = ("pass",)
    unit = "times"
    timeout = 300
    length = 4096

    def setup(self, direction):
        jax, ours, arrays = traced("linear_attention", direction, self.length)

        def backward(**arrays):
            output, pullback = jax.vjp(lambda x: self.by_hand(jax, **x), arrays)
            return output, pullback(jax.numpy.ones_like(output))

        theirs = backward
        if direction == "forward":

            def theirs(**arrays):
                return self.by_hand(jax, **arrays)

        ours, theirs = jax.jit(ours), jax.jit(theirs)
        self.ours = lambda: jax.block_until_ready(ours(**arrays))
        self.theirs = lambda: jax.block_until_ready(theirs(**arrays))

    def track_call_over_scan(self, direction):
        first, second = (
            x[0] if direction == "gradient" else x for x in (self.ours(), self.theirs())
        )
        assert abs(first - second).max() < 1e-3 * abs(second).max()
        return ratio(self.ours, self.theirs)

    def by_hand(self, jax, query, key, value, chunk=64):
        jnp = jax.numpy

        def one(state, arrays):
            query, key, value = arrays
            across = jnp.swapaxes(key, -1, -2)
            output = query @ state + jnp.tril(query @ across) @ value
            return state + across @ value, output

        def chunks(x):
            return jnp.moveaxis(x.reshape(HEADS, -1, chunk, x.shape[-1]), 1, 0)

        ones = jnp.ones((*value.shape[:-1], 1), value.dtype)
        values = jnp.concatenate((value, ones), -1)
        features = (jax.nn.elu(query) + 1, jax.nn.elu(key) + 1, values)
        state = jnp.zeros((HEADS, DIM, DIM + 1), value.dtype)
        _, sums = jax.lax.scan(one, state, tuple(map(chunks, features)))
        sums = jnp.moveaxis(sums, 0, 1).reshape(values.shape)
        return sums[..., :-1] / sums[..., -1:]

"""How near the limit: of what matrix products can do, and of linear growth.

Both are ratios of times taken in turns in one process, so that they mean something on a
machine that others use too.
"""

import statistics
from contextlib import nullcontext
from functools import partial

import numpy as np

from .ground import HEADS, needed, package, seconds, threads, tokens
from .inputs import inputs_of

CHUNK = 64


def operations(length, dim):
    """Floating-point operations of the chunk form at 64, whatever was executed."""
    return HEADS * length * (2 * CHUNK * 2 * dim + 4 * dim * dim)


class Product:
    """A square matrix product, on as many threads as linkern uses."""

    def __init__(self, dtype, size=1024):
        rng = np.random.default_rng(0)
        self.left, self.right = rng.normal(size=(2, size, size)).astype(dtype)
        self.out = np.empty_like(self.left)
        self.operations = 2 * size**3

    def __call__(self):
        with _threads():
            return seconds(self.once)

    def once(self):
        np.matmul(self.left, self.right, out=self.out)


def _threads():
    try:
        limits = package("threadpoolctl").threadpool_limits
    except NotImplementedError:  # then products take what the environment says
        return nullcontext()
    return limits(threads(), "blas")


class Limit:
    """Causal linear attention on NumPy, T = 4096, beside the product of matrices."""

    params = ([64, 32, 128], ["float32", "float64"])
    param_names = ("dim", "dtype")
    timeout = 300
    length = 4096
    rounds = 7

    def setup(self, dim, dtype):
        inputs = [x.astype(dtype) for x in tokens(self.length, dim)]
        self.forward = partial(needed("linear_attention"), *inputs)
        self.product = Product(dtype)
        self.forward(), self.product()

    def track_gflops(self, dim, dtype):
        taken = (seconds(self.forward) for _ in range(self.rounds))
        return operations(self.length, dim) / statistics.median(taken) / 1e9

    track_gflops.unit = "GFLOP/s"

    def track_fraction_of_product(self, dim, dtype):
        most = self.product.operations / operations(self.length, dim)
        pairs = ((self.product(), seconds(self.forward)) for _ in range(self.rounds))
        return statistics.median(product / forward for product, forward in pairs) / most

    track_fraction_of_product.unit = "of the GFLOP/s of a matrix product"


class Length:
    """The exponent of the time in the length: 1 is linear, 2 is quadratic."""

    params = ["linear_attention", "simple_gla", "gla", "gated_delta_rule"]
    param_names = ("operator",)
    unit = "exponent of T"
    timeout = 600
    lengths = (1024, 4096, 16384, 65536)

    def setup(self, operator):
        self.call = needed(operator)

    def track_exponent(self, operator):
        calls = [partial(self.call, **inputs_of(self.call, n)) for n in self.lengths]
        for call in calls:
            call()
        rounds = [[seconds(call) for call in calls] for _ in range(3)]
        times = np.min(rounds, axis=0)
        return float(np.polyfit(np.log(self.lengths), np.log(times), 1)[0])

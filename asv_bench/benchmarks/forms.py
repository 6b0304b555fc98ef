"""Linear attention by library, form, length and dtype: time and memory.

Causal, 8 heads, K = V = 64, float32 unless said otherwise. Two or three of these vary
at a time: forms at short lengths, lengths and dtypes for the form that users get.
"""

import tracemalloc
from functools import partial

from .ground import BACKENDS, backend, needed, once, skip, tokens


class Forms:
    """The three orders of the sum. The parallel form is quadratic: short lengths."""

    params = (BACKENDS, ["recurrent", "chunkwise", "parallel"], [512, 2048])
    param_names = ("backend", "form", "length")

    def setup(self, name, form, length):
        array, self.wait = backend(name)
        inputs = [array(x, "float32") for x in tokens(length)]
        self.call = once(partial(needed("linear_attention"), *inputs, form=form))

    def time_forward(self, name, form, length):
        self.call()
        self.wait()

    def peakmem_forward(self, name, form, length):
        self.call()


class Lengths:
    """What users get, from short to long."""

    params = (BACKENDS, [1024, 4096, 16384, 65536])
    param_names = ("backend", "length")

    def setup(self, name, length):
        array, self.wait = backend(name)
        inputs = [array(x, "float32") for x in tokens(length)]
        self.call = once(partial(needed("linear_attention"), *inputs))

    def time_forward(self, name, length):
        self.call()
        self.wait()

    def time_not_causal(self, name, length):
        self.call(causal=False)
        self.wait()


class Extra:
    """Memory on NumPy beyond inputs and output: what does not grow with the length."""

    params = [4096, 65536]
    param_names = ("length",)
    unit = "MiB"

    def setup(self, length):
        self.call = once(partial(needed("linear_attention"), *tokens(length)))

    def track_extra(self, length):
        tracemalloc.start()
        try:
            result = self.call()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return (peak - result.output.nbytes) / 2**20


class Dtypes:
    """T = 4096."""

    params = (BACKENDS, ["float16", "bfloat16", "float32", "float64"])
    param_names = ("backend", "dtype")

    def setup(self, name, dtype):
        array, self.wait = backend(name)
        if name == "cupy" and dtype == "bfloat16":
            skip("CuPy has no bfloat16")
        inputs = [array(x, dtype) for x in tokens(4096)]
        self.call = once(partial(needed("linear_attention"), *inputs))

    def time_forward(self, name, dtype):
        self.call()
        self.wait()

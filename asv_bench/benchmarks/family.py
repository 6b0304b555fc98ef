"""Every operator of the family: its forms, a PyTorch loop over chunks, and the length.

Float32, 8 heads, K = V = 64 (K = 16 where features have K^2 channels), mild decays.
Ratios are taken in one process, the two alternating, as the median of pairs: a machine
that is slow for a while is slow for both.
"""

import statistics
import time
from functools import partial

import numpy as np

import linkern
import linkern.operators
from linkern._operator import DEFINITIONS

HEADS, DIM = 8, 64
LENGTH = 4096
OPERATORS = [
    name
    for name in linkern.operators.__all__
    if name not in ("linear_attention", "linear_attention_step", "ssd")
]
# One of each kind of decay and update, for what is slow to measure.
KINDS = ["retention", "simple_gla", "gla", "delta_rule", "gated_delta_rule", "kda"]


def inputs_of(name, length, seed=0):
    """Inputs of an operator, by the names of its parameters."""
    rng = np.random.default_rng(seed)
    key_dim = 16 if name in ("based", "rebased") else DIM

    def unit(*shape):
        x = rng.normal(size=shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    token, keys, values = (
        (HEADS, length),
        (HEADS, length, key_dim),
        (HEADS, length, DIM),
    )
    wide = {
        "query": rng.normal(size=keys),
        "key": unit(*keys),
        "value": rng.normal(size=values),
        "beta": rng.uniform(size=token),
        "log_decay": -abs(rng.normal(size=token)) / 10,
        "auxiliary_key": unit(*keys),
        "a": -unit(*keys),
        "b": 0.5 * unit(*keys),
        "removal_key": unit(*keys),
        "removal_rate": rng.uniform(size=keys),
        "erase_gate": rng.uniform(size=keys),
        "write_gate": rng.uniform(size=values),
        "slots": rng.uniform(size=values),
        "bonus": rng.normal(size=(HEADS, DIM)),
        "ridge": rng.uniform(0.5, 1.5, size=(HEADS, DIM)),
        "level_scales": rng.uniform(size=(HEADS, length, length.bit_length() + 1)),
    }
    if name in ("gla", "rwkv6", "rwkv7", "dplr", "kda", "gdn2", "gsa", "hgrn", "oja"):
        wide["log_decay"] = -abs(rng.normal(size=values)) / 10
    if name == "rwkv4":
        wide["log_decay"] = -abs(rng.normal(size=(HEADS, DIM))) / 10
    if name == "oja":
        wide["value"] = unit(*values)
    if name == "gated_delta_product":
        wide["key"], wide["value"] = (
            np.repeat(wide[n], 2, 1) for n in ("key", "value")
        )
        wide["beta"] = np.repeat(wide["beta"], 2, 1)
    axes = DEFINITIONS[name].axes
    own = [n for n in axes if n != "log_decay" or axes[n]]
    return {n: wide[n].astype("float32") for n in own}


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def ratio(slow, fast, pairs=3):
    """How many times longer `slow` takes than `fast`: the median of pairs."""
    fast()
    return statistics.median(seconds(slow) / seconds(fast) for _ in range(pairs))


class Operators:
    """Forward, T = 4096."""

    params = (OPERATORS, ["chunkwise", "recurrent"])
    param_names = ("operator", "form")
    timeout = 300

    def setup(self, operator, form):
        self.call = getattr(linkern, operator)
        self.inputs = inputs_of(operator, LENGTH)

    def time_forward(self, operator, form):
        self.call(**self.inputs, form=form)

    def peakmem_forward(self, operator, form):
        self.call(**self.inputs, form=form)


class Ratios:
    """How many times faster the chunkwise form is than the recurrent one, T = 4096."""

    params = OPERATORS
    param_names = ("operator",)
    timeout = 300

    def track_recurrent_over_chunkwise(self, operator):
        call, inputs = getattr(linkern, operator), inputs_of(operator, LENGTH)
        return ratio(lambda: call(**inputs, form="recurrent"), lambda: call(**inputs))


class Gradients:
    """Forward and back, T = 1024, chunkwise."""

    params = KINDS
    param_names = ("operator",)

    def setup(self, operator):
        self.call = getattr(linkern, operator)
        self.inputs = inputs_of(operator, 1024)

    def time_vjp(self, operator):
        result, pullback = linkern.vjp(self.call, **self.inputs)
        pullback(result.output)

    def peakmem_vjp(self, operator):
        result, pullback = linkern.vjp(self.call, **self.inputs)
        pullback(result.output)


class Length:
    """The exponent of the time in the length, fitted from 1,024 to 65,536 tokens."""

    params = ["simple_gla", "gla", "gated_delta_rule"]
    param_names = ("operator",)
    timeout = 600
    lengths = (1024, 4096, 16384, 65536)

    def track_exponent(self, operator):
        call = getattr(linkern, operator)
        times = []
        for length in self.lengths:
            forward = partial(call, **inputs_of(operator, length))
            forward()
            times.append(min(seconds(forward) for _ in range(2)))
        return float(np.polyfit(np.log(self.lengths), np.log(times), 1)[0])


class Torch:
    """How many times longer a plain loop over chunks takes in PyTorch, T = 4096."""

    params = ["simple_gla", "gated_delta_rule"]
    param_names = ("operator",)

    def setup(self, operator):
        try:
            import torch
        except ImportError:
            msg = "PyTorch is not installed"
            raise NotImplementedError(msg) from None
        self.torch = torch
        self.inputs = inputs_of(operator, LENGTH)
        self.tensors = {n: torch.asarray(x) for n, x in self.inputs.items()}

    def track_torch_over_chunkwise(self, operator):
        call, step = getattr(linkern, operator), getattr(self, operator)
        ours, theirs = call(**self.inputs).output, self.loop(step).numpy()
        assert abs(ours - theirs).max() < 1e-3 * abs(ours).max()
        return ratio(lambda: self.loop(step), lambda: call(**self.inputs))

    def loop(self, step, chunk=64):
        torch, x = self.torch, self.tensors
        memory = torch.zeros((HEADS, DIM, DIM))
        outputs = []
        for start in range(0, LENGTH, chunk):
            of = {n: t[:, start : start + chunk] for n, t in x.items()}
            sums = of["log_decay"].cumsum(-1)
            weights = (sums[..., :, None] - sums[..., None, :]).tril().exp().tril()
            output, memory = step(memory, of, sums[..., None], weights)
            outputs.append(output)
        return torch.cat(outputs, 1) * DIM**-0.5

    def simple_gla(self, memory, of, sums, weights):
        return self.finished(memory, of, sums, weights, of["value"])

    def gated_delta_rule(self, memory, of, sums, weights):
        beta = of["beta"][..., None]
        pairs = (beta * of["key"] @ of["key"].mT * weights).tril(-1)
        held = of["value"] - (sums.exp() * of["key"]) @ memory
        eye = self.torch.eye(pairs.shape[-1])
        written = self.torch.linalg.solve_triangular(
            eye + pairs, beta * held, upper=False, unitriangular=True
        )
        return self.finished(memory, of, sums, weights, written)

    def finished(self, memory, of, sums, weights, written):
        last = sums[:, -1:]
        output = (sums.exp() * of["query"]) @ memory
        output = output + (of["query"] @ of["key"].mT * weights) @ written
        left = ((last - sums).exp() * of["key"]).mT @ written
        return output, last.exp() * memory + left

"""Peers from published packages, called as their own layers call them.

Only arithmetic is timed, not projections. Inputs lie as each package wants them, and
epsilons are switched off where there is a switch.
"""

from importlib import import_module
from typing import Any

import numpy as np

from linkern.bench.clocks import HostCall
from linkern.bench.cpu.numpy_peers import tokens
from linkern.bench.cpu.torch_peers import (
    feature_map,
    tensors,
    torch_with_threads,
    with_gradient,
    without_gradient,
)
from linkern.bench.tasks import Inputs, Task

__all__ = ["buckets", "kernel", "layer", "linear_layer", "performer", "recurrent"]

Tensor = Any


def layer(inputs: Inputs, task: Task) -> HostCall:
    """Return `CausalLinearAttention` of fast-transformers, with its masks made."""
    attention = import_module("fast_transformers.attention").CausalLinearAttention
    masking = import_module("fast_transformers.masking")
    return _layer(attention, masking.TriangularCausalMask, inputs, task)


def linear_layer(inputs: Inputs, task: Task) -> HostCall:
    """Return `LinearAttention` of fast-transformers."""
    attention = import_module("fast_transformers.attention").LinearAttention
    masking = import_module("fast_transformers.masking")
    return _layer(attention, masking.FullMask, inputs, task)


def _layer(attention: Any, mask: Any, inputs: Inputs, task: Task) -> HostCall:
    torch = torch_with_threads()
    masking = import_module("fast_transformers.masking")
    length = inputs.query.shape[2]
    whole = torch.full((task.batch,), length, dtype=torch.int64)
    # FullMask(length) would allocate T^2 entries; the layer reads only `all_ones`.
    seen = mask(length) if mask is not masking.FullMask else _AllOnes()
    lengths = masking.LengthMask(whole, max_len=length)
    module = attention(task.dim, eps=0.0)

    def form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return module(query, key, value, seen, lengths, lengths)

    prepare = with_gradient if task.kind == "gradient" else without_gradient
    return prepare(form, inputs, swapped=True)


class _AllOnes:
    """A full mask without its matrix."""

    all_ones = True


def kernel(inputs: Inputs, _task: Task) -> HostCall:
    """Return the C++ kernel of fast-transformers, given features."""
    torch = torch_with_threads()
    product = import_module("fast_transformers.causal_product").causal_dot_product
    query, key, value = tensors(inputs.query, inputs.key, inputs.value)
    elu_plus_one = feature_map()
    query, key = elu_plus_one(query), elu_plus_one(key)

    def call() -> Tensor:
        with torch.inference_mode():
            return product(query, key, value)

    return HostCall(call, lambda output: [output.numpy()])


def recurrent(inputs: Inputs, task: Task) -> HostCall:
    """Return `RecurrentLinearAttention` of fast-transformers, token by token."""
    torch = torch_with_threads()
    recurrent = import_module("fast_transformers.recurrent.attention")
    module = recurrent.RecurrentLinearAttention(task.dim, eps=0.0)
    parts = tensors(*tokens(inputs))

    def call() -> list[Tensor]:
        state, outputs = None, []
        with torch.inference_mode():
            for query, key, value in zip(*parts, strict=True):
                output, state = module(query, key, value, state)
                outputs.append(output)
        return outputs

    return HostCall(
        call, lambda out: [np.moveaxis(np.stack([x.numpy() for x in out]), 0, 2)]
    )


def buckets(inputs: Inputs, _task: Task) -> HostCall:
    """Return `causal_linear_attn` with buckets of one token, as its layer has them."""
    package = import_module("linear_attention_transformer.linear_attention_transformer")
    attend = package.causal_linear_attn
    return without_gradient(lambda *tensors: attend(*tensors, bucket_size=1), inputs)


def performer(inputs: Inputs, task: Task) -> HostCall:
    """Return the code of performer-pytorch after its features, here with elu + 1."""
    package = import_module("performer_pytorch.performer_pytorch")
    causal, elu_plus_one = task.kind == "causal", feature_map()

    def form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k = elu_plus_one(query), elu_plus_one(key)
        if causal:
            return package.causal_linear_attention_noncuda(q, k, value, eps=0.0)
        return package.linear_attention(q, k, value)

    return without_gradient(form, inputs)

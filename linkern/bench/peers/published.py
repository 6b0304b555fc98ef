"""Published packages, called as their own layers call them.

Only arithmetic is timed, not projections. Inputs lie as each package wants them, and
epsilons are switched off where there is a switch.
"""

from importlib import import_module
from typing import Any

import numpy as np

from linkern.bench.peers.own import tokens
from linkern.bench.peers.torch_forms import (
    feature_map,
    tensors,
    torch_with_threads,
    with_gradient,
    without_gradient,
)
from linkern.bench.tasks import Inputs, Task
from linkern.bench.worker import Prepared

__all__ = ["buckets", "kernel", "layer", "linear_layer", "performer", "recurrent"]

Tensor = Any


def layer(inputs: Inputs, task: Task) -> Prepared:
    """Return `CausalLinearAttention` of fast-transformers, with its masks made."""
    attention = import_module("fast_transformers.attention").CausalLinearAttention
    masking = import_module("fast_transformers.masking")
    return _layer(attention, masking.TriangularCausalMask, inputs, task)


def linear_layer(inputs: Inputs, task: Task) -> Prepared:
    """Return `LinearAttention` of fast-transformers."""
    attention = import_module("fast_transformers.attention").LinearAttention
    masking = import_module("fast_transformers.masking")
    return _layer(attention, masking.FullMask, inputs, task)


def _layer(attention: Any, mask: Any, inputs: Inputs, task: Task) -> Prepared:
    torch = torch_with_threads()
    masking = import_module("fast_transformers.masking")
    length = inputs.query.shape[2]
    whole = torch.full((task.batch,), length, dtype=torch.int64)
    # A full mask as a matrix of T^2 would be made, and is not looked at, if it had
    # two sizes; only `all_ones` is asked for.
    seen = mask(length) if mask is not masking.FullMask else _AllOnes()
    lengths = masking.LengthMask(whole, max_len=length)
    module = attention(task.dim, eps=0.0)

    def form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return module(query, key, value, seen, lengths, lengths)

    prepared = with_gradient if task.kind == "gradient" else without_gradient
    return prepared(form, inputs, swapped=True)


class _AllOnes:
    """The mask that masks nothing, as a layer asks for it."""

    all_ones = True


def kernel(inputs: Inputs, _task: Task) -> Prepared:
    """Return the C++ kernel of fast-transformers, given features."""
    torch = torch_with_threads()
    product = import_module("fast_transformers.causal_product").causal_dot_product
    query, key, value = tensors(inputs.query, inputs.key, inputs.value)
    elu_plus_one = feature_map()
    query, key = elu_plus_one(query), elu_plus_one(key)

    def call() -> Tensor:
        with torch.inference_mode():
            return product(query, key, value)

    return Prepared(call, lambda made: [made.numpy()])


def recurrent(inputs: Inputs, task: Task) -> Prepared:
    """Return `RecurrentLinearAttention` of fast-transformers, token by token."""
    torch = torch_with_threads()
    recurrent = import_module("fast_transformers.recurrent.attention")
    module = recurrent.RecurrentLinearAttention(task.dim, eps=0.0)
    given = tensors(*tokens(inputs))

    def call() -> list[Tensor]:
        state, outputs = None, []
        with torch.inference_mode():
            for query, key, value in zip(*given, strict=True):
                output, state = module(query, key, value, state)
                outputs.append(output)
        return outputs

    return Prepared(
        call, lambda made: [np.moveaxis(np.stack([x.numpy() for x in made]), 0, 2)]
    )


def buckets(inputs: Inputs, _task: Task) -> Prepared:
    """Return `causal_linear_attn` with buckets of one token, as its layer has them."""
    package = import_module("linear_attention_transformer.linear_attention_transformer")
    attend = package.causal_linear_attn
    return without_gradient(lambda *given: attend(*given, bucket_size=1), inputs)


def performer(inputs: Inputs, task: Task) -> Prepared:
    """Return what performer-pytorch computes from features, here those of elu + 1."""
    package = import_module("performer_pytorch.performer_pytorch")
    causal, elu_plus_one = task.kind == "causal", feature_map()

    def form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k = elu_plus_one(query), elu_plus_one(key)
        if causal:
            return package.causal_linear_attention_noncuda(q, k, value, eps=0.0)
        return package.linear_attention(q, k, value)

    return without_gradient(form, inputs)

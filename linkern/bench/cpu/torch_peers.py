"""Peers in PyTorch: the forms of linear attention, and its softmax attention.

Each is the fastest found here with plain tensor operations: features are computed chunk
by chunk, the sum of the weights is one more column of the values, and a call without
gradients works in place.
"""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import linkern
from linkern.bench.clocks import HostCall
from linkern.bench.cpu.numpy_peers import tokens
from linkern.bench.tasks import Inputs, Task

__all__ = [
    "compiled",
    "feature_map",
    "loop",
    "ours",
    "parallel",
    "products",
    "softmax",
    "steps",
    "tensors",
    "torch_with_threads",
    "without_gradient",
]

Tensor = Any
Form = Callable[[Tensor, Tensor, Tensor], Tensor]


def torch_with_threads() -> Any:
    """Return PyTorch with the number of threads set."""
    torch = import_module("torch")
    torch.set_num_threads(int(os.environ.get("LINKERN_NUM_THREADS", "1")))
    return torch


def feature_map() -> Callable[[Tensor], Tensor]:
    """Return ``elu(x) + 1`` as its users write it."""
    elu = import_module("torch.nn.functional").elu
    return lambda x: elu(x) + 1


def tensors(*arrays: Any) -> list[Tensor]:
    """Return NumPy arrays as tensors that share their memory."""
    torch = torch_with_threads()
    return [torch.from_numpy(x) for x in arrays]


def _tensors(arrays: Sequence[Any], *, swapped: bool) -> list[Tensor]:
    plain = tensors(*arrays)
    return [x.transpose(1, 2).contiguous() for x in plain] if swapped else plain


def without_gradient(form: Form, inputs: Inputs, *, swapped: bool = False) -> HostCall:
    """Return one call of a form; `swapped` for those that want ``(B, T, H, dim)``."""
    torch = torch_with_threads()
    parts = _tensors(inputs.arrays()[:3], swapped=swapped)

    def call() -> Tensor:
        with torch.inference_mode():
            return form(*parts)

    return HostCall(call, lambda x: [(x.transpose(1, 2) if swapped else x).numpy()])


def with_gradient(form: Form, inputs: Inputs, *, swapped: bool = False) -> HostCall:
    """Return one call of a form and of autograd through it."""
    torch = torch_with_threads()
    *parts, cotangent = _tensors(inputs.arrays(), swapped=swapped)
    leaves = [x.requires_grad_() for x in parts]

    def call() -> list[Tensor]:
        output = form(*leaves)
        return [output, *torch.autograd.grad(output, leaves, cotangent)]

    def read(results: list[Tensor]) -> list[Any]:
        plain = (x.detach() for x in results)
        return [(x.transpose(1, 2) if swapped else x).numpy() for x in plain]

    return HostCall(call, read)


def ours(inputs: Inputs, task: Task, *, form: str) -> HostCall:
    """Return linkern on tensors."""

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return linkern.linear_attention(query, key, value, form=form).output

    make = with_gradient if task.kind == "gradient" else without_gradient
    return make(call, inputs)


def loop(inputs: Inputs, task: Task, *, size: int) -> HostCall:
    """Return a loop over chunks that carries the state."""
    if task.kind == "gradient":
        return with_gradient(_differentiable_loop(size), inputs)
    return without_gradient(_loop_in_place(size), inputs)


def _loop_in_place(size: int) -> Form:
    torch, elu_plus_one = torch_with_threads(), feature_map()

    def form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = torch.empty_like(value)
        q, k, v, out = (x.flatten(0, 1) for x in (query, key, value, output))
        heads, length, width = v.shape
        state = v.new_zeros(heads, k.shape[-1], width + 1)
        ones = v.new_ones(heads, size, 1)
        for start in range(0, length, size):
            here = slice(start, start + size)
            queries = elu_plus_one(q[:, here])
            keys = elu_plus_one(k[:, here]).transpose(1, 2)
            values = v[:, here]
            values = torch.cat((values, ones[:, : values.shape[1]]), -1)
            scores = torch.bmm(queries, keys).tril_()
            sums = torch.bmm(scores, values).baddbmm_(queries, state)
            torch.div(sums[..., :-1], sums[..., -1:], out=out[:, here])
            state.baddbmm_(keys, values)
        return output

    return form


def _differentiable_loop(size: int) -> Form:
    """Take chunks by `split`: the gradient of each slice would be a whole array."""
    torch, elu_plus_one = torch_with_threads(), feature_map()

    def form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k = elu_plus_one(query), elu_plus_one(key)
        state: Any = 0.0
        normalizer: Any = 0.0
        outputs: list[Tensor] = []
        chunks = zip(*(x.split(size, dim=-2) for x in (q, k, value)), strict=True)
        for queries, keys, values in chunks:
            across = keys.transpose(-1, -2)
            scores = (queries @ across).tril()
            sums, total = scores @ values, scores.sum(-1, keepdim=True)
            if outputs:
                sums, total = sums + queries @ state, total + queries @ normalizer
            outputs.append(sums / total)
            state = state + across @ values
            normalizer = normalizer + across.sum(-1, keepdim=True)
        return torch.cat(outputs, dim=-2)

    return form


def parallel(inputs: Inputs, task: Task, *, size: int) -> HostCall:
    """Compute the states before all chunks by one cumulative sum."""
    if task.kind == "gradient":
        return with_gradient(all_at_once(size), inputs)
    return without_gradient(_all_in_place(size), inputs)


def all_at_once(size: int) -> Form:
    """Return the form as pure functions of whole arrays."""
    elu_plus_one = feature_map()

    def form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = (elu_plus_one(query), elu_plus_one(key), value)
        q, k, v = (x.unflatten(-2, (-1, size)) for x in parts)
        across = k.transpose(-1, -2)
        state, normalizer = across @ v, k.sum(-2).unsqueeze(-1)
        state = state.cumsum(-3) - state
        normalizer = normalizer.cumsum(-3) - normalizer
        scores = (q @ across).tril()
        total = scores.sum(-1, keepdim=True) + q @ normalizer
        return ((scores @ v + q @ state) / total).flatten(-3, -2)

    return form


def _all_in_place(size: int) -> Form:
    torch = torch_with_threads()
    elu = import_module("torch.nn.functional").elu

    def form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = query.shape[0] * query.shape[1]
        q, k = elu(query).add_(1), elu(key).add_(1)
        q, k, v = (x.reshape(-1, size, x.shape[-1]) for x in (q, k, value))
        across = k.transpose(1, 2)
        state = torch.bmm(across, v).unflatten(0, (heads, -1))
        state = state.cumsum(1).sub_(state).flatten(0, 1)
        normalizer = k.sum(1).unflatten(0, (heads, -1))
        normalizer = normalizer.cumsum(1).sub_(normalizer).flatten(0, 1)
        scores = torch.bmm(q, across).tril_()
        total = scores.sum(-1, keepdim=True).baddbmm_(q, normalizer.unsqueeze(-1))
        sums = torch.bmm(scores, v).baddbmm_(q, state)
        return sums.div_(total).reshape(value.shape)

    return form


def compiled(inputs: Inputs, task: Task, *, size: int) -> HostCall:
    """Return the same compiled; the compiler runs with the first call, untimed."""
    torch = torch_with_threads()
    torch.compiler.reset()  # it keeps only a few shapes of the same code
    form = torch.compile(all_at_once(size), fullgraph=True, dynamic=False)
    if task.kind == "gradient":
        return with_gradient(form, inputs)
    return without_gradient(form, inputs)


def products(inputs: Inputs, _task: Task) -> HostCall:
    """Return linear attention where every query sees every key."""
    elu_plus_one = feature_map()

    def form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k = elu_plus_one(query), elu_plus_one(key)
        total = q @ k.sum(-2).unsqueeze(-1)
        return (q @ (k.transpose(-1, -2) @ value)).div_(total)

    return without_gradient(form, inputs)


def softmax(inputs: Inputs, task: Task) -> HostCall:
    """Return PyTorch's own softmax attention."""
    functional = import_module("torch.nn.functional")
    attend = functional.scaled_dot_product_attention
    causal = task.kind == "causal"
    return without_gradient(lambda *x: attend(*x, is_causal=causal), inputs)


def steps(inputs: Inputs, _task: Task) -> HostCall:
    """Return decoding that adds to the state in place."""
    torch = torch_with_threads()
    elu = import_module("torch.nn.functional").elu
    query, key, value = tensors(*tokens(inputs))
    both = torch.stack((query, key), 1).flatten(2, 3)  # features of both at once
    values = value.flatten(1, 2).unsqueeze(-2)
    cells, dim = both.shape[2:]
    output = torch.empty_like(values)

    def call() -> Tensor:
        state = value.new_zeros(cells, dim, dim)
        normalizer = value.new_zeros(cells, dim, 1)
        with torch.inference_mode():
            for pair, token, out in zip(both, values, output, strict=True):
                features = elu(pair).add_(1)
                row, column = features[0].unsqueeze(1), features[1].unsqueeze(2)
                state.baddbmm_(column, token)
                normalizer.add_(column)
                torch.bmm(row, state, out=out).div_(torch.bmm(row, normalizer))
        return output

    def read(result: Tensor) -> list[Any]:
        return [result.reshape(value.shape).permute(1, 2, 0, 3).numpy()]

    return HostCall(call, read)

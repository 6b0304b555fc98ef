"""Peers in PyTorch on a GPU: FLA's Triton kernels, and plain operations."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from linkern.bench.cuda import arrays
from linkern.bench.cuda.clocks import DeviceCalls, TorchClock
from linkern.bench.tasks import WITH_GRADIENT, Inputs, Real, Task

__all__ = [
    "fla",
    "fla_delta",
    "fla_kda",
    "fla_kernel",
    "fla_steps",
    "loop",
    "softmax",
    "steps",
]

DEVICE = "cuda"

Tensor = Any
Form = Callable[..., Tensor]


def loop(inputs: Inputs, task: Task, *, size: int) -> DeviceCalls:
    """Return a loop over chunks that carries the state in float32."""
    torch, elu = import_module("torch"), import_module("torch.nn.functional").elu

    def form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        state: Any = 0.0
        normalizer: Any = 0.0
        outputs: list[Tensor] = []
        chunks = zip(*(x.split(size, -2) for x in (query, key, value)), strict=True)
        for queries, keys, values in chunks:
            q, k = elu(queries) + 1, elu(keys) + 1
            across = k.transpose(-1, -2)
            scores = (q @ across).tril()
            sums, total = (scores @ values).float(), scores.float().sum(-1, True)
            if outputs:
                sums = sums + (q @ state.to(q.dtype)).float()
                total = total + q.float() @ normalizer
            outputs.append((sums / total).to(value.dtype))
            state = state + (across @ values).float()
            normalizer = normalizer + across.float().sum(-1, True)
        return torch.cat(outputs, -2)

    return _calls_of(form, inputs, task)


def fla(inputs: Inputs, task: Task, *, form: str) -> DeviceCalls:
    """Return FLA's kernel between ``elu(x) + 1`` and the sums of its weights."""
    elu = import_module("torch.nn.functional").elu
    attend = getattr(import_module("fla.ops.linear_attn"), f"{form}_linear_attn")

    def whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(elu(query) + 1, elu(key) + 1, value, scale=1.0, normalize=True)[0]

    return _calls_of(whole, inputs, task, swapped=True)


def fla_kernel(inputs: Inputs, task: Task) -> DeviceCalls:
    """Return FLA's kernel on features that are computed beforehand."""
    attend = import_module("fla.ops.linear_attn").chunk_linear_attn

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, scale=1.0, normalize=False)[0]

    return _calls_of(kernel, inputs, task, swapped=True, mapped=True)


def fla_delta(inputs: Inputs, task: Task) -> DeviceCalls:
    """Return FLA's kernel of gated delta rule."""
    attend = import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    return _calls_of(lambda *inputs: attend(*inputs)[0], inputs, task, swapped=True)


def fla_kda(inputs: Inputs, task: Task) -> DeviceCalls:
    """Return FLA's kernel of Kimi delta attention."""
    attend = import_module("fla.ops.kda").chunk_kda
    return _calls_of(lambda *inputs: attend(*inputs)[0], inputs, task, swapped=True)


def softmax(inputs: Inputs, task: Task) -> DeviceCalls:
    """Return PyTorch's own softmax attention."""
    attend = import_module("torch.nn.functional").scaled_dot_product_attention
    return _calls_of(lambda *inputs: attend(*inputs, is_causal=True), inputs, task)


def _calls_of(
    form: Form,
    inputs: Inputs,
    task: Task,
    *,
    swapped: bool = False,
    mapped: bool = False,
) -> DeviceCalls:
    """Return calls of a form; `swapped` for ``(B, T, H, dim)``, `mapped` for features.

    A gradient runs its forward pass once, and its backward pass in each call.
    """
    clock, length = TorchClock(), inputs.query.shape[2]
    make = _backward if task.kind in WITH_GRADIENT else _forward

    def ready() -> Callable[[], list[Tensor]]:
        tensors = _set(inputs, task, mapped=mapped)
        if swapped:
            tensors = [x.transpose(1, 2).contiguous() for x in tensors]
        return make(form, tensors)

    calls = tuple(clock.run(ready) for _ in range(arrays.rotation(task, length)))

    def answer(rows: list[int]) -> list[Real]:
        outputs = [x.transpose(1, 2) if swapped else x for x in clock.run(calls[0])]
        return [_read(x, task.judged_heads(), rows) for x in outputs]

    return DeviceCalls(clock, calls, answer)


def _forward(form: Form, inputs: list[Tensor]) -> Callable[[], list[Tensor]]:
    torch = import_module("torch")

    def call() -> list[Tensor]:
        with torch.inference_mode():
            return [form(*inputs)]

    return call


def _backward(form: Form, inputs: list[Tensor]) -> Callable[[], list[Tensor]]:
    grad = import_module("torch").autograd.grad
    leaves, cotangent = [x.requires_grad_() for x in inputs[:3]], inputs[3]
    output = form(*leaves, *inputs[4:])
    return lambda: list(grad(output, leaves, cotangent, retain_graph=True))


def steps(inputs: Inputs, task: Task) -> DeviceCalls:
    """Return decoding that adds to a float32 state in place."""
    torch, elu = import_module("torch"), import_module("torch.nn.functional").elu

    def step(state: Tensor | None, *token: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = (x.flatten(0, 1).float() for x in token)
        if state is None:
            heads, dim = key.shape
            state = key.new_zeros(heads, dim, dim), key.new_zeros(heads, dim, 1)
        matrix, normalizer = state
        row, column = (elu(query) + 1).unsqueeze(1), (elu(key) + 1).unsqueeze(2)
        matrix.baddbmm_(column, value.unsqueeze(1))
        normalizer.add_(column)
        output = torch.bmm(row, matrix) / torch.bmm(row, normalizer)
        return output.reshape(token[2].shape).to(token[2].dtype), state

    return _tokens_of(step, inputs, task)


def fla_steps(inputs: Inputs, task: Task) -> DeviceCalls:
    """Return FLA's kernel for one token, on features that are computed beforehand."""
    attend = import_module("fla.ops.linear_attn").fused_recurrent_linear_attn

    def step(state: Tensor | None, *token: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = (x.unsqueeze(1) for x in token)
        more = {"initial_state": state, "output_final_state": True}
        options = {"scale": 1.0, "normalize": False, **more}
        output, after = attend(query, key, value, **options)
        return output[:, 0], after

    return _tokens_of(step, inputs, task, mapped=True)


def _tokens_of(
    step: Callable[..., tuple[Tensor, Any]],
    inputs: Inputs,
    task: Task,
    *,
    mapped: bool = False,
) -> DeviceCalls:
    """Return calls that each decode the second token; the answer decodes all tokens."""
    torch, clock = import_module("torch"), TorchClock()
    count = arrays.rotation(task, inputs.query.shape[2])
    new = partial(_set, inputs, task, mapped=mapped)
    sets = [clock.run(new) for _ in range(count)]

    def decode(state: Any, tensors: list[Tensor], i: int) -> Any:
        with torch.inference_mode():
            return step(state, *(x[:, :, i] for x in tensors))

    states = [clock.run(partial(decode, None, tensors, 0))[1] for tensors in sets]
    calls = tuple(
        partial(decode, state, tensors, 1)
        for state, tensors in zip(states, sets, strict=True)
    )

    def answer(rows: list[int]) -> list[Real]:
        state, outputs = None, []
        for i in range(inputs.query.shape[2]):
            output, state = clock.run(partial(decode, state, sets[0], i))
            outputs.append(_read(output.unsqueeze(2), task.judged_heads(), [0]))
        return [np.concatenate(outputs, axis=2)[:, :, rows]]

    return DeviceCalls(clock, calls, answer)


def _set(inputs: Inputs, task: Task, *, mapped: bool) -> list[Tensor]:
    """Return a new set of tensors ``(B, H, T, dim)`` or ``(B, H, T)`` on the device."""
    torch, elu = import_module("torch"), import_module("torch.nn.functional").elu
    heads = torch.from_numpy(arrays.head_indices(task)).to(DEVICE)
    tensors = []
    for x, dtype in arrays.of_task(inputs, task):
        bits = torch.from_numpy(arrays.as_bits(x, dtype)[0]).to(DEVICE)
        few = bits.view(getattr(torch, dtype))
        tensors.append(few[heads].unflatten(0, (task.batch, task.heads)))
    if mapped:
        tensors[:2] = [elu(x) + 1 for x in tensors[:2]]
    return tensors


def _read(x: Tensor, heads: list[int], rows: list[int]) -> Real:
    torch = import_module("torch")
    flat = x.detach().flatten(0, 1)
    indices = [torch.tensor(i, device=x.device) for i in (heads, rows)]
    some: Real = flat[indices[0]][:, indices[1]].double().cpu().numpy()
    return some[None]

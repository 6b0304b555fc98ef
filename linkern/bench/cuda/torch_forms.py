"""Linear attention in PyTorch on a GPU: FLA's Triton kernels, and plain operations."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from linkern.bench.cuda import prepared
from linkern.bench.cuda.clocks import TorchClock
from linkern.bench.cuda.prepared import OnDevice
from linkern.bench.cuda.tasks import rotated
from linkern.bench.tasks import Inputs, Real, Task

__all__ = ["fla", "fla_kernel", "fla_steps", "loop", "softmax", "steps"]

DEVICE = "cuda"

Tensor = Any
Form = Callable[[Tensor, Tensor, Tensor], Tensor]


def loop(inputs: Inputs, task: Task, *, size: int) -> OnDevice:
    """Return a loop over chunks that carries the memory in float32."""
    torch, elu = import_module("torch"), import_module("torch.nn.functional").elu

    def form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        memory: Any = 0.0
        normalizer: Any = 0.0
        outputs: list[Tensor] = []
        chunks = zip(*(x.split(size, -2) for x in (query, key, value)), strict=True)
        for queries, keys, values in chunks:
            q, k = elu(queries) + 1, elu(keys) + 1
            across = k.transpose(-1, -2)
            scores = (q @ across).tril()
            sums, total = (scores @ values).float(), scores.float().sum(-1, True)
            if outputs:
                sums = sums + (q @ memory.to(q.dtype)).float()
                total = total + q.float() @ normalizer
            outputs.append((sums / total).to(value.dtype))
            memory = memory + (across @ values).float()
            normalizer = normalizer + across.float().sum(-1, True)
        return torch.cat(outputs, -2)

    return _calls_of(form, inputs, task)


def fla(inputs: Inputs, task: Task, *, form: str) -> OnDevice:
    """Return FLA's kernel between ``elu(x) + 1`` and the sums of its weights."""
    elu = import_module("torch.nn.functional").elu
    attend = getattr(import_module("fla.ops.linear_attn"), f"{form}_linear_attn")

    def whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(elu(query) + 1, elu(key) + 1, value, scale=1.0, normalize=True)[0]

    return _calls_of(whole, inputs, task, swapped=True)


def fla_kernel(inputs: Inputs, task: Task) -> OnDevice:
    """Return FLA's kernel on features that are made beforehand."""
    attend = import_module("fla.ops.linear_attn").chunk_linear_attn

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, scale=1.0, normalize=False)[0]

    return _calls_of(kernel, inputs, task, swapped=True, mapped=True)


def softmax(inputs: Inputs, task: Task) -> OnDevice:
    """Return PyTorch's own softmax attention."""
    attend = import_module("torch.nn.functional").scaled_dot_product_attention
    return _calls_of(lambda *given: attend(*given, is_causal=True), inputs, task)


def _calls_of(
    form: Form,
    inputs: Inputs,
    task: Task,
    *,
    swapped: bool = False,
    mapped: bool = False,
) -> OnDevice:
    """Return calls of a form; `swapped` for ``(B, T, H, dim)``, `mapped` for features.

    A gradient goes forwards once, and backwards in each call.
    """
    clock, length = TorchClock(), inputs.query.shape[2]
    makers = {"causal": _forward, "gradient": _backward}

    def ready() -> Callable[[], list[Tensor]]:
        given = _set(inputs, task, mapped=mapped)
        if swapped:
            given = [x.transpose(1, 2).contiguous() for x in given]
        return makers[task.kind](form, given)

    calls = tuple(clock.run(ready) for _ in range(rotated(task, length)))

    def answer(heads: list[int], rows: list[int]) -> list[Real]:
        found = clock.run(calls[0])
        plain = [x.transpose(1, 2) if swapped else x for x in found]
        return [_read(x, heads, rows) for x in plain]

    return OnDevice(clock, calls, answer)


def _forward(form: Form, given: list[Tensor]) -> Callable[[], list[Tensor]]:
    torch = import_module("torch")

    def call() -> list[Tensor]:
        with torch.inference_mode():
            return [form(*given)]

    return call


def _backward(form: Form, given: list[Tensor]) -> Callable[[], list[Tensor]]:
    torch = import_module("torch")
    leaves = [x.requires_grad_() for x in given[:3]]
    made = form(*leaves)
    return lambda: list(torch.autograd.grad(made, leaves, given[3], retain_graph=True))


def steps(inputs: Inputs, task: Task) -> OnDevice:
    """Return decoding that adds to a float32 memory in place."""
    torch, elu = import_module("torch"), import_module("torch.nn.functional").elu

    def step(state: Tensor | None, *token: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = (x.flatten(0, 1).float() for x in token)
        if state is None:
            heads, dim = key.shape
            state = key.new_zeros(heads, dim, dim), key.new_zeros(heads, dim, 1)
        memory, normalizer = state
        row, column = (elu(query) + 1).unsqueeze(1), (elu(key) + 1).unsqueeze(2)
        memory.baddbmm_(column, value.unsqueeze(1))
        normalizer.add_(column)
        output = torch.bmm(row, memory) / torch.bmm(row, normalizer)
        return output.reshape(token[2].shape).to(token[2].dtype), state

    return _tokens_of(step, inputs, task)


def fla_steps(inputs: Inputs, task: Task) -> OnDevice:
    """Return FLA's kernel for one token, on features that are made beforehand."""
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
) -> OnDevice:
    """Return calls of a step, one token more after the first, and all from none."""
    torch, clock = import_module("torch"), TorchClock()
    count = rotated(task, inputs.query.shape[2])
    new = partial(_set, inputs, task, mapped=mapped)
    sets = [clock.run(new) for _ in range(count)]

    def taken(state: Any, given: list[Tensor], i: int) -> Any:
        with torch.inference_mode():
            return step(state, *(x[:, :, i] for x in given))

    states = [clock.run(partial(taken, None, given, 0))[1] for given in sets]
    calls = tuple(
        partial(taken, state, given, 1)
        for state, given in zip(states, sets, strict=True)
    )

    def answer(heads: list[int], rows: list[int]) -> list[Real]:
        state, found = None, []
        for i in range(inputs.query.shape[2]):
            output, state = clock.run(partial(taken, state, sets[0], i))
            found.append(_read(output.unsqueeze(2), heads, [0]))
        return [np.concatenate(found, axis=2)[:, :, rows]]

    return OnDevice(clock, calls, answer)


def _set(inputs: Inputs, task: Task, *, mapped: bool) -> list[Tensor]:
    """Return tensors ``(B, H, T, dim)`` of their own, on the device."""
    torch, elu = import_module("torch"), import_module("torch.nn.functional").elu
    like = torch.from_numpy(prepared.numbers_of_heads(task)).to(DEVICE)
    found = []
    for x in prepared.parts(inputs, task):
        bits = torch.from_numpy(prepared.as_bits(x, task.dtype)[0]).to(DEVICE)
        few = bits.view(getattr(torch, task.dtype))
        found.append(few[like].unflatten(0, (task.batch, task.heads)))
    if mapped:
        found[:2] = [elu(x) + 1 for x in found[:2]]
    return found


def _read(x: Tensor, heads: list[int], rows: list[int]) -> Real:
    torch = import_module("torch")
    flat = x.detach().flatten(0, 1)
    where = [torch.tensor(i, device=x.device) for i in (heads, rows)]
    some = flat[where[0]][:, where[1]].double().cpu()
    found: Real = some.numpy()[None]
    return found

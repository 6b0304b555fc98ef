"""Calls on the NumPy back end as functions that PyTorch differentiates.

The gradient is our own pullback. The gradient of a gradient is that of the array code,
which PyTorch traces: it is right to any order, and not as fast.
"""

from collections.abc import Callable
from typing import Any

import torch

from linkern import validate
from linkern.kernels.torch.call import Call, Tensor

__all__ = ["evaluated", "gradients", "one_by_one", "second_gradients"]


class _Evaluated(torch.autograd.Function):  # type: ignore[misc]
    """Results of a call."""

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        return call.evaluated(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors, call = ctx.saved_tensors, ctx.call
        of_tensors: list[Tensor | None] = [None] * len(tensors)
        if any(x is not None for x in cotangents):
            results = gradients(call, cotangents, tensors)
            for i, x in zip(call.varying, results, strict=True):
                of_tensors[i] = x
        call.pullback = None  # it keeps memory, and another one can be made
        return None, *of_tensors

    @staticmethod
    def jvp(_ctx: Any, *_tangents: Any) -> Any:
        validate.no_forward_mode()

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, *tensors: Tensor) -> Any:
        fresh = call.without_results()
        return one_by_one(
            lambda *x: evaluated(fresh, *x), info.batch_size, in_dims[1:], tensors
        )


class _Gradients(torch.autograd.Function):  # type: ignore[misc]
    """Gradients of a call, from the cotangents of its results and its tensors."""

    @staticmethod
    def forward(call: Call, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return call.gradients(tensors[:count], tensors[count:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        ctx.call, ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        tensors, count = ctx.saved_tensors, ctx.count
        return None, None, *second_gradients(ctx.call, count, tensors, cotangents)

    @staticmethod
    def jvp(_ctx: Any, *_tangents: Any) -> Any:
        validate.no_forward_mode()

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, count: int, *tensors: Tensor) -> Any:
        fresh = call.without_results()
        return one_by_one(
            lambda *x: gradients(fresh, x[:count], x[count:]),
            *(info.batch_size, in_dims[2:], tensors),
        )


def evaluated(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return output, memory and normalizer, if there is one."""
    if not call.differentiated and not _is_transformed():
        return call.evaluated(*tensors)  # `apply` costs as much as a token
    results: tuple[Tensor, ...] = _Evaluated.apply(call, *tensors)
    return results


def _is_transformed() -> bool:
    """Return True inside of `torch.func` and of derivatives in forward mode."""
    functional = torch._C._are_functorch_transforms_active()
    forward = torch.autograd.forward_ad._current_level >= 0
    return bool(functional or forward)


def gradients(call: Call, cotangents: Any, tensors: Any) -> tuple[Tensor, ...]:
    """Return the gradients of the tensors at `Call.varying`; None is a zero."""
    results: tuple[Tensor, ...] = _Gradients.apply(
        call, len(cotangents), *cotangents, *tensors
    )
    return results


def second_gradients(
    call: Call, count: int, tensors: Any, cotangents: Any
) -> list[Tensor | None]:
    """Return the gradients of `gradients`, computed by the array code.

    Parameters
    ----------
    call : Call
        The call.
    count : int
        Number of cotangents among the tensors: they come first.
    tensors : sequence of tensor or None
        The arguments of `gradients`.
    cotangents : sequence of tensor
        Cotangents of its results.
    """
    varying = [i for i, x in enumerate(tensors[:count]) if x is not None]
    varying += [count + i for i in call.varying]

    def first(*moved: Tensor) -> tuple[Tensor, ...]:
        every = list(tensors)
        for i, x in zip(varying, moved, strict=True):
            every[i] = x

        def results(*inputs: Tensor) -> tuple[Tensor, ...]:
            plain = every[count:]
            for i, x in zip(call.varying, inputs, strict=True):
                plain[i] = x
            made = call.in_array_code(*plain)
            pairs = zip(made, every[:count], strict=True)
            return tuple(x for x, cotangent in pairs if cotangent is not None)

        _, pull = torch.func.vjp(results, *(every[count + i] for i in call.varying))
        pulled: tuple[Tensor, ...] = pull(
            tuple(x for x in every[:count] if x is not None)
        )
        return pulled

    by_position: list[Tensor | None] = [None] * len(tensors)
    with torch.autocast("cpu", enabled=False):  # it would round the products
        _, pull = torch.func.vjp(first, *(tensors[i] for i in varying))
        for i, x in zip(varying, pull(tuple(cotangents)), strict=True):
            by_position[i] = x
    return by_position


def one_by_one(
    function: Callable[..., tuple[Tensor, ...]], size: int, in_dims: Any, tensors: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Map a function over an axis of its tensors, one entry after the other."""
    if size == 0:
        validate.something_to_map_over()
    rows = []
    for i in range(size):
        entries = zip(tensors, in_dims, strict=True)
        rows.append(
            function(*(x if dim is None else x.select(dim, i) for x, dim in entries))
        )
    results = tuple(torch.stack(parts) for parts in zip(*rows, strict=True))
    return results, (0,) * len(results)

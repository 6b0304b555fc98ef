"""Calls on the NumPy back end as operations that PyTorch records as they are.

A recorded operation has tensors and constants only, so a call is written as text: the
name of the operator, the names of its tensors, and its options.
"""

from ast import literal_eval
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from linkern.kernels.dispatch import OPERATORS
from linkern.kernels.torch.autograd import one_by_one
from linkern.kernels.torch.call import OFFSETS, Call, Tensor, parts

__all__ = ["evaluated", "gradients", "is_fake"]


def is_fake(x: Any) -> bool:
    """Return True for a tensor that has a shape and no numbers."""
    return type(x).__name__ == "FakeTensor"


def evaluated(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return output, memory and normalizer, if there is one."""
    return tuple(_EVALUATED(list(tensors), _text(call)))


def gradients(
    call: Call, cotangents: Sequence[Tensor | None], tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients of the tensors at `Call.varying`; None is a zero."""
    return _pulled(_text(call), cotangents, tensors)


def _pulled(
    text: str, cotangents: Sequence[Tensor | None], tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    present = [x for x in cotangents if x is not None]
    which = [x is not None for x in cotangents]
    return tuple(_GRADIENTS(present, which, list(tensors), text))


def _text(call: Call) -> str:
    options = [
        (name, x.tolist() if hasattr(x, "tolist") else x)  # numbers of NumPy
        for name, x in call.options.items()
    ]
    return repr((call.operator, call.names, options))


def _call(text: str) -> Call:
    operator, names, options = literal_eval(text)
    return Call(operator, names, dict(options))


def _run(tensors: Sequence[torch.Tensor], text: str) -> list[torch.Tensor]:
    # The strides of recorded results are known before there are any.
    return [x.contiguous() for x in _call(text).evaluated(*tensors)]


def _run_back(
    cotangents: Sequence[torch.Tensor],
    which: Sequence[bool],
    tensors: Sequence[torch.Tensor],
    text: str,
) -> list[torch.Tensor]:
    rest = iter(cotangents)
    every = [next(rest) if present else None for present in which]
    return [x.contiguous() for x in _call(text).gradients(every, tensors)]


def _shapes(tensors: Sequence[Tensor], text: str) -> list[Tensor]:
    """Return tensors without numbers, of the shapes that the results have.

    The array code runs on the first token alone: only the output depends on how many
    there are, and only states have an axis of packed sequences.
    """
    call = _call(text)
    operator, options = OPERATORS[call.operator], call.given_options()
    named = dict(zip(call.names, tensors, strict=True))
    offsets = named.get(OFFSETS, options.pop(OFFSETS, None))
    packed = () if offsets is None else (len(offsets) - 1,)
    length, first = _first_token(operator.axes, named)
    output, *state = parts(operator.run({**options, **first}))
    shape = (*output.shape[:-2], length, output.shape[-1])
    return [
        output.new_empty(shape),
        *(x.new_empty((*packed, *x.shape)) for x in state),
    ]


def _first_token(
    axes: Mapping[str, str], named: Mapping[str, Tensor]
) -> tuple[int, dict[str, Tensor]]:
    """Return the number of tokens, and the inputs of the first."""
    tokens = next(x for x in axes if x in named and axes[x][:1] == "t")
    length = named[tokens].shape[-len(axes[tokens])]
    first = {name: x for name, x in named.items() if name in axes}
    for name, x in first.items():
        if axes[name][:1] in ("t", "s"):  # of several micro-steps one will do
            first[name] = x.narrow(axis := -len(axes[name]), 0, min(1, x.shape[axis]))
    return length, first


def _shapes_back(
    _cotangents: Sequence[Tensor], _which: Any, tensors: Sequence[Tensor], text: str
) -> list[Tensor]:
    return [tensors[i].new_empty(tensors[i].shape) for i in _call(text).varying]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    del output
    tensors, ctx.text = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _back(ctx: Any, cotangents: Sequence[Tensor | None]) -> tuple[Any, None]:
    tensors = ctx.saved_tensors
    of_tensors: list[Tensor | None] = [None] * len(tensors)
    results = _pulled(ctx.text, cotangents, tensors)
    for i, x in zip(_call(ctx.text).varying, results, strict=True):
        of_tensors[i] = x
    return of_tensors, None


def _each(info: Any, in_dims: Any, tensors: Sequence[Tensor], text: str) -> Any:
    dims, _ = in_dims
    results, out_dims = one_by_one(
        lambda *x: tuple(_EVALUATED(list(x), text)), info.batch_size, dims, tensors
    )
    return list(results), list(out_dims)


_EVALUATED = torch.library.custom_op("linkern::evaluated", _run, mutates_args=())
_EVALUATED.register_fake(_shapes)
_EVALUATED.register_autograd(_back, setup_context=_keep)
_EVALUATED.register_vmap(_each)
_GRADIENTS = torch.library.custom_op("linkern::gradients", _run_back, mutates_args=())
_GRADIENTS.register_fake(_shapes_back)

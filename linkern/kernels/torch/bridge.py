"""Whole calls of operators on CPU tensors, handed to the NumPy back end.

Taken are calls in the forms ``"auto"`` and ``"recurrent"``. All others, and calls that
must be refused, are left to the array code, which computes or refuses them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from linkern import feature_maps, validate
from linkern.array import astype, compute_dtype, namespace
from linkern.autodiff.tape import joint, raw
from linkern.kernels.dispatch import Operator
from linkern.kernels.torch import autograd, opaque
from linkern.kernels.torch.call import MEMORY, NORMALIZER, OFFSETS, Call, Tensor
from linkern.state import AttentionResult, State

__all__ = ["attend"]

_FORMS = ("auto", "recurrent", "step")
_NARROW = (torch.float16, torch.bfloat16)
_FLOATS = (*_NARROW, torch.float32, torch.float64)
_PLAIN = (torch.Tensor, torch.nn.Parameter)

# Looked up before the compiler of PyTorch traces a call: it warns of caches.
for _dtype in _FLOATS:
    compute_dtype(torch.empty(0, dtype=_dtype, device="cpu"))
namespace(torch.nn.Parameter(torch.empty(0, device="cpu"), requires_grad=False))


def attend(operator: Operator, arguments: Mapping[str, Any]) -> AttentionResult | None:
    """Return the result of a call; None if the array code is to run it.

    Parameters
    ----------
    operator : Operator
        The operator.
    arguments : mapping
        Its inputs and options by name; tensors may be traced.
    """
    form = arguments.get("form", "auto")
    if getattr(form, "name", form) not in _FORMS:
        return None
    tensors = _tensors(operator, arguments)
    recorded = _is_recorded([raw(x) for x in tensors.values()])
    # A recorder may look into a single token: its operations are few.
    if not _takes(operator, tensors) or (recorded and not isinstance(form, str)):
        return None
    known = {*operator.axes, *tensors, "initial_state"}
    others = {name: x for name, x in arguments.items() if name not in known}
    dtype = raw(tensors[operator.required[0]]).dtype
    others = _with_known_features(tensors, others)
    for name, x in tensors.items():
        if raw(x).dtype == torch.bfloat16:
            tensors[name] = validate.widened(name, x)
    call, items = Call(operator.name, tuple(tensors), others), list(tensors.values())
    output, memory, *normalizer = _evaluated(call, items, recorded=recorded)
    state = State(memory, *(normalizer or [None]))
    return AttentionResult(astype(output, dtype), state)


def _tensors(operator: Operator, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what should be tensors by name."""
    state: Any = arguments.get("initial_state")
    offsets: Any = arguments.get(OFFSETS)
    named = {name: arguments.get(name) for name in operator.axes}
    if isinstance(state, State):
        named |= {MEMORY: state.memory, NORMALIZER: state.normalizer}
    else:
        named["initial_state"] = state
    if _on_cpu(offsets) and offsets.dtype not in _FLOATS:
        named[OFFSETS] = offsets  # what else may be offsets is an option
    # A state without a memory is none: it is left for the array code to refuse.
    return {name: x for name, x in named.items() if x is not None or name == MEMORY}


def _takes(operator: Operator, tensors: Mapping[str, Any]) -> bool:
    """Return True if NumPy can read all tensors, and dtypes are those of a call."""
    plain = {name: raw(x) for name, x in tensors.items() if name != OFFSETS}
    if not all(_on_cpu(x) and x.dtype in _FLOATS for x in plain.values()):
        return False
    main = {plain[name].dtype for name in operator.required if name in plain}
    states = [x.dtype for name, x in plain.items() if name.startswith("initial")]
    return len(main) == 1 and not any(dtype in _NARROW for dtype in states)


def _on_cpu(x: Any) -> bool:
    """Return True for a tensor in memory that NumPy can read, or that stands for one.

    A tensor of any other class means what that class says.
    """
    if type(x) not in _PLAIN and not opaque.is_fake(x):
        return False
    return bool(x.device.type == "cpu" and x.layout == torch.strided)


def _with_known_features(
    tensors: dict[str, Any], others: dict[str, Any]
) -> dict[str, Any]:
    """Return the options with the name of a feature map.

    NumPy knows the functions of `linkern.feature_maps`. Any other callable may be
    anything that PyTorch computes, and have parameters of its own: it is applied here,
    in the accumulation dtype.
    """
    if "feature_map" not in others:
        return others
    function = others["feature_map"]
    name = getattr(function, "__name__", "")
    if name in feature_maps.__all__ and getattr(feature_maps, name) is function:
        return {**others, "feature_map": name}
    for key in ("query", "key", "value"):
        tensors[key] = validate.widened(key, tensors[key])
    for key in ("query", "key"):
        tensors[key] = validate.features(key, tensors[key], function)
    return {**others, "feature_map": "identity"}


def _evaluated(call: Call, items: Sequence[Any], *, recorded: bool) -> tuple[Any, ...]:
    """Return the results of a call; tensors may be traced."""
    plain = [raw(x) for x in items]
    way = opaque if recorded else autograd
    run, pull = way.evaluated, way.gradients
    traced = any(raw(x) is not x for x in items)
    call.differentiated = traced or (
        torch.is_grad_enabled() and any(x.requires_grad for x in plain)
    )
    if not traced:
        return tuple(run(call, *plain))

    def back(
        tensors: Sequence[Tensor], varying: Sequence[int], of_results: Mapping[int, Any]
    ) -> list[Tensor]:
        cotangents = [of_results.get(i) for i in range(count)]
        results = dict(zip(call.varying, pull(call, cotangents, tensors), strict=True))
        return [results[i] for i in varying]

    results = joint(lambda *x: run(call, *x), back, items)
    count = len(results)
    return results


def _is_recorded(tensors: Sequence[Tensor]) -> bool:
    """Return True if something records the call, or runs it without numbers."""
    return bool(
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or _get_current_dispatch_mode() is not None
        or any(opaque.is_fake(x) for x in tensors)
    )

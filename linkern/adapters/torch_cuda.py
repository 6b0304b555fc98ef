"""Pass CUDA tensors of PyTorch to CuPy and back without copies."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

from linkern.state import AttentionResult, State, mapped
from linkern.typing import Array

__all__ = ["through_cupy"]


def through_cupy(op: Callable[..., AttentionResult]) -> Callable[..., AttentionResult]:
    """Return an operator for CUDA tensors of PyTorch, computed by the kernels for CuPy.

    Parameters
    ----------
    op : callable
        An operator, such as `linkern.linear_attention`.

    Returns
    -------
    callable
        The same for tensors: all on one CUDA device. Other arguments, `initial_state`
        with tensors in it included, are passed on. It runs on PyTorch's current stream
        of that device, after what is under way there, and returns tensors; nothing is
        copied by DLPack.

    Raises
    ------
    ImportError
        From the returned function, if CuPy or PyTorch is not installed.
    TypeError
        From the returned function, if there is no tensor among the arguments.
    ValueError
        From the returned function, if a tensor is not on a CUDA device, they are on
        several, or one requires a gradient: PyTorch does not see what CuPy computes.

    Examples
    --------
    >>> from linkern import linear_attention
    >>> attend = through_cupy(linear_attention)
    >>> attend.__name__
    'linear_attention'
    """

    @wraps(op)
    def called(*inputs: Any, **options: Any) -> AttentionResult:
        cupy, torch = import_module("cupy"), import_module("torch")
        named = {f"argument {i}": x for i, x in enumerate(inputs)} | options
        tensors = dict(_tensors(named, torch))
        device = _device(tensors)
        stream = torch.cuda.current_stream(device)
        with (
            cupy.cuda.Device(device.index),
            _as_current(cupy.cuda, stream.cuda_stream, device.index),
        ):

            def on_cupy(x: Any) -> Any:
                if isinstance(x, torch.Tensor):
                    return cupy.from_dlpack(x)
                return mapped(on_cupy, x) if isinstance(x, State) else x

            result = op(
                *map(on_cupy, inputs),
                **{name: on_cupy(x) for name, x in options.items()},
            )
            return AttentionResult(
                torch.from_dlpack(result.output),
                mapped(torch.from_dlpack, result.state),
            )

    return called


@dataclass(frozen=True)
class _Stream:
    """A stream of another library, by the protocol of CUDA Python.

    Streams of PyTorch have it themselves only in new versions.
    """

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def _as_current(cuda: Any, stream: int, device: int) -> AbstractContextManager[Any]:
    """Return a context in which a stream of another library is CuPy's current one."""
    context: AbstractContextManager[Any]
    if hasattr(cuda.Stream, "from_external"):  # since CuPy 14
        context = cuda.Stream.from_external(_Stream(stream))
    else:
        context = cuda.ExternalStream(stream, device)
    return context


def _tensors(named: dict[str, Any], torch: Any) -> list[tuple[str, Array]]:
    """Return all tensors, also those inside states, with their names."""
    tensors = []
    for name, x in named.items():
        parts = x._asdict() if isinstance(x, State) else {"": x}
        for part, y in parts.items():
            if isinstance(y, torch.Tensor):
                tensors.append((f"{name}.{part}".removesuffix("."), y))
    return tensors


def _device(tensors: dict[str, Any]) -> Any:
    """Return the CUDA device that all tensors are on."""
    if not tensors:
        msg = "at least one argument must be a tensor of PyTorch, got none."
        raise TypeError(msg)
    for name, x in tensors.items():
        if x.device.type != "cuda":
            msg = f"`{name}` must be on a CUDA device, got {x.device}; move it there."
            raise ValueError(msg)
        if x.requires_grad:
            msg = (
                f"`{name}` must not require a gradient, which CuPy would not keep; "
                "detach it, and call `linkern.vjp` on arrays of CuPy for gradients."
            )
            raise ValueError(msg)
    devices = {x.device for x in tensors.values()}
    if len(devices) > 1:
        msg = f"all tensors must be on one device, got {sorted(map(str, devices))}."
        raise ValueError(msg)
    return devices.pop()

"""The side of the fence where the target runs: load it, call it, report what it did.

`main` is a child process that takes requests on standard input and answers on standard
output, so that whatever the target does to its process happens to nobody else.
`execute` is the same call without the process.
"""

import os
import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from linkern.testing.errors import UsageError
from linkern.testing.frameworks import Framework, framework_named
from linkern.testing.loading import Loaded, load, resolve
from linkern.testing.operators import INPUT_NAMES

__all__ = ["Buffers", "Call", "Environment", "Reply", "execute", "to_layout"]


@dataclass(frozen=True)
class Environment:
    """Where and how a target is to be called.

    Parameters
    ----------
    target : str
        ``package.module:attribute`` or ``path/to/file.py:attribute``.
    framework, device, layout : str
        Array library and device of the inputs; order of their axes.
    options : mapping
        Keyword arguments of every call.
    """

    target: str
    framework: str = "numpy"
    device: str = "cpu"
    layout: str = "bhtd"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """One call: inputs in ``(B, H, T, D)``, and keywords for this call alone."""

    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What came back.

    Parameters
    ----------
    output : array or None
        The output in ``(B, H, T, V)``, half precision widened to float32; None if it is
        not an array at all.
    dtype, kind : str
        Dtype of the output and type of the returned object.
    shape, expected_shape : tuple of int
        Shape returned and shape due, both in the target's layout.
    changed, aliased : tuple of str
        Inputs that the call overwrote, and inputs whose memory the output shares.
    """

    output: NDArray[Any] | None
    dtype: str
    kind: str
    shape: tuple[int, ...]
    expected_shape: tuple[int, ...]
    changed: tuple[str, ...]
    aliased: tuple[str, ...]


class Buffers:
    """Inputs in the target's library, at the same addresses while shapes allow.

    New contents in old buffers are what a training loop does, and what a kernel that
    remembers results by address or shape gets wrong.
    """

    def __init__(self) -> None:
        self._native: dict[str, tuple[tuple[Any, ...], Any]] = {}

    def place(
        self, name: str, x: NDArray[Any], framework: Framework, device: str
    ) -> Any:
        """Return `x` as an array of the framework."""
        signature = (x.shape, x.dtype.name)
        fresh = framework.to_native(x, device)
        kept = self._native.get(name)
        if framework.mutable and kept is not None and kept[0] == signature:
            kept[1][...] = fresh
            return kept[1]
        self._native[name] = (signature, fresh)
        return fresh


def execute(
    loaded: Loaded,
    call: Call,
    environment: Environment,
    framework: Framework,
    buffers: Buffers,
) -> Reply:
    """Call the target once, in its own layout and library, and observe it."""
    given = {
        name: to_layout(getattr(call, name), environment.layout) for name in INPUT_NAMES
    }
    native = {
        name: buffers.place(name, x, framework, environment.device)
        for name, x in given.items()
    }
    options = {**environment.options, **call.options}
    returned = loaded.function(*native.values(), **options)
    # An operator may also return its state; the output comes first.
    output = returned[0] if isinstance(returned, tuple) and returned else returned

    expected = (*given["query"].shape[:-1], given["value"].shape[-1])
    changed = tuple(
        name
        for name, x in given.items()
        if not np.array_equal(
            framework.to_numpy(native[name]), x.astype(np.float64), equal_nan=True
        )
    )
    if not framework.is_native(output):
        kind = _type_name(output)
        return Reply(None, "", kind, (), tuple(expected), changed, ())
    array = framework.to_numpy(output)
    return Reply(
        output=_from_layout(array, environment.layout),
        dtype=str(getattr(output.dtype, "name", output.dtype)).rpartition(".")[2],
        kind=_type_name(output),
        shape=tuple(array.shape),
        expected_shape=tuple(expected),
        changed=changed,
        aliased=tuple(name for name, x in native.items() if _share(output, x)),
    )


def _type_name(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"


def to_layout(x: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return an array ``(B, H, T, D)`` in another order of axes, contiguous."""
    if layout == "bthd":
        return np.ascontiguousarray(np.swapaxes(x, 1, 2))
    return np.ascontiguousarray(x[(0,) * (4 - len(layout))])


def _from_layout(x: NDArray[Any], layout: str) -> NDArray[Any]:
    if layout == "bthd" and x.ndim == 4:
        return np.swapaxes(x, 1, 2)
    return x[(None,) * (4 - len(layout))]


def _share(output: Any, given: Any) -> bool:
    if isinstance(output, np.ndarray):
        return np.shares_memory(output, given)
    if hasattr(output, "untyped_storage"):
        same = output.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
        return bool(same and output.numel() > 0)
    return False


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until they end: first an environment, then calls."""
    environment: Environment = pickle.load(requests)
    try:
        framework = framework_named(environment.framework)
        loaded = load(resolve(environment.target), environment.target)
    except UsageError as error:
        _send(replies, error)
        return
    _send(replies, loaded.exposes)
    buffers = Buffers()
    while True:
        try:
            call: Call = pickle.load(requests)
        except EOFError:
            return
        try:
            _send(replies, execute(loaded, call, environment, framework, buffers))
        except Exception as error:
            _send(replies, describe(error))


def describe(error: BaseException) -> str:
    """Return an exception in one line, with the line of the target that raised it."""
    what = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return what
    return f"{what} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"


def _send(replies: BinaryIO, message: Any) -> None:
    pickle.dump(message, replies, protocol=pickle.HIGHEST_PROTOCOL)
    replies.flush()


def main() -> None:
    """Serve on the standard streams, out of reach of what the target prints."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    # Whatever the target reads is empty, and whatever it prints goes to standard error.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    serve(requests, replies)

"""What crosses the fence between the judge and a target: requests and replies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Call", "Environment", "Reply", "from_layout", "to_layout"]


@dataclass(frozen=True)
class Environment:
    """Where and how a target is to be called.

    Parameters
    ----------
    target : str
        ``package.module:attribute`` or ``path/to/file.py:attribute``.
    framework, device, layout : str
        Array library and device of the inputs; order of their axes.
    interface : {"sequence", "step"}
        Whether one call takes all tokens or one.
    vjp : str or None
        Declared name of the function that gives its gradients.
    scale : float or "K^-0.5"
        Passed to targets that have a parameter of that name.
    options : mapping
        Keyword arguments of every call.
    memory_limit : float
        GiB that it may allocate beyond what loading it took; in a child process only.
    """

    target: str
    framework: str = "numpy"
    device: str = "cpu"
    layout: str = "bhtd"
    interface: str = "sequence"
    vjp: str | None = None
    scale: float | str = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    memory_limit: float = 4.0


@dataclass(frozen=True)
class Call:
    """One call.

    Parameters
    ----------
    query, key, value : array (B, H, T, K), (B, H, S, K), (B, H, S, V)
        Inputs.
    options : mapping
        Keyword arguments for this call alone.
    cuts : tuple of int
        Where the sequence is cut, the state being handed over from span to span.
    wants_state : bool
        Whether the last state is to be returned (it is if there are cuts).
    cotangent : array (B, H, T, V), optional
        Asks for gradients: the cotangent of the output.
    memory : str
        How the inputs lie in memory, one of `linkern.testing.placement.STYLES`.
    threads : int
        How many threads call the target at once, all but one with other inputs.
    """

    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    cuts: tuple[int, ...] = ()
    wants_state: bool = False
    cotangent: NDArray[Any] | None = None
    memory: str = "contiguous"
    threads: int = 1


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
        Inputs (``initial_state`` among them) that the call overwrote, and inputs whose
        memory the output shares.
    overwritten : bool
        Whether the call changed the output that the call before it had returned.
    traces : tuple of str
        What the call left behind in its process: one word for each.
    states : tuple of arrays or None
        The final state, memory ``(B, H, K, V)`` and normalizer ``(B, H, K)`` if it has
        that shape; None if there was none, or if it has another form.
    state_kind : str
        Type of the final state; empty if there was none.
    gradients : tuple of arrays or None
        Gradients of the query, key and value.
    gradient_dtypes : tuple of str
        Their dtypes, empty for an input that no gradient reaches.
    not_differentiable : str
        Why there are none.
    other_outputs : tuple of arrays
        Outputs of the same inputs while other threads called the target too.
    """

    output: NDArray[Any] | None
    dtype: str
    kind: str
    shape: tuple[int, ...]
    expected_shape: tuple[int, ...]
    changed: tuple[str, ...] = ()
    aliased: tuple[str, ...] = ()
    overwritten: bool = False
    traces: tuple[str, ...] = ()
    states: tuple[NDArray[Any], ...] | None = None
    state_kind: str = ""
    gradients: tuple[NDArray[Any], ...] | None = None
    gradient_dtypes: tuple[str, ...] = ()
    not_differentiable: str = ""
    other_outputs: tuple[NDArray[Any], ...] = ()


def to_layout(x: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return an array ``(B, H, T, D)`` in another order of axes, contiguous."""
    if layout == "bthd":
        return np.ascontiguousarray(np.swapaxes(x, 1, 2))
    return np.ascontiguousarray(x[(0,) * (4 - len(layout))])


def from_layout(x: NDArray[Any], layout: str) -> NDArray[Any]:
    """Undo `to_layout`."""
    if layout == "bthd" and x.ndim == 4:
        return np.swapaxes(x, 1, 2)
    return x[(None,) * (4 - len(layout))]

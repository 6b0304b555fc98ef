"""Messages between the referee and the process of a target: requests and replies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.target.ranks.sharding import Sharding

__all__ = [
    "MEMORY_LIMIT",
    "SCALES",
    "Call",
    "Raised",
    "Refused",
    "Reply",
    "TargetConfig",
    "from_layout",
    "in_float64",
    "to_layout",
]

# GiB that a target may allocate, unless a plan says otherwise.
MEMORY_LIMIT = 4.0
# A scale can be passed as it is declared, left to the default of the target, or be a
# multiple of what is declared.
SCALES = {"declared": 1.0, "omitted": 1.0, "halved": 0.5, "tripled": 3.0}


@dataclass(frozen=True)
class TargetConfig:
    """Name of a target, and how it is called.

    Parameters
    ----------
    target : str
        ``package.module:attribute`` or ``path/to/file.py:attribute``.
    op : str
        Operator that it claims to be.
    framework : str or None
        Array library of the inputs; None to infer it from the target.
    device, layout : str
        Device of the inputs; order of their axes.
    interface : {"sequence", "step"}
        All tokens in one call, or one token.
    vjp : str or None
        Declared name of the function that gives its gradients.
    scale : float, "K^-0.5" or None
        Passed to targets that have a parameter of that name; None for the default of
        the operator.
    state_layout : {"kv", "vk"}
        Order of the last two axes of its memory.
    takes_state : bool
        False if states are not passed to it, whatever its parameters.
    cu_seqlens_dtype : {"int64", "int32"}
        Dtype of the offsets of packed sequences.
    decay_form : str
        Form of the log-decays; raw ones are passed with the parameters of gates.
    gate_parameters : str
        Which of those it takes.
    options : mapping
        Keyword arguments of every call.
    memory_limit : float
        GiB that it may allocate beyond what loading it took; in a child process only.
    interpret : bool
        True for Triton kernels that run by Triton's interpreter, on a CPU.
    ranks : tuple of int
        The numbers of ranks that it runs on; empty for a target in one process.
    ranks_order : {"contiguous", "zigzag"}
        Order of the pieces of a sequence.
    ranks_initial : {"first", "every"}
        The ranks that are passed the initial state.
    ranks_final : {"last", "every"}
        The ranks that return the final state.
    ranks_cu_seqlens : {"whole", "shard"}
        The offsets of packed sequences that a rank is passed.
    rendezvous : str
        File by which the processes of all ranks meet.
    compiled : str
        Folder where JAX finds what it compiled before; empty for none.
    """

    target: str
    framework: str | None = "numpy"
    device: str = "cpu"
    layout: str = "bhtd"
    interface: str = "sequence"
    vjp: str | None = None
    scale: float | str | None = None
    state_layout: str = "kv"
    takes_state: bool = True
    cu_seqlens_dtype: str = "int64"
    op: str = "linear_attention"
    decay_form: str = "log"
    gate_parameters: str = "both"
    options: Mapping[str, Any] = field(default_factory=dict)
    memory_limit: float = MEMORY_LIMIT
    interpret: bool = False
    ranks: tuple[int, ...] = ()
    ranks_order: str = "contiguous"
    ranks_initial: str = "first"
    ranks_final: str = "last"
    ranks_cu_seqlens: str = "whole"
    rendezvous: str = ""
    compiled: str = ""


@dataclass(frozen=True)
class Call:
    """One call.

    Parameters
    ----------
    inputs : mapping of str to array
        Inputs by name, in the order of the operator and with its axes.
    options : mapping
        Keyword arguments for this call alone.
    cuts : tuple of int
        Where the sequence is cut, the state being handed over from span to span.
    wants_state : bool
        True to ask for the last state (it is returned if there are cuts).
    cotangent : array (B, H, T, V), optional
        Asks for gradients: the cotangent of the output.
    memory : str
        Memory layout of the inputs, one of `memory_layout.STYLES`.
    threads : int
        Number of threads that call at once, all but one with other inputs.
    segments : tuple of tuple of int
        Edges of packed sequences (`cu_seqlens`) in each span between cuts, from the
        first token of the span; empty for one sequence. Each span has a part of every
        sequence, which may be empty.
    scale : str
        The scale that a target with such a parameter is passed, one of `SCALES`.
    fill : {"nan", "large"}
        Content of memory that a target allocates and has not written, if it is
        interpreted or on a CUDA device.
    side_stream : bool
        True to make the inputs, and to call, on a stream other than the default one,
        behind a pause.
    captured : mapping of str to array, optional
        Inputs with which the call is captured as a CUDA graph, which is then replayed
        on `inputs` in the same memory.
    configuration : int, optional
        Position of the configuration that its autotuned Triton kernels take, of those
        that differ. Default: the fastest on a device, the largest tiles interpreted.
    tuned : str
        The only kernel that takes it; empty for all.
    sharding : Sharding, optional
        Division of each span of the sequence among ranks. Default: evenly.
    """

    inputs: Mapping[str, NDArray[Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    cuts: tuple[int, ...] = ()
    wants_state: bool = False
    cotangent: NDArray[Any] | None = None
    memory: str = "contiguous"
    threads: int = 1
    segments: tuple[tuple[int, ...], ...] = ()
    scale: str = "declared"
    fill: str = "nan"
    configuration: int | None = None
    tuned: str = ""
    side_stream: bool = False
    captured: Mapping[str, NDArray[Any]] | None = None
    sharding: Sharding | None = None

    @property
    def sequences(self) -> int:
        """The number of packed sequences; 0 for one that is not packed."""
        return len(self.segments[-1]) - 1 if self.segments else 0


@dataclass(frozen=True)
class Reply:
    """Everything observed in one call.

    Parameters
    ----------
    output : array or None
        The output in ``(B, H, T, V)``, half precision widened to float32; None if it is
        not an array at all.
    dtype, kind : str
        Dtype of the output and type of the returned object.
    shape, expected_shape : tuple of int
        Returned and required shape, both in the target's layout.
    changed, aliased : tuple of str
        Inputs (``initial_state`` among them) that the call overwrote, and inputs whose
        memory the output shares.
    overwritten : str
        The result of an earlier call that the call changed, ``output`` or ``final
        state``; empty if it changed none.
    traces : tuple of str
        Side effects of the call on its process.
    states : tuple of arrays or None
        The final state: memory, and normalizer if there is one, with the axes of the
        operator; None if there was none, or if it has another form.
    state_kind : str
        Type of the final state; empty if there was none.
    gradients : tuple of arrays or None
        Gradients of the inputs, in the order of the call.
    gradient_dtypes : tuple of str
        Their dtypes, empty for an input that no gradient reaches.
    not_differentiable : str
        Reason for missing gradients.
    other_outputs : tuple of arrays
        Outputs of the same inputs while other threads called the target too.
    out_of_bounds : tuple of str
        Loads and stores of an interpreted target that leave the memory of their
        argument, each with the line of the kernel.
    unwritten : tuple of str
        Its loads of memory that nothing had written.
    configurations : tuple of str
        Its autotuned kernels, each with the configuration that it took.
    variants : int
        The most configurations that one of them has.
    refused : tuple of str
        Those that were asked for, and that the device cannot hold.
    place : str
        The rank whose output it is, in words, if one replies for all.
    dtypes : tuple of str
        Dtypes of the output on all ranks, of a target that runs on several.
    state_fault : str
        The rank whose final state has not the form that all must have, in words.
    collective : bool
        False if it runs on several ranks, and called no collective on any.
    """

    output: NDArray[Any] | None
    dtype: str
    kind: str
    shape: tuple[int, ...]
    expected_shape: tuple[int, ...]
    changed: tuple[str, ...] = ()
    aliased: tuple[str, ...] = ()
    overwritten: str = ""
    traces: tuple[str, ...] = ()
    states: tuple[NDArray[Any], ...] | None = None
    state_kind: str = ""
    gradients: tuple[NDArray[Any], ...] | None = None
    gradient_dtypes: tuple[str, ...] = ()
    not_differentiable: str = ""
    other_outputs: tuple[NDArray[Any], ...] = ()
    out_of_bounds: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    configurations: tuple[str, ...] = ()
    variants: int = 1
    refused: tuple[str, ...] = ()
    place: str = ""
    dtypes: tuple[str, ...] = ()
    state_fault: str = ""
    collective: bool = True


@dataclass(frozen=True)
class Raised:
    """Reply of a call that raised.

    Parameters
    ----------
    message : str
        The exception in one line.
    """

    message: str


@dataclass(frozen=True)
class Refused:
    """Reply to a request that cannot be met: the text of a `UsageError`.

    Parameters
    ----------
    message : str
        The text.
    """

    message: str


def in_float64(x: NDArray[Any]) -> NDArray[np.float64]:
    """Return numbers of a target in float64, without a warning of a signalling NaN.

    Memory that nothing wrote may hold one, and what is wrong with it laws say.

    Examples
    --------
    >>> in_float64(np.array([0x7FA00000], np.uint32).view(np.float32))
    array([nan])
    """
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def to_layout(x: NDArray[Any], layout: str, axes: str = "bhtd") -> NDArray[Any]:
    """Return an array in another order of axes, contiguous.

    Parameters
    ----------
    x : array
        With a batch axis, if it has tokens or batches.
    layout : str
        The order for ``(B, H, T, D)``; what it leaves out has a size of one.
    axes : str
        The letters of the axes of `x`.

    Examples
    --------
    >>> to_layout(np.zeros((2, 3, 5)), "bthd", "bht").shape
    (2, 5, 3)
    >>> to_layout(np.zeros((1, 3, 5, 4)), "htd").shape
    (3, 5, 4)
    """
    if _swapped(axes, layout):
        return np.ascontiguousarray(np.swapaxes(x, 1, 2))
    return np.ascontiguousarray(x[(0,) * _missing(axes, layout)])


def from_layout(x: NDArray[Any], layout: str, axes: str = "bhtd") -> NDArray[Any]:
    """Undo `to_layout`."""
    if _swapped(axes, layout) and x.ndim == len(axes):
        return np.swapaxes(x, 1, 2)
    return x[(None,) * _missing(axes, layout)]


def _swapped(axes: str, layout: str) -> bool:
    """Return True if heads and tokens, which follow the batch, trade places."""
    return layout == "bthd" and axes[0] == "b" and len(axes) > 2


def _missing(axes: str, layout: str) -> int:
    """Return the number of leading axes that a layout leaves out."""
    return sum(a == "b" for a in axes) * ("b" not in layout) + sum(
        a in "hg" for a in axes
    ) * ("h" not in layout)

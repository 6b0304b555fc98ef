"""One array library of targets: a record of functions and facts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from linkern.testing.target.accelerators import Accelerator

__all__ = ["Framework", "Library", "Undifferentiable"]

Arrays = list[Any]
# Function of the inputs, inputs, cotangents of its outputs -> the outputs and the
# gradients of the inputs, None for an input without influence.
Gradients = Callable[[Callable[..., Arrays], Arrays, Arrays], tuple[Arrays, Arrays]]

Wrap = Callable[[NDArray[Any], NDArray[Any], str], tuple[Any, Callable[[], object]]]


class Undifferentiable(Exception):  # noqa: N818 -- it says what the target is
    """The target has no gradients; the message says why."""


@dataclass(frozen=True)
class Library:
    """Facts about an array library for the process of the referee, which may lack it.

    Parameters
    ----------
    name : str
        Import name of the library.
    dtypes : tuple of str
        Floating dtypes it can be fed.
    compiles : bool
        True if operations are compiled anew for each shape.
    styles : tuple of str
        Supported memory layouts, from `memory_layout.STYLES`.
    differentiates : bool
        True if it differentiates by itself.
    on_cuda : tuple of str
        Ways of calling that a CUDA device has, from `accelerators.WAYS`.
    """

    name: str
    dtypes: tuple[str, ...]
    compiles: bool = False
    styles: tuple[str, ...] = ()
    differentiates: bool = False
    on_cuda: tuple[str, ...] = ()


def _assign(x: Any, contents: Any) -> None:
    x[...] = contents


@dataclass(frozen=True)
class Framework:
    """One array library.

    Parameters
    ----------
    name : str
        Import name of the library.
    dtypes : tuple of str
        Floating dtypes it can be fed.
    to_native, to_numpy : callable
        ``to_native(x, device)`` and its inverse, which also widens half precision.
    is_native : callable
        True for a plain array of the library.
    mutable : bool
        True if arrays can be overwritten in place.
    compiles : bool
        True if operations are compiled anew for each shape.
    overwrite : callable
        ``overwrite(x, contents)``: give an array the contents of another one, at the
        address where it is.
    wrap : callable or None
        ``wrap(view, base, device)``: a view of a NumPy array as a view, with the same
        strides, of a copy of `base` on the device; and a function that updates `base`
        from that copy. On the CPU, memory is shared instead.
    styles : tuple of str
        Supported memory layouts, from `memory_layout.STYLES`.
    devices : tuple of str
        Devices of its arrays; empty if they are not known in advance.
    accelerator : Accelerator or None
        Ways of calling that a CUDA device has.
    gradients : callable or None
        ``gradients(function, inputs, cotangents)``: the values of a function that
        returns a list of arrays, and the gradients of its inputs, by automatic
        differentiation.
    """

    name: str
    dtypes: tuple[str, ...]
    to_native: Callable[[NDArray[Any], str], Any]
    to_numpy: Callable[[Any], NDArray[Any]]
    is_native: Callable[[Any], bool]
    mutable: bool = True
    compiles: bool = False
    overwrite: Callable[[Any, Any], None] = _assign
    wrap: Wrap | None = None
    styles: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    accelerator: Accelerator | None = None
    gradients: Gradients | None = None

    @property
    def library(self) -> Library:
        """Facts about it for the process of the referee."""
        return Library(
            self.name,
            self.dtypes,
            self.compiles,
            self.styles,
            differentiates=self.gradients is not None,
            on_cuda=self.accelerator.ways if self.accelerator else (),
        )

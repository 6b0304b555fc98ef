"""The record of a mutant, and the catalogue that every mutant is entered in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from typing import Any

from linkern.testing.kernels.assembly import Array, Inputs, Kernel

__all__ = ["MUTANTS", "Mutant", "after", "before", "enter"]


@dataclass(frozen=True)
class Mutant:
    """A kernel broken on purpose, with one defect.

    Parameters
    ----------
    name : str
        Name in the kill matrix.
    op : str
        The operator that it claims to be.
    kernel : callable
        Called with the inputs of the operator; some take and return a state, some have
        a ``vjp``.
    precedent : str
        Where a defect like it was found.
    checks : tuple of str
        Checks that matter to its defect; the first must catch it.
    contract : mapping
        Fields of the `Contract` that it declares.
    by_chance : bool
        True if its defect shows at some calls only, so that other checks than the
        first catch it by chance.
    harmless_in : tuple of str
        Dtypes in which its defect is none.
    hack : bool
        True if it is after a program that was written to pass a test, not to be right.
    """

    name: str
    op: str
    kernel: Kernel
    precedent: str
    checks: tuple[str, ...]
    contract: Mapping[str, Any] = field(default_factory=dict)
    by_chance: bool = False
    harmless_in: tuple[str, ...] = ()
    hack: bool = False


MUTANTS: dict[str, Mutant] = {}


def enter(
    name: str,
    kernel: Kernel,
    precedent: str,
    *checks: str,
    op: str = "linear_attention",
    **fields: Any,
) -> None:
    """Add a mutant; `checks` are ``value_on_reals`` if none is named."""
    assert name not in MUTANTS, name
    checks = checks or ("value_on_reals",)
    MUTANTS[name] = Mutant(name, op, kernel, precedent, checks, **fields)


def after(kernel: Kernel, change: Callable[..., Any]) -> Kernel:
    """Return a kernel whose output and state are changed; the query length is known."""

    @wraps(kernel)
    def changed(*inputs: Array, **named: Any) -> Any:
        return change(*kernel(*inputs, **named))

    return changed


def before(kernel: Kernel, change: Callable[[Inputs], Inputs]) -> Kernel:
    """Return a kernel whose arguments are changed, by name."""
    names = tuple(signature(kernel).parameters)

    @wraps(kernel)
    def changed(*inputs: Array, **named: Any) -> Any:
        return kernel(**change(dict(zip(names, inputs, strict=False)) | named))

    return changed

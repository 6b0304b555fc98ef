"""What a planted defect of the family is, and the catalogue that all are entered in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from linkern.testing.kernels.assembly import Kernel

__all__ = ["GATED_MUTANTS", "GatedMutant", "enter"]


@dataclass(frozen=True)
class GatedMutant:
    """One kernel of the family broken on purpose, with one defect.

    Parameters
    ----------
    name : str
        What the kill matrix calls it.
    op : str
        The operator that it claims to be.
    kernel : callable
        Called with the inputs of the operator by name; it takes and returns a state.
    precedent : str
        Where the like of it was found.
    laws : tuple of str
        Checks that matter here; the first must catch it, whatever others do.
    cause : str
        What its defect must be called; empty if nothing can name it.
    contract : mapping
        What it declares.
    """

    name: str
    op: str
    kernel: Kernel
    precedent: str
    laws: tuple[str, ...]
    cause: str = ""
    contract: Mapping[str, Any] = field(default_factory=dict)


GATED_MUTANTS: dict[str, GatedMutant] = {}


def enter(
    name: str,
    op: str,
    kernel: Kernel,
    precedent: str,
    *laws: str,
    cause: str = "",
    **contract: Any,
) -> None:
    """Add a mutant to the catalogue; without laws, values on reals must show it."""
    assert name not in GATED_MUTANTS, name
    GATED_MUTANTS[name] = GatedMutant(
        name, op, kernel, precedent, laws or ("value_on_reals",), cause, contract
    )

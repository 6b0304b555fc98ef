"""What a planted defect is, and the catalogue that all of them are entered in."""

from dataclasses import dataclass

from linkern.testing.kernels.assembly import Kernel

__all__ = ["MUTANTS", "Mutant", "enter"]


@dataclass(frozen=True)
class Mutant:
    """One kernel broken on purpose, with one defect.

    Parameters
    ----------
    name : str
        What the kill matrix calls it.
    kernel : callable
        ``f(query, key, value)``; some take and return a state, some have a ``vjp``.
    precedent : str
        Where the like of it was found.
    law : str
        The check that must catch it, whatever others do.
    """

    name: str
    kernel: Kernel
    precedent: str
    law: str


MUTANTS: dict[str, Mutant] = {}


def enter(
    name: str, kernel: Kernel, precedent: str, *, law: str = "value_on_integers"
) -> None:
    """Add a mutant to the catalogue."""
    assert name not in MUTANTS, name
    MUTANTS[name] = Mutant(name, kernel, precedent, law)

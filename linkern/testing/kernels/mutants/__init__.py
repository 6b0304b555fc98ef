"""Kernels broken on purpose, one defect each, every one after a real bug or cheat.

A check that no mutant fails is a check that may not work; a defect that no check sees
is one that published kernels may have. `docs/kill-matrix.md` shows which check catches
which mutant.
"""

from importlib import import_module

from linkern.testing.kernels.mutants.catalogue import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant"]

# Each module enters its mutants when it is imported: this is their order.
for _module in (
    "structure",
    "arithmetic",
    "calls",
    "gates",
    "delta",
    "gradients",
    "states",
    "packed",
    "defaults",
    "repetition",
    "lengths",
    "values",
    "operators",
    "state_space",
    "powers",
    "mlstm",
    "preconditioned",
    "momentum",
    "trapezoidal",
    "ranks",
    "hacks",
    "recognition",
):
    import_module(f"{__name__}.{_module}")

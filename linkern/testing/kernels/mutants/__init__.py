"""Kernels broken on purpose, one defect each, every one after a real bug or cheat.

A check that no mutant fails is a check that may not work; a defect that no check sees
is one that kernels in the field may have. `docs/kill-matrix.md` shows which check sees
which.
"""

from linkern.testing.kernels.mutants import (
    arithmetic,
    calls,
    gradients,
    states,
    structure,
)
from linkern.testing.kernels.mutants.catalogue import MUTANTS, Mutant

__all__ = ["FAULTY", "MUTANTS", "Mutant"]

FAULTY = {name: mutant.kernel for name, mutant in MUTANTS.items()}

del arithmetic, calls, gradients, states, structure

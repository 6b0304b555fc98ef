"""Kernels of the family with gates and erases: some right, some broken on purpose."""

from linkern.testing.kernels.gated import (
    mutants_of_erases,
    mutants_of_gates,
    mutants_of_gradients,
    mutants_of_states,
)
from linkern.testing.kernels.gated.catalogue import GATED_MUTANTS, GatedMutant
from linkern.testing.kernels.gated.correct import GATED_CORRECT, GatedKernel

__all__ = ["GATED_CORRECT", "GATED_MUTANTS", "GatedKernel", "GatedMutant"]

del mutants_of_erases, mutants_of_gates, mutants_of_gradients, mutants_of_states

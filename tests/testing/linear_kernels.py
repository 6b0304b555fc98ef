"""Kernels of linear attention by name: correct ones, and mutants."""

from linkern.testing.kernels import correct, mutants

__all__ = ["CORRECT", "FAULTY"]


def _linear(catalogue):
    return {n: k.kernel for n, k in catalogue.items() if k.op == "linear_attention"}


CORRECT = _linear(correct.CORRECT)
FAULTY = _linear(mutants.MUTANTS)

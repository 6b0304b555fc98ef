"""Kernels that test the referee: correct ones, and mutants with one defect each."""

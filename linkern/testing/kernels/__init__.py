"""Kernels to judge the referee with: correct ones, and mutants with one defect each."""

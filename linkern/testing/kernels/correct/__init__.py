"""Correct kernels: a check that one of them fails is a false alarm."""

from linkern.testing.kernels.correct.catalogue import CORRECT, CorrectKernel
from linkern.testing.kernels.correct.linear import featured, quadratic

__all__ = ["CORRECT", "CorrectKernel", "featured", "quadratic"]

"""The unseen set: faulty kernels by name, and the same without their defects."""

from tests.testing.diagnosis.unseen import adding, erasing, gradients, weighing
from tests.testing.diagnosis.unseen.parts import REPAIRED, UNSEEN

__all__ = ["REPAIRED", "UNSEEN", "adding", "erasing", "gradients", "weighing"]

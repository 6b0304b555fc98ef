"""Measuring: what generation costs, beside what others need for the same."""

from linkern.bench.contestants import attention_alone
from linkern.bench.generation import Contestant, Measured, measure

__all__ = ["Contestant", "Measured", "attention_alone", "measure"]

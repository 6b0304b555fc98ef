"""Decoding on NumPy: the update delayed, and large batches shared by threads."""

from linkern.decoding.numpy import Decoder

__all__ = ["Decoder"]

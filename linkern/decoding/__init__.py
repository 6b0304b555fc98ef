"""Decoding: the delayed update on NumPy, and one kernel for each token on a GPU."""

from linkern.decoding.decoder import Decoder

__all__ = ["Decoder"]

"""Decoding on NumPy: the update delayed, and large batches shared by threads."""

from linkern._decoder.decoder import Decoder

__all__ = ["Decoder"]

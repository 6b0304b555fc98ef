"""Alternatives: other calls of the oracle, with which wrong results are compared."""

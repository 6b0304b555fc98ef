"""Behaviours that no influence map holds: side effects, NaN, lost bits, other bits."""

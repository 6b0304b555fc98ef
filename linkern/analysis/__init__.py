"""Operators as mathematical objects: affine span map, single step, attention matrix."""

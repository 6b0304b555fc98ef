"""Reverse-mode differentiation of code written against the array API."""

"""Diagnosis: the cause of a failure, and the arithmetic of a target, by measurement."""

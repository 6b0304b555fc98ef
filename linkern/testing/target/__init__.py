"""Targets: found by name, called in their own framework, isolated in a process."""

"""Targets that run on several ranks, one process each, judged as one."""

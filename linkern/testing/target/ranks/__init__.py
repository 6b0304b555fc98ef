"""Targets that run on several ranks, a process or a device each, judged as one."""

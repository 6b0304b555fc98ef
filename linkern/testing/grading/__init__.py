"""Grading: verdicts on candidates for programs that write kernels, within a time."""

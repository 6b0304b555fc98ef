"""Waiting for what is expected, however busy the machine is."""

import time

__all__ = ["LONG", "eventually"]

# Seconds that nothing expected takes on any machine; only a failure waits so long.
LONG = 120.0


def eventually(condition, seconds=LONG):
    """Return True as soon as a condition holds, False if it never does."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(holds)

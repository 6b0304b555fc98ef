"""The process of one contestant on a GPU: it answers, and is then timed."""

import gc
import sys
from importlib import import_module
from typing import Any

from linkern.bench.cuda.clocks import Taken, timed
from linkern.bench.cuda.prepared import OnDevice
from linkern.bench.cuda.tasks import drawn, judged_heads
from linkern.bench.tasks import Real
from linkern.bench.worker import answer

__all__ = ["DeviceWorker", "main"]


class DeviceWorker:
    """What the process holds between two orders."""

    def __init__(self) -> None:
        self._ready: OnDevice | None = None

    def prepare(
        self, peer: Any, task: Any, length: int, seed: int, rows: list[int]
    ) -> list[Real]:
        """Make inputs and calls ready, and return some rows of the answer."""
        self.release()
        module, _, name = peer.prepare.partition(":")
        # Not imported above: whatever a peer imports must not be there for another.
        function = getattr(import_module(f"linkern.bench.cuda.{module}"), name)
        self._ready = function(drawn(task, length, seed), task, **peer.options)
        return self._ready.answer(judged_heads(task), rows)

    def measure(self, rounds: int) -> Taken:
        """Time the calls."""
        assert self._ready is not None
        return timed(self._ready.clock, self._ready.calls, rounds)

    def release(self) -> None:
        """Let go of everything, and give the memory back to the GPU."""
        self._ready = None
        gc.collect()
        if "cupy" in sys.modules:
            sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


def main() -> None:
    """Answer orders until there are no more."""
    answer(DeviceWorker())

"""Worker of one peer: it prepares the call, answers, repeats and times it.

Each peer has a process of its own, because the threads of one library go on spinning
after a call and would take a core from the next. Orders come as pickles through
standard input; replies go back through standard output.
"""

import gc
import os
import pickle
import sys
import traceback
import warnings
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.bench.clocks import Peak, Prepared, Turn

__all__ = ["LocalWorker", "main"]


class LocalWorker:
    """A worker in this process: one prepared peer, and the orders that concern it."""

    def __init__(self, _threads: int = 1) -> None:
        self.prepared: Prepared | None = None
        self.traced = False

    def ask(self, order: str, *arguments: Any) -> Any:
        """Return the reply to an order."""
        return getattr(self, order)(*arguments)

    def close(self) -> None:
        """Free what is held for a task."""
        self.release()

    def prepare(
        self, peer: Any, task: Any, length: int, seed: int, rows: list[int]
    ) -> list[NDArray[np.float64]]:
        """Make inputs and call ready; call once and return these rows, if any."""
        self.release()
        self.prepared, self.traced = peer.ready(task, length, seed), peer.traced
        assert self.prepared is not None
        return self.prepared.answer(rows) if rows else []

    def turn(self, window: float) -> Turn:
        """Repeat the call."""
        assert self.prepared is not None
        return self.prepared.turn(window)

    def peak(self) -> Peak:
        """Return the memory of one more call."""
        assert self.prepared is not None
        return self.prepared.peak(traced=self.traced)

    def release(self) -> None:
        """Free inputs and call, and the pools of a GPU."""
        self.prepared = None
        gc.collect()
        if "cupy" in sys.modules:
            import_module("cupy").get_default_memory_pool().free_all_blocks()
        if "torch" in sys.modules:
            import_module("torch").cuda.empty_cache()


def main() -> None:
    """Answer orders, each the name of a method and its arguments, until they end."""
    worker = LocalWorker()
    orders, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever libraries print is no reply
    warnings.simplefilter("ignore")
    while True:
        try:
            order, arguments = pickle.load(orders)
        except EOFError:
            return
        try:
            reply: tuple[bool, Any] = (True, worker.ask(order, *arguments))
        except Exception as error:  # whatever a peer raises
            traceback.print_exc()
            first, _, _ = str(error).partition("\n")
            reply = (False, f"{type(error).__name__}: {first}")
        pickle.dump(reply, replies)
        replies.flush()

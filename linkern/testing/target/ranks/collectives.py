"""Collectives between threads, one for each rank, named as those of torch."""

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

__all__ = ["Collectives"]

# Seconds that a rank waits for the others.
PATIENCE = 20.0


class Collectives:
    """Collectives of `torch.distributed` between threads, by its names.

    Parameters
    ----------
    size : int
        The number of ranks.

    Raises
    ------
    RuntimeError
        In a collective, if ranks call different ones, or some call none.
    """

    def __init__(self, size: int) -> None:
        self._size, self._here = size, threading.local()
        self._held: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)
        self._sent: dict[Any, queue.Queue[Any]] = defaultdict(queue.Queue)

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function with each rank, each in a thread; return all results."""
        results: list[Any] = [None] * self._size
        failures: list[tuple[int, BaseException]] = []

        def work(rank: int) -> None:
            self._here.rank = rank
            try:
                results[rank] = function(rank)
            except BaseException as error:
                failures.append((rank, error))
                self._barrier.abort()  # nobody waits for this rank

        threads = [threading.Thread(target=work, args=(r,)) for r in range(self._size)]
        with self._instead():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if failures:
            # The first to fail: others fail because of it.
            raise failures[0][1]
        return results

    @contextmanager
    def _instead(self) -> Any:
        """Replace the functions of `torch.distributed` in a block."""
        distributed = import_module("torch.distributed")
        with ExitStack() as replaced:
            for name in (n for n in vars(Collectives) if not n.startswith("_")):
                if name != "run":
                    other = getattr(self, name)
                    replaced.enter_context(patch.object(distributed, name, other))
            yield

    def _met(self, name: str, value: Any) -> list[Any]:
        """Return the values of all ranks, which call a collective of this name."""
        rank = self._here.rank
        self._held[rank] = name, value
        try:
            self._barrier.wait(PATIENCE)
            held = [*self._held]
            self._barrier.wait(PATIENCE)
        except threading.BrokenBarrierError:
            msg = f"rank {rank} waits in {name}, which another rank does not call."
            raise RuntimeError(msg) from None
        if {called for called, _ in held} != {name}:
            calls = ", ".join(
                f"rank {r} {called}" for r, (called, _) in enumerate(held)
            )
            msg = f"all ranks must call the same collective, got {calls}."
            raise RuntimeError(msg)
        return [x for _, x in held]

    def is_initialized(self) -> bool:
        """Return True: there is a group."""
        return True

    def get_rank(self, group: Any = None) -> int:
        """Return the rank of this thread."""
        del group
        rank: int = self._here.rank
        return rank

    def get_world_size(self, group: Any = None) -> int:
        """Return the number of ranks."""
        del group
        return self._size

    def get_process_group_ranks(self, group: Any = None) -> list[int]:
        """Return all ranks."""
        del group
        return [*range(self._size)]

    def barrier(self, group: Any = None) -> None:
        """Wait for all ranks."""
        del group
        self._met("barrier", None)

    def all_gather(
        self, tensors: Sequence[Any], tensor: Any, group: Any = None
    ) -> None:
        """Copy the tensors of all ranks."""
        del group
        received = self._met("all_gather", tensor.detach().clone())
        for to, x in zip(tensors, received, strict=True):
            to.copy_(x)

    def all_reduce(self, tensor: Any, op: Any = None, group: Any = None) -> None:
        """Add up the tensors of all ranks, in the order of the ranks."""
        del group
        if op is not None and "SUM" not in str(op):
            msg = f"`op` must be SUM in a simulation, got {op}."
            raise NotImplementedError(msg)
        first, *others = self._met("all_reduce", tensor.detach().clone())
        tensor.copy_(sum(others, first))

    def broadcast(self, tensor: Any, src: int = 0, group: Any = None) -> None:
        """Copy the tensor of one rank."""
        del group
        tensor.copy_(self._met("broadcast", tensor.detach().clone())[src])

    def all_to_all_single(
        self,
        output: Any,
        tensor: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
    ) -> None:
        """Send a part of the tensor to each rank, and copy a part from each."""
        del output_split_sizes, group
        sizes = input_split_sizes or len(tensor) // self._size
        parts = self._met("all_to_all_single", tensor.detach().clone().split(sizes))
        torch = import_module("torch")
        output.copy_(torch.cat([several[self._here.rank] for several in parts]))

    def send(self, tensor: Any, dst: int, group: Any = None) -> None:
        """Send a tensor to one rank, without waiting for it."""
        del group
        self._sent[self._here.rank, dst].put(tensor.detach().clone())

    def recv(self, tensor: Any, src: int, group: Any = None) -> None:
        """Wait for a tensor from one rank."""
        del group
        try:
            tensor.copy_(self._sent[src, self._here.rank].get(timeout=PATIENCE))
        except queue.Empty:
            msg = (
                f"rank {self._here.rank} waits in recv, to which rank {src} sends none."
            )
            raise RuntimeError(msg) from None

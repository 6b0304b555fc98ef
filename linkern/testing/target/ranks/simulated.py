"""Ranks in one process: a thread each, and collectives that threads play.

While they run, functions of `torch.distributed` are replaced by those of `Collectives`.
"""

import inspect
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

from linkern.testing.target.ranks.sharding import Sharding
from linkern.testing.target.signatures import GROUP_NAMES

__all__ = ["Collectives", "simulate_ranks"]

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


def simulate_ranks(
    function: Callable[..., Any], ranks: int | Sequence[int], *, dim: int = 2
) -> Callable[..., Any]:
    """Return a function on whole sequences that runs on several ranks, in threads.

    It needs no processes, so that a debugger and `print` show every rank. The result
    can be differentiated: `backward` runs on all ranks at once.

    Parameters
    ----------
    function : callable
        A function of `torch.distributed`, which it calls as ``dist.all_gather(...)``;
        it returns its output, or a tuple of that and a state.
    ranks : int or sequence of int
        The number of ranks, or the number of tokens of each.
    dim : int
        The token axis.

    Returns
    -------
    callable
        Its positional arguments are cut along `dim`; `initial_state` goes to the first
        rank, and all other keyword arguments are whole. It returns the joined output,
        or a tuple of that and the state of the last rank.

    Raises
    ------
    ValueError
        If there are fewer than two ranks.

    Examples
    --------
    With torch installed, three rows that are added up over two ranks:

    .. code-block:: python

        def total(x):
            everything = x.sum(0, keepdim=True)
            torch.distributed.all_reduce(everything)
            return everything.expand_as(x)

        simulate_ranks(total, 2, dim=0)(torch.ones(3, 1))  # three rows of 3
    """
    count = ranks if isinstance(ranks, int) else len(ranks)
    if count < 2:
        msg = f"`ranks` must be at least 2, got {count}."
        raise ValueError(msg)
    named = inspect.signature(function).parameters
    groups = {name: None for name in GROUP_NAMES if name in named}

    def simulated(*inputs: Any, **options: Any) -> Any:
        sizes = Sharding(count).sizes(inputs[0].shape[dim])
        sizes = sizes if isinstance(ranks, int) else tuple(ranks)
        state = options.pop("initial_state", None)

        def on_rank(rank: int, entered: Any, own: Sequence[Any]) -> Any:
            passed = {**groups, **options}
            if "initial_state" in named:
                passed["initial_state"] = None if rank else entered
            return function(*own, **passed)

        run = _differentiable(Collectives(count), on_rank, sizes, dim)
        return run(state, *inputs)

    return simulated


def _differentiable(
    collectives: Collectives,
    on_rank: Callable[..., Any],
    sizes: tuple[int, ...],
    dim: int,
) -> Callable[..., Any]:
    """Return what calls all ranks, and differentiates on all of them at once."""
    torch = import_module("torch")

    class Simulated(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, state: Any, *inputs: Any) -> Any:
            shards = list(zip(*(x.split(sizes, dim) for x in inputs), strict=True))
            ctx.leaves = [[_leaf(x) for x in own] for own in shards]
            ctx.state = None if state is None else _leaf(state)

            def forward(rank: int) -> Any:
                with torch.enable_grad():
                    return on_rank(rank, ctx.state, ctx.leaves[rank])

            ctx.results = collectives.run(forward)
            if not isinstance(ctx.results[0], tuple):
                ctx.results = [(x,) for x in ctx.results]
            output = torch.cat([x[0].detach() for x in ctx.results], dim)
            final = ctx.results[-1][1:]
            return (output, *(x.detach().clone() for x in final)) if final else output

        @staticmethod
        def backward(ctx: Any, of_output: Any, *of_final: Any) -> Any:
            cotangents = of_output.split(sizes, dim)

            def backward(rank: int) -> None:
                pairs = [(ctx.results[rank][0], cotangents[rank])]
                if rank == len(sizes) - 1:
                    pairs += zip(ctx.results[rank][1:], of_final, strict=True)
                pairs = [(x, of_x) for x, of_x in pairs if x.requires_grad]
                if pairs:
                    torch.autograd.backward(*zip(*pairs, strict=True))

            collectives.run(backward)
            gradients = [
                torch.cat(
                    [torch.zeros_like(x) if x.grad is None else x.grad for x in xs], dim
                )
                for xs in zip(*ctx.leaves, strict=True)
            ]
            return (None if ctx.state is None else ctx.state.grad, *gradients)

    run: Callable[..., Any] = Simulated.apply
    return run


def _leaf(x: Any) -> Any:
    """Return the same numbers, of which gradients are kept."""
    x = x.detach().clone()
    return x.requires_grad_() if x.is_floating_point() else x

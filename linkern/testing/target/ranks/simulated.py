"""Ranks in one process, a thread each, differentiated on all of them at once."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from linkern.testing.target.ranks.collectives import Collectives
from linkern.testing.target.ranks.sharding import Sharding
from linkern.testing.target.signatures import GROUP_NAMES

__all__ = ["simulate_ranks"]


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

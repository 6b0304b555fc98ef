"""Ranks in one process, a thread each, differentiated on all of them at once."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from linkern.testing.target.ranks.sharding import Sharding
from linkern.testing.target.ranks.threads import on_threads
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
        A function of `torch.distributed`; it returns its output, or a tuple of that and
        a state, which is a tensor or a tuple of them.
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

        def on_rank(rank: int, entered: tuple[Any, ...], own: Sequence[Any]) -> Any:
            passed = {**groups, **options}
            if "initial_state" in named:
                passed["initial_state"] = None if rank else _formed(entered, state)
            return function(*own, **passed)

        return _differentiated(on_rank, sizes, dim, _parts(state), inputs)

    return simulated


def _parts(state: Any) -> tuple[Any, ...]:
    """Return the tensors of a state."""
    if state is None:
        return ()
    return tuple(state) if isinstance(state, tuple) else (state,)


def _formed(parts: tuple[Any, ...], state: Any) -> Any:
    """Return tensors in the form of a state."""
    if state is None:
        return None
    return parts if isinstance(state, tuple) else parts[0]


def _differentiated(
    on_rank: Callable[..., Any],
    sizes: tuple[int, ...],
    dim: int,
    state: tuple[Any, ...],
    inputs: tuple[Any, ...],
) -> Any:
    """Call all ranks; what they return is differentiated on all of them at once."""
    torch = import_module("torch")
    form: list[Any] = []  # of what the last rank returns

    class Simulated(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, *whole: Any) -> Any:
            entered, inputs = whole[: len(state)], whole[len(state) :]
            shards = list(zip(*(x.split(sizes, dim) for x in inputs), strict=True))
            ctx.leaves = [[_leaf(x) for x in own] for own in shards]
            ctx.state = tuple(_leaf(x) for x in entered)

            def forward(rank: int) -> Any:
                with torch.enable_grad():
                    return on_rank(rank, ctx.state, ctx.leaves[rank])

            returned = on_threads(forward, len(sizes))
            form.append(returned[-1])
            several = [x if isinstance(x, tuple) else (x, None) for x in returned]
            ctx.outputs = [output for output, _ in several]
            ctx.final = _parts(several[-1][1])
            output = torch.cat([x.detach() for x in ctx.outputs], dim)
            return (output, *(x.detach().clone() for x in ctx.final))

        @staticmethod
        def backward(ctx: Any, of_output: Any, *of_final: Any) -> Any:
            cotangents = of_output.split(sizes, dim)

            def backward(rank: int) -> None:
                pairs = [(ctx.outputs[rank], cotangents[rank])]
                if rank == len(sizes) - 1:
                    pairs += zip(ctx.final, of_final, strict=True)
                pairs = [(x, of_x) for x, of_x in pairs if x.requires_grad]
                if pairs:
                    torch.autograd.backward(*zip(*pairs, strict=True))

            on_threads(backward, len(sizes))
            gradients = [
                torch.cat(
                    [torch.zeros_like(x) if x.grad is None else x.grad for x in xs], dim
                )
                for xs in zip(*ctx.leaves, strict=True)
            ]
            return (*(x.grad for x in ctx.state), *gradients)

    output, *final = Simulated.apply(*state, *inputs)
    if not isinstance(form[0], tuple):
        return output
    return output, _formed(tuple(final), form[0][1])


def _leaf(x: Any) -> Any:
    """Return the same numbers, of which gradients are kept."""
    x = x.detach().clone()
    return x.requires_grad_() if x.is_floating_point() else x

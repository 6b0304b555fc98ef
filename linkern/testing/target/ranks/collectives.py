"""Collectives between threads, one for each rank, named as those of torch."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from linkern.testing.target.ranks.meeting import Handle, Meeting, copied

__all__ = ["Collectives"]


class Collectives:
    """Collectives of `torch.distributed` between threads, by its names.

    With ``async_op=True`` numbers are sent at once, and written by `wait`.

    Parameters
    ----------
    meeting : Meeting
        The place where threads exchange values.

    Raises
    ------
    RuntimeError
        In a collective, if ranks call different ones, or some call none.
    """

    def __init__(self, meeting: Meeting) -> None:
        self._size, self._meeting = meeting.size, meeting

    @property
    def _rank(self) -> int:
        return self._meeting.rank

    def _met(
        self,
        name: str,
        value: Any,
        finish: Callable[[list[Any]], Any],
        async_op: bool,
    ) -> Handle | None:
        """Meet all ranks in a collective, and write what it gives, now or later."""
        received = self._meeting.exchanged(name, value)
        handle = Handle(lambda: finish(received))
        if async_op:
            return handle
        handle.wait()
        return None

    def is_initialized(self) -> bool:
        """Return True: there is a group."""
        return True

    def get_backend(self, group: Any = None) -> str:
        """Return the backend whose results these are."""
        del group
        return "gloo"

    def get_rank(self, group: Any = None) -> int:
        """Return the rank of this thread."""
        del group
        return self._rank

    def get_world_size(self, group: Any = None) -> int:
        """Return the number of ranks."""
        del group
        return self._size

    def get_process_group_ranks(self, group: Any = None) -> list[int]:
        """Return all ranks."""
        del group
        return [*range(self._size)]

    def get_global_rank(self, group: Any, group_rank: int) -> int:
        """Return the same rank: there is one group."""
        del group
        return group_rank

    def get_group_rank(self, group: Any, global_rank: int) -> int:
        """Return the same rank: there is one group."""
        del group
        return global_rank

    def barrier(self, group: Any = None, async_op: bool = False) -> Handle | None:
        """Wait for all ranks."""
        del group
        return self._met("barrier", None, len, async_op)

    def all_gather(
        self,
        tensor_list: Sequence[Any],
        tensor: Any,
        group: Any = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Copy the tensors of all ranks."""
        del group

        def finish(received: list[Any]) -> None:
            for to, x in zip(tensor_list, received, strict=True):
                to.copy_(x)

        return self._met("all_gather", copied(tensor), finish, async_op)

    def all_gather_into_tensor(
        self,
        output_tensor: Any,
        input_tensor: Any,
        group: Any = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Copy the tensors of all ranks into one, joined or stacked."""
        del group

        def finish(received: list[Any]) -> None:
            joined = import_module("torch").stack(received)
            output_tensor.copy_(joined.reshape(output_tensor.shape))

        name = "all_gather_into_tensor"
        return self._met(name, copied(input_tensor), finish, async_op)

    def all_reduce(
        self, tensor: Any, op: Any = None, group: Any = None, async_op: bool = False
    ) -> Handle | None:
        """Add up the tensors of all ranks, in the order of the ranks."""
        del group
        _require_sum(op)

        def finish(received: list[Any]) -> None:
            tensor.copy_(_sum(received))

        return self._met("all_reduce", copied(tensor), finish, async_op)

    def reduce_scatter(
        self,
        output: Any,
        input_list: Sequence[Any],
        op: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Add up what all ranks have for this one."""
        del group
        _require_sum(op)
        rank = self._rank

        def finish(received: list[Any]) -> None:
            output.copy_(_sum([several[rank] for several in received]))

        value = [copied(x) for x in input_list]
        return self._met("reduce_scatter", value, finish, async_op)

    def reduce_scatter_tensor(
        self,
        output: Any,
        input: Any,
        op: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Add up the part of this rank of the tensors of all ranks."""
        del group
        _require_sum(op)
        rank = self._rank

        def finish(received: list[Any]) -> None:
            output.copy_(_sum([several[rank] for several in received]))

        value = copied(input).reshape(self._size, *output.shape)
        return self._met("reduce_scatter_tensor", value, finish, async_op)

    def broadcast(
        self,
        tensor: Any,
        src: int | None = None,
        group: Any = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> Handle | None:
        """Copy the tensor of one rank."""
        del group
        root = (group_src or 0) if src is None else src

        def finish(received: list[Any]) -> None:
            tensor.copy_(received[root])

        return self._met("broadcast", copied(tensor), finish, async_op)

    def all_to_all(
        self,
        output_tensor_list: Sequence[Any],
        input_tensor_list: Sequence[Any],
        group: Any = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Send a tensor to each rank, and copy one from each."""
        del group
        rank = self._rank

        def finish(received: list[Any]) -> None:
            for to, several in zip(output_tensor_list, received, strict=True):
                to.copy_(several[rank])

        value = [copied(x) for x in input_tensor_list]
        return self._met("all_to_all", value, finish, async_op)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Send a part of the tensor to each rank, and copy a part from each."""
        del output_split_sizes, group
        rank, sizes = self._rank, input_split_sizes or len(input) // self._size

        def finish(received: list[Any]) -> None:
            parts = [several[rank] for several in received]
            output.copy_(import_module("torch").cat(parts))

        value = copied(input).split(sizes)
        return self._met("all_to_all_single", value, finish, async_op)


def _sum(tensors: list[Any]) -> Any:
    first, *others = tensors
    return sum(others, first)


def _require_sum(op: Any) -> None:
    if op is not None and "SUM" not in str(op):
        msg = f"`op` must be SUM in a simulation, got {op}."
        raise NotImplementedError(msg)

"""Messages between two threads, one for each rank, named as those of torch."""

import queue
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from linkern.testing.target.ranks.meeting import PATIENCE, Handle, Meeting, copied

__all__ = ["Messages", "PointToPoint"]


class PointToPoint:
    """An operation of `batch_isend_irecv`: its function, a tensor and the other rank.

    It stands for `torch.distributed.P2POp`, whose parameters it takes.
    """

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Any,
        peer: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        self.op, self.tensor, self.group, self.tag = op, tensor, group, tag
        self.peer = group_peer if peer is None else peer


class Messages:
    """Messages of `torch.distributed` between threads, by its names.

    Parameters
    ----------
    meeting : Meeting
        The place where threads exchange values, which knows their ranks.
    """

    P2POp = PointToPoint

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._sent: dict[Any, queue.Queue[Any]] = defaultdict(queue.Queue)

    def send(
        self,
        tensor: Any,
        dst: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_dst: int | None = None,
    ) -> None:
        """Send a tensor to one rank, without waiting for it."""
        self.isend(tensor, dst, group, tag, group_dst)

    def recv(
        self,
        tensor: Any,
        src: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_src: int | None = None,
    ) -> int:
        """Wait for a tensor from one rank."""
        self.irecv(tensor, src, group, tag, group_src).wait()
        other = group_src if src is None else src
        assert other is not None
        return other

    def isend(
        self,
        tensor: Any,
        dst: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_dst: int | None = None,
    ) -> Handle:
        """Send a tensor to one rank."""
        del group
        other = group_dst if dst is None else dst
        self._sent[self._meeting.rank, other, tag].put(copied(tensor))
        return Handle(lambda: None)

    def irecv(
        self,
        tensor: Any,
        src: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_src: int | None = None,
    ) -> Handle:
        """Return what waits for a tensor from one rank."""
        del group
        rank, other = self._meeting.rank, group_src if src is None else src
        if other is None:
            msg = "`src` must be a rank in a simulation, got None."
            raise NotImplementedError(msg)

        def finish() -> None:
            try:
                tensor.copy_(self._sent[other, rank, tag].get(timeout=PATIENCE))
            except queue.Empty:
                msg = f"rank {rank} waits in recv, to which rank {other} sends none."
                raise RuntimeError(msg) from None

        return Handle(finish)

    def batch_isend_irecv(self, p2p_op_list: Sequence[Any]) -> list[Handle]:
        """Begin to send and to receive several tensors."""
        return [one.op(one.tensor, one.peer, tag=one.tag) for one in p2p_op_list]

"""Calls of a target on one rank, which hands states to and takes them from others."""

from collections.abc import Sequence
from copy import deepcopy
from importlib import import_module
from typing import Any

import numpy as np

from linkern.testing.errors import UsageError
from linkern.testing.target.framework import Framework
from linkern.testing.target.loading import Loaded
from linkern.testing.target.protocol import Call, TargetConfig
from linkern.testing.target.ranks.counting import Counting
from linkern.testing.target.ranks.fla_context import cp_context
from linkern.testing.target.ranks.sharding import Sharding
from linkern.testing.target.segments import ABSENT, Natives, SegmentRunner

__all__ = ["RankRunner"]


class RankRunner(SegmentRunner):
    """Call a loaded target on one rank, with its shard of the tokens.

    The state after a span is that of the last rank, and goes to the first one, or to
    every rank; its gradient goes the other way.

    Parameters
    ----------
    loaded, config, framework : Loaded, TargetConfig, Framework
        Those of `SegmentRunner`.
    group : ProcessGroup
        The group of all ranks that the target is passed.
    """

    def __init__(
        self,
        loaded: Loaded,
        config: TargetConfig,
        framework: Framework,
        group: Any,
    ) -> None:
        if loaded.interface.position is not None:
            msg = (
                f'"{config.target}" must not take `{loaded.interface.position}` over '
                "ranks: it is not known of which token; leave it out."
            )
            raise UsageError(msg)
        super().__init__(loaded, config, framework)
        self._torch = import_module("torch")
        self._collectives = import_module("torch.distributed")
        self._group = group
        self._rank = self._collectives.get_rank(group)
        size = self._collectives.get_world_size(group)
        self._last = Sharding(size, order=config.ranks_order).last
        self._counting = Counting()
        # States cross in a group of their own, so that they meet no call of the target,
        # as bytes, which gloo sends from any device.
        self._own = self._collectives.new_group(backend="gloo")

    def _other_arguments(self, call: Call, first: int, index: int) -> dict[str, Any]:
        options = super()._other_arguments(call, first, index)
        if self._loaded.interface.group is not None:
            options[self._loaded.interface.group] = self._group
        if self._loaded.interface.context is not None:
            options[self._loaded.interface.context] = self._context(call, index)
        return options

    def _context(self, call: Call, index: int) -> Any:
        """Return the context of a span, all ranks of which have as many tokens."""
        span = [*self._pieces(self.length(call), call.cuts)][index]
        offsets = None
        if call.segments:
            edges = np.asarray(call.segments[index], self.config.cu_seqlens_dtype)
            offsets = self._native("cu_seqlens", edges)
        tokens, order = span.stop - span.start, self.config.ranks_order
        where = self._torch.device(self.config.device)
        return cp_context(where, tokens, offsets, self._group, order)

    def begin(self) -> None:
        """Begin a call, of which nothing is observed yet."""
        super().begin()
        self._counting.begin()

    @property
    def met(self) -> bool:
        """True if the target has called a collective on this rank since."""
        return self._counting.called

    @property
    def _starts(self) -> bool:
        """True if the target is passed the initial state on this rank."""
        return self._rank == 0 or self.config.ranks_initial == "every"

    def _passed_on(self, after: Any) -> Any:
        """Return the state of the last rank where one is passed, None elsewhere."""
        held = [None if after is ABSENT else (after,)]
        with self._counting.paused():
            self._collectives.broadcast_object_list(held, self._last, self._own)
        (state,) = self._received(held)
        if state is None:
            return ABSENT
        return state[0] if self._starts else None

    def _received(self, sent: Any) -> Any:
        """Return a copy on the device of this rank, that no gradient leaves."""
        device = self.config.device
        copies = {id(x): x.detach().clone().to(device) for x in self.arrays_in(sent)}
        return deepcopy(sent, copies)

    def _passed_back(self, gradient: Any) -> Any:
        """Return the sum of the gradients of all ranks on the last one."""
        gathered: list[Any] = [None] * self._collectives.get_world_size(self._own)
        with self._counting.paused():
            self._collectives.all_gather_object(gathered, gradient, self._own)
        passed = [self._received(x) for x in gathered if x is not None]
        if self._rank != self._last or not passed:
            return None
        if not isinstance(passed[0], list):
            return sum(passed[1:], passed[0])
        return [sum(parts[1:], parts[0]) for parts in zip(*passed, strict=True)]

    def gradients(
        self, natives: Natives, cotangent: Any, call: Call
    ) -> tuple[list[Any], list[Any]]:
        """Return the outputs of the segments, and the gradients of the inputs.

        A rank whose output no input reaches has none, while others may have some.
        """
        if self._loaded.vjp is not None:
            return super().gradients(natives, cotangent, call)

        def pull(
            segment: Any, index: int, cotangent: Any, of_state: Sequence[Any] | None
        ) -> tuple[list[Any], Any]:
            part = {
                name: x.detach().clone().requires_grad_()
                for name, x in self._part(natives, segment.span, call).items()
            }
            before = segment.before
            if before is not ABSENT:
                before = deepcopy(before)
            entered = [x.requires_grad_() for x in self._numbers_in(before)]
            with self._torch.enable_grad():
                result = self._once(part, before, call, segment.first, index)
            leaves = [*part.values(), *entered]
            of_leaves = self._pulled_back(result, (cotangent, of_state), leaves)
            gradients, of_entered = of_leaves[: len(part)], of_leaves[len(part) :]
            zeros = [
                x.detach() * 0 if gradient is None else gradient
                for x, gradient in zip(entered, of_entered, strict=True)
            ]
            return gradients, zeros or None

        return self._in_reverse(natives, cotangent, call, pull)

    def _numbers_in(self, state: Any) -> list[Any]:
        """Return the arrays of a state that have gradients."""
        return [x for x in self.arrays_in(state) if x.is_floating_point()]

    def _pulled_back(
        self, result: tuple[Any, Any], cotangents: tuple[Any, Any], leaves: list[Any]
    ) -> list[Any]:
        """Return the gradients of leaves from the cotangents of output and state."""
        (output, after), (of_output, of_state) = result, cotangents
        pairs = [(output, of_output)]
        pairs += zip(self._numbers_in(after), of_state or (), strict=False)
        pairs = [(x, of_x) for x, of_x in pairs if getattr(x, "requires_grad", False)]
        if not pairs:
            return [None] * len(leaves)
        outputs, of_outputs = zip(*pairs, strict=True)
        # Not `grad`, which leaves out what leads to none of its inputs: a rank without
        # tokens takes part in the collectives of the backward pass all the same.
        self._torch.autograd.backward(outputs, of_outputs)
        return [x.grad for x in leaves]

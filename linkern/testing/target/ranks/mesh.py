"""Calls of a target of JAX on a mesh of devices in one process, by `shard_map`.

The target is the function of one rank. Its shards are entries of arrays with one more
axis, along which the mesh is laid, and so are copies of all that is whole: each rank
has gradients of its own, and that of a copy is its contribution to the sum.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from linkern.testing.errors import UsageError
from linkern.testing.target.accelerators import jax_device
from linkern.testing.target.framework import Framework
from linkern.testing.target.loading import Loaded
from linkern.testing.target.protocol import Call, TargetConfig
from linkern.testing.target.ranks.sharding import ZIGZAG, Sharding
from linkern.testing.target.segments import SegmentRunner, leaves

__all__ = ["AXIS", "MeshRunner"]

# Name of the axis of the mesh.
AXIS = "ranks"


class MeshRunner(SegmentRunner):
    """Call a loaded target of JAX on several devices, each with its shard.

    Parameters
    ----------
    loaded, config, framework : Loaded, TargetConfig, Framework
        Those of `SegmentRunner`.

    Raises
    ------
    UsageError
        If there are fewer devices than ranks, or the target takes a position or has a
        gradient function of its own.
    """

    def __init__(
        self, loaded: Loaded, config: TargetConfig, framework: Framework
    ) -> None:
        if loaded.interface.position is not None:
            msg = (
                f'"{config.target}" must not take `{loaded.interface.position}` over '
                "ranks: it is not known of which token; leave it out."
            )
            raise UsageError(msg)
        if loaded.vjp is not None:
            msg = (
                f'"{config.target}" must leave its gradients to `jax.custom_vjp` over '
                "ranks: a `vjp` beside it meets no collective; leave it out."
            )
            raise UsageError(msg)
        super().__init__(loaded, config, framework)
        self._jax = import_module("jax")
        devices, most = self._jax.devices("cpu"), max(config.ranks)
        if len(devices) < most:
            msg = (
                f"`ranks` needs {most} devices of JAX, and XLA_FLAGS allows "
                f"{len(devices)}; leave --xla_force_host_platform_device_count out."
            )
            raise UsageError(msg)
        self._meshes = {
            n: self._jax.sharding.Mesh(np.asarray(devices[:n]), (AXIS,))
            for n in config.ranks
        }
        self._compiled: dict[str, Callable[..., Any]] = {}

    def _other_arguments(self, call: Call, first: int, index: int) -> dict[str, Any]:
        options = super()._other_arguments(call, first, index)
        if self._loaded.interface.group is not None:
            options[self._loaded.interface.group] = AXIS
        return options

    def _returned(
        self, inputs: list[Any], options: dict[str, Any], sharding: Sharding | None
    ) -> Any:
        """Return the joined output of all ranks, and the state of the last one."""
        config, jax = self.config, self._jax
        sharding = sharding or Sharding(config.ranks[0], order=config.ranks_order)
        arrays = {n: x for n, x in options.items() if self._is_array(x)}
        fixed = {n: x for n, x in options.items() if n not in arrays}
        key = repr((sharding.ranks, sharding.order, fixed))
        if key not in self._compiled:
            on_all = partial(self._on_all, fixed=fixed, sharding=sharding)
            self._compiled[key] = jax.jit(on_all)
        everywhere = jax.sharding.NamedSharding(
            self._meshes[sharding.ranks], jax.sharding.PartitionSpec()
        )
        placed = jax.device_put((inputs, arrays), everywhere)
        returned = self._compiled[key](*placed)
        return jax.device_put(returned, jax_device(jax, config.device))

    def _is_array(self, option: Any) -> bool:
        """Return True for an array of JAX, and for a state that is made of them."""
        return any(self.framework.is_native(x) for x in leaves(option))

    def _on_all(
        self,
        inputs: list[Any],
        arrays: dict[str, Any],
        *,
        fixed: dict[str, Any],
        sharding: Sharding,
    ) -> Any:
        """Cut the arguments, call the target on every device, and join the results."""
        jax = self._jax

        def on_one(inputs: list[Any], arrays: dict[str, Any]) -> Any:
            inputs, arrays = jax.tree.map(lambda x: x[0], (inputs, arrays))
            call = super(MeshRunner, self)._returned
            returned = call(inputs, {**fixed, **arrays}, None)
            return jax.tree.map(lambda x: jax.numpy.asarray(x)[None], returned)

        named = zip(self.operator.names, inputs, strict=True)
        shards = [None if x is None else self._cut(n, x, sharding) for n, x in named]
        copies = {n: self._copied(n, x, inputs, sharding) for n, x in arrays.items()}
        spec, mesh = jax.sharding.PartitionSpec(AXIS), self._meshes[sharding.ranks]
        mapped = _shard_map(on_one, mesh=mesh, in_specs=spec, out_specs=spec)
        returned = mapped(shards, copies)
        if not isinstance(returned, tuple | list) or not returned:
            return self._joined(returned, sharding)
        output, *others = returned
        chosen = jax.tree.map(partial(self._chosen, sharding=sharding), others)
        return (self._joined(output, sharding), *chosen)

    def _cut(self, name: str, x: Any, sharding: Sharding) -> Any:
        """Return the shards of an input, or as many copies of one without tokens."""
        numpy = self._jax.numpy
        if not self.operator.input(name).per_token:
            return numpy.broadcast_to(x, (sharding.ranks, *x.shape))
        pieces = numpy.split(x, sharding.pieces, self._axis)
        if sharding.order == ZIGZAG:
            pairs = [*zip(pieces, pieces[::-1], strict=True)][: sharding.ranks]
            pieces = [numpy.concatenate(pair, self._axis) for pair in pairs]
        return numpy.stack(pieces)

    def _copied(
        self, name: str, arrays: Any, inputs: list[Any], sharding: Sharding
    ) -> Any:
        """Return a copy of an argument for each rank; offsets may be of its shard."""
        numpy, count = self._jax.numpy, sharding.ranks
        own = self.config.ranks_cu_seqlens == "shard"
        if own and name == self._loaded.interface.cu_seqlens:
            each = inputs[0].shape[self._axis] // count
            firsts = each * numpy.arange(count, dtype=arrays.dtype)[:, None]
            return numpy.clip(arrays - firsts, 0, each)
        return self._jax.tree.map(
            lambda x: numpy.broadcast_to(x, (count, *numpy.shape(x))), arrays
        )

    def _joined(self, output: Any, sharding: Sharding) -> Any:
        """Return the output of all ranks, in the order of the tokens."""
        if not hasattr(output, "ndim") or output.ndim < 2:
            return output
        numpy = self._jax.numpy
        axis = min(self._axis, output.ndim - 2)
        pieces = [*output]
        if sharding.order == ZIGZAG:
            halves = [numpy.array_split(x, 2, axis) for x in output]
            pieces = [x for x, _ in halves] + [x for _, x in halves[::-1]]
        return numpy.concatenate(pieces, axis)

    def _chosen(self, states: Any, *, sharding: Sharding) -> Any:
        """Return the state of the last rank.

        Where every rank promises it, an entry is the one that is furthest from that of
        the last rank: if it is right, all are.
        """
        numpy, last = self._jax.numpy, states[sharding.last]
        if self.config.ranks_final == "last":
            return last
        distance = numpy.nan_to_num(abs(states - last), nan=numpy.inf)
        chosen = distance.argmax(0)[None]
        return numpy.take_along_axis(states, chosen, 0)[0]


def _shard_map(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return `jax.shard_map` of a function, wherever this version of JAX has it.

    Values that are the same on all ranks are not tracked, so that a scan may begin with
    zeros.
    """
    jax = import_module("jax")
    if hasattr(jax, "shard_map"):
        mapped = jax.shard_map(function, check_vma=False, **options)
    else:
        older = import_module("jax.experimental.shard_map")
        mapped = older.shard_map(function, check_rep=False, **options)
    run: Callable[..., Any] = mapped
    return run

"""All kernels that can be launched, collected by planning calls without running them.

There is no list to maintain: the planners are called once for each kind of call.
"""

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from linkern import feature_maps
from linkern.core.recurrence import Terms
from linkern.decoding.cuda import CudaDecoder
from linkern.kernels.cuda.backward import (
    differentiates,
    pullback,
    recurrent_pullback,
)
from linkern.kernels.cuda.forward import (
    acts_on_entries,
    attend,
    feature_map_name,
    recurrent,
)
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import IO
from linkern.kernels.cuda.plan import copy, decode, state_passing
from linkern.kernels.cuda.plan.call import Call

__all__ = ["DryDevice", "Instance", "instances", "untouched"]

# Sizes that select between kernels: leading axes and tokens, K and V.
_LEADS = ((1, 1, 1), (1, 2, 65536), (4, 64, 512))
_SIZES = (
    *((16, 16), (20, 33), (32, 32), (64, 64), (64, 128), (128, 64)),
    *((128, 128), (256, 64), (256, 256)),
)
# Shared memory of a block: of consumer GPUs, and of data-centre GPUs since sm_90.
_SHARED = (99 << 10, 227 << 10)
# Of so many heads that blocks of more warps are faster, and their sizes.
_ONE_EACH = (
    *(((2, 64, 256), (64, 64)), ((2, 64, 256), (128, 128))),
    ((2, 64, 32), (64, 64)),
)
_WIDE = ((1024, 1024),)  # of one head only, since some planners copy the memory
_MAPS = tuple(x for x in vars(feature_maps).values() if acts_on_entries(x))


class Instance(NamedTuple):
    """One kernel with its template arguments.

    Parameters
    ----------
    file, kernel : str
        As in `linkern.kernels.cuda.launch.Launch`.
    threads, shared : int
        Of a block: the most that any launch asks for.
    """

    file: str
    kernel: str
    threads: int
    shared: int


class _Placeholder(np.ndarray[Any, Any]):
    """A read-only placeholder: copies are placeholders too, writes are discarded."""

    def __setitem__(self, place: Any, x: Any) -> None:
        pass

    def copy(self, order: Any = "C") -> Any:  # noqa: ARG002
        return untouched(self.shape, self.dtype)

    def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:
        return untouched(self.shape, dtype)


def untouched(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a placeholder in C order that takes no memory, however large.

    Its pages are private, read-only and never read, so the system allocates none.
    """
    dtype = np.dtype(dtype)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    size = max(1, prod(shape) * dtype.itemsize)
    pages = mmap.mmap(-1, size, flags=private, prot=mmap.PROT_READ)
    buffer = np.frombuffer(pages, np.uint8)[: prod(shape) * dtype.itemsize]
    return buffer.view(dtype).reshape(shape).view(_Placeholder)


class DryDevice:
    """A device that records launches and runs none.

    Attributes
    ----------
    library : str
        Module of its arrays.
    multiprocessors : int
        Of a card that the planner knows: more than short calls have blocks, fewer than
        most.
    shared : int
        Bytes of shared memory that a block may have.
    launches : list of Launch
        All of them, in order.
    """

    def __init__(self, shared: int = 99 << 10) -> None:
        self.library, self.multiprocessors, self.shared = "numpy", 132, shared
        self.launches: list[Launch] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array that takes no memory."""
        array: Array = untouched(shape, dtype)
        return array

    def address(self, x: Any) -> int:
        """Return the address of the first entry of an array."""
        address: int = x.__array_interface__["data"][0]
        return address

    def on_host(self, x: Any) -> Any:
        """Return zeros: nothing was computed."""
        return np.zeros(x.shape, x.dtype)

    def launch(self, launch: Launch) -> None:
        """Record a launch."""
        self.launches.append(launch)

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Record the launches of `work`; return a function that records them again."""
        before = len(self.launches)
        work()
        kept = self.launches[before:]
        return lambda: self.launches.extend(kept)


def instances() -> tuple[Instance, ...]:
    """Return all kernels that can be launched, sorted by name."""
    devices = [DryDevice(shared) for shared in _SHARED]
    for device, plan in product(devices, _PLANS):
        plan(device)
    most: dict[tuple[str, str], Instance] = {}
    for launch in chain.from_iterable(device.launches for device in devices):
        key = (launch.file, launch.kernel)
        known = most.get(key, Instance(*key, 0, 0))
        most[key] = Instance(
            *key,
            threads=max(known.threads, launch.threads),
            shared=max(known.shared, launch.shared),
        )
    return tuple(sorted(most.values()))


def _plan_attention(device: Device) -> None:
    """Plan causal attention and its gradients for all dtypes, sizes and options."""
    for inputs, feature_map in product(_inputs(), _MAPS):
        attend(device, *inputs, feature_map=feature_map)
        # Gradients of the output, which has the shape of the values, and of the state.
        cotangents: list[Any] = [inputs[i] for i in (2, 4, 5)]
        partial(pullback, device, *inputs)(*cotangents, feature_map=feature_map)


def _inputs() -> Iterator[tuple[Any, ...]]:
    """Yield query, key, value, log-decays or None, memory, normalizer or None."""
    shapes = [*product(_LEADS, _SIZES), *product(_LEADS[:1], _WIDE), *_ONE_EACH]
    flags = product((False, True), (False, True))
    for name, (lead, (features, values)), (decays, normalizes) in product(
        IO, shapes, flags
    ):
        kind, heads = _dtype(name), lead[:-1]
        real = np.float64 if name == "float64" else np.float32
        yield (
            untouched((*lead, features), kind),
            untouched((*lead, features), kind),
            untouched((*lead, values), kind),
            untouched((*lead, 1), real) if decays else None,
            untouched((*heads, features, values), real),
            untouched((*heads, features), real) if normalizes else None,
        )


def _plan_recurrence(device: Device) -> None:
    """Plan the recurrence token by token for all dtypes, sizes and terms."""
    decays, erases = (None, "token", "feature"), (None, False, True)
    kinds = product(decays, erases, (False, True))
    sizes = (*_SIZES, *_WIDE)
    for name, (features, values), kind in product(IO, sizes, kinds):
        decay, early_erase, early_read = kind
        dtype, lead = _dtype(name), (2, 77)
        real = np.float64 if name == "float64" else np.float32
        # No rows of kernels by chunks, which begin at multiples of 16 bytes.
        row = untouched((*lead, features + 1), dtype)[..., :-1]
        erase = untouched((*lead, features), dtype)
        log_decay = untouched((*lead, 1 if decay == "token" else features), real)
        terms = Terms(
            row,
            row,
            untouched((*lead, values), dtype),
            log_decay=None if decay is None else log_decay,
            erase=None if early_erase is None else erase,
            early_erase=bool(early_erase),
            early_read=early_read,
        )
        recurrent(device, untouched((2, features, values), real), terms)


def _plan_delta_rules(device: Device) -> None:
    """Plan the delta rule and its gradients, for all dtypes, sizes and decays."""
    # Few heads, and so many that blocks of more columns are faster.
    for heads, name, (features, values), decays in product(
        (2, 128), IO, _SIZES, (False, True)
    ):
        dtype, lead = _dtype(name), (heads, 77)
        real = np.float64 if name == "float64" else np.float32
        key, value = (untouched((*lead, n), dtype) for n in (features, values))
        gate = untouched((*lead, 1), real)
        terms = Terms(key, key, value, gate if decays else None, key, beta=gate)
        memory = untouched((heads, features, values), real)
        recurrent(device, memory, terms)
        if differentiates(device, memory, terms):
            recurrent_pullback(device, memory, terms, value, memory)


def _plan_decays_by_channel(device: Device) -> None:
    """Plan terms with a decay for each channel, for all dtypes and sizes."""
    # Few heads, more than run at once in some blocks, and more than in any.
    for heads, name, (features, values), (erases, early) in product(
        (2, 128, 512), IO, _SIZES, ((True, False), (False, False), (False, True))
    ):
        dtype, lead = _dtype(name), (heads, 77)
        real = np.float64 if name == "float64" else np.float32
        key, value = (untouched((*lead, n), dtype) for n in (features, values))
        gates = (untouched((*lead, n), real) for n in (features, 1))
        decay, beta = gates if erases else (next(gates), None)
        terms = Terms(key, key, value, decay, key if erases else None, beta=beta)
        terms = terms._replace(early_read=early)
        recurrent(device, untouched((heads, features, values), real), terms)


def _plan_decoding(device: Device) -> None:
    """Plan one token of linear attention for all dtypes, sizes and feature maps."""
    sizes = (*_SIZES, *_WIDE, *((features, 32) for features in (1, 8, 48, 100)))
    for name, (features, values), feature_map in product(IO, sizes, _MAPS):
        for normalizes in (False, True):
            decoder = CudaDecoder(
                device,
                batch_shape=(2, 3),
                key_dim=features,
                value_dim=values,
                dtype=_dtype(name),
                feature_map=feature_map,
                normalize=normalizes,
            )
            row = untouched((2, 3, features), _dtype(name))
            decoder.step(row, row, untouched((2, 3, values), _dtype(name)))


def _plan_decayed_decoding(device: Device) -> None:
    """Plan steps with a decay, which no decoder has."""
    for name, feature_map, size in product(IO, _MAPS, (32, 64, 128, 256)):
        for normalizes in (False, True):
            real = np.dtype(np.float64 if name == "float64" else np.float32)
            state = decode.zeros(device, 2, size, 64, real, normalize=normalizes)
            key, value = (untouched((1, 2, n), _dtype(name)) for n in (size, 64))
            rows = (key, key, value, value, untouched((1, 2), real))
            options: Any = {"feature_map": feature_map_name(feature_map), "scale": None}
            device.launch(decode.plan(device, state, *rows, **options))


def _plan_unaligned_scan(device: Device) -> None:
    """Plan the scan over segments of states that do not begin at 16 bytes."""
    query = untouched((1, 2, 0, 5), np.float32)
    none = (None, None)
    call = Call(query, query, query, None, *none, "IDENTITY", normalize=False, scale=1)
    states = untouched((2, 3, 5, 5), np.float32), None
    total = untouched((2, 3), np.float32)
    device.launch(state_passing.plan(device, call, states, total, none, none))


def _plan_copy(device: Device) -> None:
    """Plan a copy."""
    source, target = (untouched((1024,), np.uint8) for _ in range(2))
    device.launch(copy.plan(device, source, target))


def _dtype(name: str) -> Any:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # noqa: PLC0415 -- an optional package

    return np.dtype(ml_dtypes.bfloat16)


# Every way to launch kernels has a function here that plans all its kinds of calls.
_PLANS: tuple[Callable[[Device], None], ...] = (
    _plan_attention,
    _plan_recurrence,
    _plan_delta_rules,
    _plan_decays_by_channel,
    _plan_decoding,
    _plan_decayed_decoding,
    _plan_unaligned_scan,
    _plan_copy,
)

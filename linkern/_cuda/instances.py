"""Every kernel that a launch can ask for, found by planning calls that run nowhere.

Nobody keeps a list: the planners themselves are asked, with one call of each kind, so
that whoever compiles kernels beforehand compiles those that are launched.
"""

import mmap
from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from linkern import feature_maps
from linkern._cuda import decode
from linkern._cuda.attend import acts_on_entries, attend, feature_map_name
from linkern._cuda.device import Array, Device, Launch
from linkern._cuda.layouts import IO
from linkern._cuda.token import recurrent
from linkern._recurrence import Terms

__all__ = ["DryDevice", "Instance", "instances", "untouched"]

# What decides between kernels: how many heads there are and how long they are, K and V.
_LEADS = ((1, 1, 1), (1, 2, 65536), (4, 64, 512))
_SIZES = (
    *((16, 16), (20, 33), (32, 32), (64, 64), (64, 128), (128, 64)),
    *((128, 128), (256, 64), (256, 256)),
)
_WIDE = ((1024, 1024),)  # of one head alone, since some planners copy the memory
_MAPS = tuple(x for x in vars(feature_maps).values() if acts_on_entries(x))


class Instance(NamedTuple):
    """One kernel with the arguments of its template.

    Parameters
    ----------
    file, kernel : str
        As in `linkern._cuda.device.Launch`.
    threads, shared : int
        Of a block; the most that any launch asks for.
    """

    file: str
    kernel: str
    threads: int
    shared: int


class _Untouched(np.ndarray[Any, Any]):
    """An array of which a copy is another that is not read, and that forgets."""

    def __setitem__(self, place: Any, x: Any) -> None:
        pass

    def copy(self, order: Any = "C") -> Any:  # noqa: ARG002
        return untouched(self.shape, self.dtype)

    def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:
        return untouched(self.shape, dtype)


def untouched(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array of zeros in C order that takes no memory, however large.

    Its pages are of this process alone, cannot be written and are never read, so
    that the system keeps none for them.
    """
    kind: np.dtype[Any] = np.dtype(dtype)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    size = max(1, prod(shape) * kind.itemsize)
    pages = mmap.mmap(-1, size, flags=private, prot=mmap.PROT_READ)
    numbers = np.frombuffer(pages, np.uint8)[: prod(shape) * kind.itemsize]
    return numbers.view(kind).reshape(shape).view(_Untouched)


class DryDevice:
    """A device that runs nothing and keeps what it was to run.

    Attributes
    ----------
    multiprocessors : int
        How many blocks would run at once: more than short calls have, fewer than most.
    launches : list of Launch
        All of them, in order.
    """

    library = "numpy"

    def __init__(self) -> None:
        self.multiprocessors = 128
        self.launches: list[Launch] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array that takes no memory."""
        found: Array = untouched(shape, dtype)
        return found

    def address(self, x: Any) -> int:
        """Return where the first entry of an array would lie."""
        found: int = x.__array_interface__["data"][0]
        return found

    def launch(self, launch: Launch) -> None:
        """Keep a launch."""
        self.launches.append(launch)

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Keep what would be launched, once."""
        work()
        return lambda: None


def instances() -> tuple[Instance, ...]:
    """Return all kernels that launches ask for, each once, in order of their names."""
    device = DryDevice()
    for plan in _PLANS:
        plan(device)
    most: dict[tuple[str, str], Instance] = {}
    for launch in device.launches:
        key = (launch.file, launch.kernel)
        known = most.get(key, Instance(*key, 0, 0))
        most[key] = Instance(
            *key,
            threads=max(known.threads, launch.threads),
            shared=max(known.shared, launch.shared),
        )
    return tuple(sorted(most.values()))


def _plan_attention(device: Device) -> None:
    """Plan causal sums in every dtype, size and way."""
    for inputs in _inputs():
        for feature_map, decays, normalizes in product(_MAPS, *[(False, True)] * 2):
            query, _, value = inputs
            heads = query.shape[:-2]
            real = np.float64 if query.dtype == np.float64 else np.float32
            state = untouched((*heads, query.shape[-1], value.shape[-1]), real)
            attend(
                device,
                *inputs,
                untouched((*query.shape[:-1], 1), real) if decays else None,
                state,
                state[..., 0].copy() if normalizes else None,
                feature_map=feature_map,
            )


def _inputs() -> Iterator[tuple[Any, Any, Any]]:
    shapes = [*product(_LEADS, _SIZES), *product(_LEADS[:1], _WIDE)]
    for name, (lead, (features, values)) in product(IO, shapes):
        kind = _dtype(name)
        keys, rows = (*lead, features), (*lead, values)
        yield untouched(keys, kind), untouched(keys, kind), untouched(rows, kind)


def _dtype(name: str) -> Any:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # noqa: PLC0415 -- an optional package

    return np.dtype(ml_dtypes.bfloat16)


def _plan_tokens(device: Device) -> None:
    """Plan the recurrence token by token, in the ways that operators are it."""
    early = (False, True)
    kinds = [(decays, True, erase, False) for decays in (0, 1, 2) for erase in early]
    kinds += [(decays, False, False, read) for decays in (0, 2) for read in early]
    features = (20, 32, 40, 64, 100, 128, 200, 256, 1024)
    for name, size, kind in product(IO, features, kinds):
        decays, erases, early_erase, early_read = kind
        real = np.float64 if name == "float64" else np.float32
        keys, value = untouched((1, 2, 9, size), _dtype(name)), (1, 2, 9, 64)
        terms = Terms(
            keys,
            keys,
            untouched(value, _dtype(name)),
            untouched((1, 2, 9, (1, size)[decays - 1]), real) if decays else None,
            keys if erases else None,
            early_erase=early_erase,
            early_read=early_read,
        )
        recurrent(device, untouched((1, 2, size, 64), real), terms)


def _plan_decoding(device: Device) -> None:
    """Plan steps of a decoder, and those with a decay."""
    for name, feature_map, size in product(IO, _MAPS, (32, 64, 128, 256)):
        for normalizes, decays in product((False, True), repeat=2):
            real = np.dtype(np.float64 if name == "float64" else np.float32)
            state = decode.zeros(device, 2, size, 64, real, normalize=normalizes)
            key, value = (untouched((1, 2, n), _dtype(name)) for n in (size, 64))
            log_decay = untouched((1, 2), real) if decays else None
            device.launch(
                decode.plan(
                    device,
                    state,
                    *(key, key, value, value, log_decay),
                    feature_map=feature_map_name(feature_map),
                    scale=None,
                )
            )


# Whoever adds a way to launch kernels adds here a function that plans all its kinds.
_PLANS: tuple[Callable[[Device], None], ...] = (
    _plan_attention,
    _plan_tokens,
    _plan_decoding,
)

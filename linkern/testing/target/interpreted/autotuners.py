"""Autotuned kernels without timing: one configuration, the largest or a chosen one."""

import math
from importlib import import_module
from typing import Any
from weakref import WeakSet

__all__ = ["choose", "install"]

_SEEN: "WeakSet[Any]" = WeakSet()
_position: int | None = None


def install() -> None:
    """Replace the benchmark of Triton's autotuner, which needs a driver.

    Configurations are pruned, heuristics and hooks run as they do on a device.
    """
    import_module("triton.runtime.autotuner").Autotuner._bench = _bench


def choose(position: int | None) -> None:
    """Have every autotuner take the configuration at a position, modulo their number.

    None stands for the one with the largest tiles, which has the fewest programs to
    interpret. One that is pruned away is replaced by the first that is left.
    """
    global _position  # noqa: PLW0603 -- one choice for all kernels of the process
    _position = position
    for autotuner in _SEEN:
        autotuner.cache.clear()


def _bench(
    autotuner: Any, *_args: Any, config: Any, **_keywords: Any
) -> tuple[float, ...]:
    """Return a time: the less, the sooner a configuration is chosen."""
    _SEEN.add(autotuner)
    if _position is None:
        return (1.0 / _size(config),) * 3
    chosen = autotuner.configs[_position % len(autotuner.configs)]
    return (0.0 if config == chosen else 1.0,) * 3


def _size(config: Any) -> int:
    """Return the product of the sizes in a configuration."""
    sizes = (x for x in config.kwargs.values() if type(x) is int and x > 0)
    return math.prod(sizes)

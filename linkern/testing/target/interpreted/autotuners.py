"""Autotuned kernels without timing: one configuration, the largest or a chosen one."""

import math
from importlib import import_module
from typing import Any
from weakref import WeakSet

__all__ = ["begin", "install", "taken", "variants"]

_SEEN: "WeakSet[Any]" = WeakSet()
# The chosen position, and the kernel that it is for; all kernels if it is empty.
_choice: tuple[int | None, str] = (None, "")
# The configuration of each autotuned kernel of a call, and how many differ.
_taken: dict[str, tuple[str, int]] = {}


def install() -> None:
    """Replace the benchmark of Triton's autotuner, which needs a driver.

    Configurations are pruned, heuristics and hooks run as they do on a device. A key
    that names no argument, which Triton refuses from 3.9 on, is left out: nothing is
    timed, so it decides nothing, and packages from before that version can be judged.
    """
    autotuner = import_module("triton.runtime.autotuner").Autotuner
    run, initialise = autotuner.run, autotuner.__init__

    def initialised(
        self: Any,
        fn: Any,
        names: Any,
        configs: Any,
        key: Any,
        *rest: Any,
        **others: Any,
    ) -> None:
        known = [name for name in key if name in names]
        initialise(self, fn, names, configs, known, *rest, **others)

    def recorded(self: Any, *args: Any, **keywords: Any) -> Any:
        result = run(self, *args, **keywords)
        count = len(_different(self.configs))
        if count > 1:
            _taken[_name(self)] = _text(self.best_config), count
        return result

    autotuner.__init__, autotuner.run = initialised, recorded
    autotuner._bench = _bench


def begin(position: int | None, kernel: str = "") -> None:
    """Have autotuners take the configuration at a position, modulo their number.

    Parameters
    ----------
    position : int or None
        Counted among the configurations that differ for the interpreter. None stands
        for the one with the largest tiles, which has the fewest programs to interpret.
        One that is pruned away is replaced by the first that is left.
    kernel : str
        The only kernel that takes it; empty for all.
    """
    global _choice  # noqa: PLW0603 -- one choice for all kernels of the process
    _taken.clear()
    if _choice != (position, kernel):
        _choice = position, kernel
        for autotuner in _SEEN:
            autotuner.cache.clear()


def taken() -> tuple[str, ...]:
    """Return the autotuned kernels since `begin`, each with its configuration."""
    return tuple(f"{name} ({text})" for name, (text, _) in sorted(_taken.items()))


def variants() -> int:
    """Return the most configurations that one of these kernels has."""
    return max((count for _, count in _taken.values()), default=1)


def _bench(
    autotuner: Any, *_args: Any, config: Any, **_keywords: Any
) -> tuple[float, ...]:
    """Return a time: the less, the sooner a configuration is chosen."""
    _SEEN.add(autotuner)
    position, kernel = _choice
    if position is None or kernel not in ("", _name(autotuner)):
        return (1.0 / _size(config),) * 3
    different = _different(autotuner.configs)
    chosen = different[position % len(different)]
    return (float(config.kwargs != chosen.kwargs),) * 3


def _different(configs: list[Any]) -> list[Any]:
    """Return the configurations that differ for the interpreter.

    Warps and stages are nothing to it.
    """
    different: list[Any] = []
    for config in configs:
        if all(config.kwargs != other.kwargs for other in different):
            different.append(config)
    return different


def _name(autotuner: Any) -> str:
    return str(autotuner.base_fn.__name__)


def _text(config: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.kwargs.items())


def _size(config: Any) -> int:
    """Return the product of the sizes in a configuration."""
    sizes = (x for x in config.kwargs.values() if type(x) is int and x > 0)
    return math.prod(sizes)

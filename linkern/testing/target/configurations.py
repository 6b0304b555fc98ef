"""Configurations of autotuned Triton kernels: the one that each takes, or shall."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["begin", "install", "refused", "taken", "variants", "watch"]

_AUTOTUNER = "triton.runtime.autotuner"
# What a configuration raises that a device cannot hold, or that cannot be compiled for
# it. Some versions of Triton lack some of them.
_REFUSALS = (
    ("triton.runtime.errors", "OutOfResources"),
    ("triton.runtime.errors", "PTXASError"),
    ("triton.compiler.errors", "CompileTimeAssertionFailure"),
)

_installed = False
# The chosen position, and the kernel that it is for; all kernels if it is empty.
_choice: tuple[int | None, str] = (None, "")
# The configuration of each autotuned kernel of a call, and how many differ.
_taken: dict[str, tuple[str, int]] = {}
# The configurations of a call that were chosen, and that the device cannot hold.
_refused: list[str] = []


def install(*, compiled: bool) -> None:
    """Have autotuned kernels take the configuration that is chosen, and record it.

    Parameters
    ----------
    compiled : bool
        True if kernels are compiled, so that the number of warps and the like matter.
        They are nothing to an interpreter.
    """
    global _installed  # noqa: PLW0603 -- one class of autotuners in the process
    if _installed:
        return
    _installed = True
    autotuner = import_module(_AUTOTUNER).Autotuner
    usual, refusals = autotuner.run, _refusals()

    def facts(config: Any) -> Mapping[str, Any]:
        known: Mapping[str, Any] = config.all_kwargs() if compiled else config.kwargs
        return known

    def run(self: Any, *args: Any, **keywords: Any) -> Any:
        different = _different(self.configs, facts)
        if len(different) == 1:
            return usual(self, *args, **keywords)
        name, count = str(self.base_fn.__name__), len(different)
        chosen = _chosen(self, name, different, args, keywords)
        if chosen is not None:
            configs, self.configs = self.configs, [chosen]
            text = _text(facts(chosen))
            try:
                result = usual(self, *args, **keywords)
            except refusals:
                _refused.append(f"{name} ({text})")
            else:
                _taken[name] = text, count
                return result
            finally:
                self.configs = configs
        result = usual(self, *args, **keywords)
        _taken[name] = _text(facts(self.best_config)), count
        return result

    autotuner.run = run


def watch() -> None:
    """Install it for compiled kernels, once the target has imported Triton."""
    if _AUTOTUNER in sys.modules:
        install(compiled=True)


def begin(position: int | None, kernel: str = "") -> None:
    """Begin a call, in which autotuned kernels take the configuration at a position.

    Parameters
    ----------
    position : int or None
        Counted among the configurations that differ, modulo their number. None leaves
        the choice to the autotuner, and so does a configuration that is pruned away or
        that the device cannot hold.
    kernel : str
        The only kernel that takes it; empty for all.
    """
    global _choice  # noqa: PLW0603 -- one choice for all kernels of the process
    _choice = position, kernel
    _taken.clear()
    _refused.clear()


def taken() -> tuple[str, ...]:
    """Return the autotuned kernels since `begin`, each with its configuration."""
    return tuple(f"{name} ({text})" for name, (text, _) in sorted(_taken.items()))


def refused() -> tuple[str, ...]:
    """Return the configurations since `begin` that the device cannot hold."""
    return tuple(dict.fromkeys(_refused))


def variants() -> int:
    """Return the most configurations that one of these kernels has."""
    return max((count for _, count in _taken.values()), default=1)


def _refusals() -> tuple[type[Exception], ...]:
    known = ((import_module(module), name) for module, name in _REFUSALS)
    return tuple(getattr(errors, name) for errors, name in known if name in dir(errors))


def _different(configs: Sequence[Any], facts: Any) -> list[Any]:
    """Return the configurations that differ."""
    different: list[Any] = []
    for config in configs:
        if all(facts(config) != facts(other) for other in different):
            different.append(config)
    return different


def _chosen(
    autotuner: Any,
    name: str,
    different: Sequence[Any],
    args: Sequence[Any],
    keywords: Mapping[str, Any],
) -> Any:
    """Return the configuration that a kernel is to take; None for the usual one."""
    position, kernel = _choice
    if position is None or kernel not in ("", name):
        return None
    chosen = different[position % len(different)]
    autotuner.nargs = dict(zip(autotuner.arg_names, args, strict=False))
    left = autotuner.prune_configs(keywords)
    return chosen if any(config is chosen for config in left) else None


def _text(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in facts.items())

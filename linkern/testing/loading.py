"""Finding a target by name, and checking that it can be called at all."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linkern.testing.errors import UsageError
from linkern.testing.operators import INPUT_NAMES

__all__ = ["Loaded", "load", "resolve"]


@dataclass(frozen=True)
class Loaded:
    """A target that can be called, and the switches it exposes."""

    function: Callable[..., Any]
    exposes: frozenset[str]


def resolve(target: str) -> Any:
    """Import the object that `target` names; `UsageError` if there is none."""
    place, colon, attribute = target.rpartition(":")
    if not colon or not place or not attribute:
        msg = (
            f'the target must be "package.module:attribute" or '
            f'"path/to/file.py:attribute", got "{target}".'
        )
        raise UsageError(msg)
    try:
        module = _module_from_path(place) if place.endswith(".py") else _import(place)
    except UsageError:
        raise
    except BaseException as error:
        lines = traceback.format_exception_only(error)
        msg = f'importing "{place}" failed: {lines[-1].strip()}'
        raise UsageError(msg) from None
    found = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            msg = f'"{place}" has no attribute "{attribute}".'
            raise UsageError(msg)
        found = getattr(found, name)
    return found


def _import(name: str) -> Any:
    # The console script does not put the working directory on the path; `python -m`
    # does, and a kernel author expects what works there to work here.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _module_from_path(place: str) -> Any:
    path = Path(place).resolve()
    if not path.is_file():
        msg = f"there is no file {place}."
        raise UsageError(msg)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def load(target: Any, name: str) -> Loaded:
    """Check that `target` can be called as ``f(query, key, value)``."""
    if not callable(target):
        msg = f'"{name}" must be callable, got {type(target).__name__}.'
        raise UsageError(msg)
    if inspect.isclass(target):
        msg = f'"{name}" is a class; name an instance, or a function that calls one.'
        raise UsageError(msg)
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # some compiled functions have none
        return Loaded(target, frozenset())
    try:
        signature.bind(*INPUT_NAMES)
    except TypeError as error:
        msg = (
            f'"{name}" must be callable as f(query, key, value), but its signature '
            f"{signature} does not allow it: {error}."
        )
        raise UsageError(msg) from None
    return Loaded(target, frozenset(signature.parameters))

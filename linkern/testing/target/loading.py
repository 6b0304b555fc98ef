"""Finding a target by name, and the function that gives its gradients."""

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from linkern.testing.errors import UsageError
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.gradients import Backwards, backwards_of
from linkern.testing.target.signatures import (
    FINAL_STATE_NAMES,
    MICRO_STEP_NAMES,
    PACKED_NAMES,
    POSITION_NAMES,
    STATE_NAMES,
    Interface,
    inputs_of,
    named_in,
    parameters_of,
    require_callable,
    state_of_step,
)

__all__ = ["Interface", "Loaded", "load", "resolve"]


@dataclass(frozen=True)
class Loaded:
    """A target that can be called.

    Parameters
    ----------
    function : callable
        The target itself.
    vjp : Backwards or None
        The function that it declares for its gradients.
    interface : Interface
        How it wants to be called.
    """

    function: Callable[..., Any]
    vjp: Backwards | None
    interface: Interface


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
            close = difflib.get_close_matches(name, dir(found), n=1)
            hint = f'; did you mean "{close[0]}"?' if close else "."
            msg = f'"{place}" has no attribute "{attribute}"{hint}'
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
    return _executed(path, path.stat().st_mtime_ns)


@cache
def _executed(path: Path, changed: int) -> Any:
    """Execute a file, once for all that is in it, and again when it has changed."""
    del changed
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def load(
    target: Any,
    name: str,
    vjp: str | None = None,
    interface: str = "sequence",
    options: Collection[str] = (),
    op: str = "linear_attention",
) -> Loaded:
    """Check that `target` can be called, and recognise its parameters by name.

    Parameters
    ----------
    target : object
        What `resolve` found.
    name : str
        What it is called.
    vjp : str, optional
        Declared name of the function that gives its gradients.
    interface : {"sequence", "step"}
        Whether it takes all tokens of a call or one.
    options : collection of str
        Keywords that every call will have.
    op : str
        Operator that it claims to be.
    """
    if not callable(target):
        msg = f'"{name}" must be callable, got {type(target).__name__}.'
        raise UsageError(msg)
    if inspect.isclass(target):
        msg = f'"{name}" is a class; name an instance, or a function that calls one.'
        raise UsageError(msg)
    parameters = parameters_of(target)
    operator = OPERATORS[op]
    inputs = inputs_of(parameters, name, operator)
    function = _vjp_of(target, name, vjp)
    gradients = function and backwards_of(function, name, operator, inputs)
    state = named_in(STATE_NAMES, parameters)
    if interface == "step" and state is None:
        state = state_of_step(parameters, inputs, name, operator)
    understood = Interface(
        frozenset(parameters),
        frozenset(n for n, p in parameters.items() if p.default is p.empty),
        takes_state=state is not None,
        differentiable=gradients is not None,
        vjp_takes_state=gradients is not None and gradients.takes_state,
        inputs=inputs,
        state=state,
        final_state=named_in(FINAL_STATE_NAMES, parameters),
        scale="scale" if "scale" in parameters else None,
        cu_seqlens=named_in(PACKED_NAMES, parameters),
        position=named_in(POSITION_NAMES, parameters),
        micro_steps=named_in(MICRO_STEP_NAMES, parameters),
    )
    require_callable(target, name, understood, options, operator)
    return Loaded(target, gradients, understood)


def _vjp_of(target: Any, name: str, declared: str | None) -> Any:
    if declared is None:
        found = getattr(target, "vjp", None)
        return found if callable(found) else None
    place, _, attribute = name.rpartition(":")
    owner, _, _ = attribute.rpartition(".")
    if ":" in declared:
        found = resolve(declared)
    elif hasattr(target, declared):
        found = getattr(target, declared)
    elif owner and "<locals>" not in owner:
        found = resolve(f"{place}:{owner}.{declared}")
    else:
        found = resolve(f"{place}:{declared}")
    if not callable(found):
        msg = f'`vjp` must name a function, got "{declared}" for "{name}".'
        raise UsageError(msg)
    return found

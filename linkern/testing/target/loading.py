"""Find a target and its gradient function by name, and read their signatures."""

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
from linkern.testing.spec.raw_gates import PARAMETRIC_FORMS, gate_names
from linkern.testing.target.gradients import GradientFunction, gradient_function
from linkern.testing.target.signatures import (
    CONTEXT_NAMES,
    FINAL_STATE_NAMES,
    GROUP_NAMES,
    MICRO_STEP_NAMES,
    OUTPUT_NAMES,
    OUTPUT_STATE_NAMES,
    PACKED_NAMES,
    POSITION_NAMES,
    Interface,
    gates_of,
    inputs_of,
    named_in,
    parameters_of,
    require_callable,
    state_of_step,
    states_in,
    switches_of,
)

__all__ = ["Interface", "Loaded", "load", "reloaded", "resolve"]


@dataclass(frozen=True)
class Loaded:
    """A target that can be called.

    Parameters
    ----------
    function : callable
        The target itself.
    vjp : GradientFunction or None
        Its declared gradient function.
    interface : Interface
        Its parameters, and how it is called.
    """

    function: Callable[..., Any]
    vjp: GradientFunction | None
    interface: Interface


def resolve(target: str) -> Any:
    """Import the object called `target`; raise `UsageError` if there is none."""
    module_name, colon, attribute = target.rpartition(":")
    if not colon or not module_name or not attribute:
        msg = (
            f'the target must be "package.module:attribute" or '
            f'"path/to/file.py:attribute", got "{target}".'
        )
        raise UsageError(msg)
    try:
        module = (
            _module_from_path(module_name)
            if module_name.endswith(".py")
            else _import(module_name)
        )
    except UsageError:
        raise
    except BaseException as error:
        said = traceback.format_exception_only(error)[-1].strip()
        if isinstance(error, SyntaxError):  # with the line of the file
            said = f"{type(error).__name__}: {error}"
        msg = f'importing "{module_name}" failed: {said}'
        raise UsageError(msg) from None
    target_object = module
    for name in attribute.split("."):
        if not hasattr(target_object, name):
            close = difflib.get_close_matches(name, dir(target_object), n=1)
            hint = f'; did you mean "{close[0]}"?' if close else "."
            msg = f'"{module_name}" has no attribute "{attribute}"{hint}'
            raise UsageError(msg)
        target_object = getattr(target_object, name)
    return target_object


def reloaded(target: str) -> Any:
    """Return the object called `target` from its module, which is executed again."""
    name, _, _ = target.rpartition(":")
    if name.endswith(".py"):
        _executed.cache_clear()
    else:
        importlib.reload(_import(name))
    return resolve(target)


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
    decay_form: str = "log",
    gate_parameters: str = "both",
    *,
    takes_state: bool = True,
    groups: tuple[str, ...] = (),
) -> Loaded:
    """Return a target with the meaning of its parameters; refuse a wrong signature.

    Parameters
    ----------
    target : object
        Result of `resolve`.
    name : str
        Its name in messages.
    vjp : str, optional
        Declared name of its gradient function.
    interface : {"sequence", "step"}
        All tokens in one call, or one token.
    options : collection of str
        Keywords that every call will have.
    op : str
        Operator that it claims to be.
    decay_form : str
        As it is declared.
    gate_parameters : str
        Which of `A_log` and `dt_bias` it must take with raw gates.
    takes_state : bool
        False if states are not passed to it, whatever its parameters.
    groups : tuple of str
        Names of a parameter for the group of all ranks, of a target that runs on
        several.
    """
    if not callable(target):
        msg = f'"{name}" must be callable, got {type(target).__name__}.'
        raise UsageError(msg)
    if inspect.isclass(target):
        msg = f'"{name}" is a class; name an instance, or a function that calls one.'
        raise UsageError(msg)
    if inspect.iscoroutinefunction(inspect.unwrap(target)):
        msg = (
            f'"{name}" is an async function; name one that returns its output, such as '
            "one that calls it with `asyncio.run`."
        )
        raise UsageError(msg)
    parameters = parameters_of(target)
    operator = OPERATORS[op]
    inputs = inputs_of(parameters, name, operator)
    function = _vjp_of(target, name, vjp)
    gradients = function and gradient_function(function, name, operator, inputs)
    state = states_in(parameters) if takes_state else ()
    scale = "scale" if "scale" in parameters else None
    if interface == "step" and not state:
        state = (state_of_step(parameters, inputs, name, operator),)
    packed = named_in(PACKED_NAMES, parameters)
    needed = {n: p for n, p in parameters.items() if p.default is p.empty}
    output = named_in(OUTPUT_NAMES, needed)
    signature = Interface(
        frozenset(parameters),
        frozenset(needed),
        takes_state=bool(state),
        differentiable=gradients is not None,
        vjp_takes_state=gradients is not None and gradients.takes_state,
        vjp_takes_packed=gradients is not None and gradients.takes(packed),
        vjp_takes_scale=gradients is None or gradients.takes(scale),
        inputs=inputs,
        state=state,
        final_state=named_in(FINAL_STATE_NAMES, parameters) if takes_state else None,
        scale=scale,
        cu_seqlens=packed,
        position=named_in(POSITION_NAMES, parameters),
        micro_steps=named_in(MICRO_STEP_NAMES, parameters),
        output=output,
        output_state=output and named_in(OUTPUT_STATE_NAMES, parameters),
        gates=gates_of(parameters),
        switches=switches_of(parameters),
        group=named_in(groups, parameters),
        context=named_in(CONTEXT_NAMES, parameters) if groups == GROUP_NAMES else None,
    )
    require_callable(target, name, signature, options, operator)
    gates = gate_names(gate_parameters)
    if decay_form in PARAMETRIC_FORMS and not {*gates} <= {*signature.gates}:
        plural = "s" if len(gates) > 1 else ""
        msg = (
            f'"{name}" must have parameter{plural} {" and ".join(gates)} for '
            f"`decay_form={decay_form}`: its parameters are ({', '.join(parameters)})."
        )
        raise UsageError(msg)
    return Loaded(target, gradients, signature)


def _vjp_of(target: Any, name: str, declared: str | None) -> Any:
    if declared is None:
        function = getattr(target, "vjp", None)
        return function if callable(function) else None
    place, _, attribute = name.rpartition(":")
    owner, _, _ = attribute.rpartition(".")
    if ":" in declared:
        function = resolve(declared)
    elif hasattr(target, declared):
        function = getattr(target, declared)
    elif owner and "<locals>" not in owner:
        function = resolve(f"{place}:{owner}.{declared}")
    else:
        function = resolve(f"{place}:{declared}")
    if not callable(function):
        msg = f'`vjp` must name a function, got "{declared}" for "{name}".'
        raise UsageError(msg)
    return function

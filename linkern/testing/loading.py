"""Finding a target by name, and recognising how it wants to be called.

What a parameter means is read from its name, never guessed from its position:
``(k, q, v)`` is as good as ``(query, key, value)``, and a parameter called
``initial_state`` takes a state.
"""

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from linkern.testing.contract import nearest
from linkern.testing.errors import UsageError
from linkern.testing.operators import OPERATORS, Input, Operator

__all__ = ["Interface", "Loaded", "load", "resolve"]

# How the parameters of kernels in the field are called.
STATE_NAMES = ("initial_state", "state", "init_state", "past_state", "h0")
FINAL_STATE_NAMES = ("output_final_state", "return_final_state", "return_state")
STATE_COTANGENT_NAMES = ("state_cotangent", "dht")
PACKED_NAMES = ("cu_seqlens", "cu_seq_lens")
POSITION_NAMES = ("position", "start_position")
MICRO_STEP_NAMES = ("num_householder", "micro_steps")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Interface:
    """What can be asked of a target, as far as its signature tells.

    Parameters
    ----------
    keywords, needed : frozenset of str
        Names of its parameters, and of those that have no default.
    takes_state : bool
        Whether a state can be passed to it.
    differentiable : bool
        Whether it comes with gradients of its own (``target.vjp``, or the declared
        function); array libraries with automatic differentiation need none.
    vjp_takes_state : bool
        Whether those accept a state and its cotangent.
    inputs : tuple of str
        Names of its inputs in the order of the operator; empty if they are passed by
        position.
    state, final_state, scale : str or None
        Its parameters for a state, for asking it to return one, and for the scale.
    cu_seqlens, position, micro_steps : str or None
        Its parameters for where packed sequences begin, for the position of the first
        token, and for how many keys there are for each query.
    """

    keywords: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    takes_state: bool = False
    differentiable: bool = False
    vjp_takes_state: bool = False
    inputs: tuple[str, ...] = ()
    state: str | None = None
    final_state: str | None = None
    scale: str | None = None
    cu_seqlens: str | None = None
    position: str | None = None
    micro_steps: str | None = None


@dataclass(frozen=True)
class Loaded:
    """A target that can be called.

    Parameters
    ----------
    function : callable
        The target itself.
    vjp : callable or None
        ``vjp(query, key, value, output_cotangent)``, for libraries without automatic
        differentiation.
    interface : Interface
        How it wants to be called.
    """

    function: Callable[..., Any]
    vjp: Callable[..., Any] | None
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
    gradients = _vjp_of(target, name, vjp)
    parameters = _parameters(target)
    of_vjp = _parameters(gradients) if gradients is not None else {}
    operator = OPERATORS[op]
    inputs = _inputs(parameters, name, operator)
    state = _first(STATE_NAMES, parameters)
    if interface == "step" and state is None:
        state = _state_of_step(parameters, inputs, name, operator)
    understood = Interface(
        frozenset(parameters),
        frozenset(n for n, p in parameters.items() if p.default is p.empty),
        takes_state=state is not None,
        differentiable=gradients is not None,
        vjp_takes_state=_first(STATE_NAMES, of_vjp) is not None
        and _first(STATE_COTANGENT_NAMES, of_vjp) is not None,
        inputs=inputs,
        state=state,
        final_state=_first(FINAL_STATE_NAMES, parameters),
        scale="scale" if "scale" in parameters else None,
        cu_seqlens=_first(PACKED_NAMES, parameters),
        position=_first(POSITION_NAMES, parameters),
        micro_steps=_first(MICRO_STEP_NAMES, parameters),
    )
    _require_callable(target, name, understood, options, operator)
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


def _signature(function: Any) -> inspect.Signature | None:
    # A module of PyTorch accepts anything when called; what it means is in `forward`,
    # and that of a compiled one in the module that was compiled.
    forward = getattr(getattr(function, "_orig_mod", function), "forward", None)
    try:
        return inspect.signature(forward if callable(forward) else function)
    except (TypeError, ValueError):  # some compiled functions have none
        return None


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    signature = _signature(function)
    if signature is None:
        return {}
    # What a partial has bound by name is its author's choice, and not varied.
    bound = function.keywords if isinstance(function, partial) else {}
    return {n: p for n, p in signature.parameters.items() if n not in bound}


def _first(
    names: tuple[str, ...], parameters: dict[str, inspect.Parameter]
) -> str | None:
    return next((name for name in names if name in parameters), None)


def _inputs(
    parameters: dict[str, inspect.Parameter], name: str, operator: Operator
) -> tuple[str, ...]:
    """Return the names of the inputs, if they can be passed by name."""
    found = _recognised(parameters, operator)
    if not found:
        return ()
    missing = [one for one in operator.names if one not in found]
    if missing and operator.family is None:
        return ()
    if missing:
        msg = (
            f'"{name}" has no parameter for the {missing[0]} of {operator.name}: its '
            f"parameters are ({', '.join(parameters)}); call it "
            f"{' or '.join((missing[0], *operator.input(missing[0]).aliases))}."
        )
        raise UsageError(msg)
    names = tuple(found[one] for one in operator.names)
    kinds = [parameters[n].kind for n in names]
    if inspect.Parameter.POSITIONAL_ONLY not in kinds:
        return names
    if [n for n in parameters if n in names] != list(names):
        msg = (
            f'"{name}" takes {", ".join(names)} by position only, in another '
            "order; let them be passed by name."
        )
        raise UsageError(msg)
    return ()


def _recognised(
    parameters: dict[str, inspect.Parameter], operator: Operator
) -> dict[str, str]:
    """Return which parameter is which input: its own name first, then the field's."""
    named = {n for n, p in parameters.items() if p.kind not in _VARIADIC}
    found = {one: one for one in operator.names if one in named}
    for one in operator.inputs:
        if one.name in found:
            continue
        free = named - {*found.values()}
        alias = next((n for n in _aliases(one, named) if n in free), None)
        if alias is not None:
            found[one.name] = alias
    return found


def _aliases(one: Input, named: set[str]) -> tuple[str, ...]:
    return () if one.unless in named else one.aliases


def _state_of_step(
    parameters: dict[str, inspect.Parameter],
    inputs: tuple[str, ...],
    name: str,
    operator: Operator,
) -> str:
    """Return the parameter that is no input, whatever it is called."""
    rest = [n for n in parameters if n not in inputs]
    at = 0 if inputs else len(operator.names)
    if len(rest) <= at:
        msg = (
            f'"{name}" must take a state to be a step, but its parameters are '
            f"({', '.join(parameters)}); call one of them {', '.join(STATE_NAMES)}."
        )
        raise UsageError(msg)
    return rest[at]


def _require_callable(
    target: Any,
    name: str,
    interface: Interface,
    options: Collection[str],
    operator: Operator,
) -> None:
    """Require that the first call can be made as it will be made."""
    signature = _signature(target)
    if signature is None:
        return
    given = {*interface.inputs, *options}
    known_too = (interface.cu_seqlens, interface.position, interface.micro_steps)
    for known in (
        *(interface.state, interface.final_state, interface.scale),
        *known_too,
    ):
        if known is not None:
            given.add(known)
    positional = () if interface.inputs else operator.names
    kinds = [p.kind for p in signature.parameters.values()]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for option in (n for n in options if n not in signature.parameters):
            what = f'keyword of "{name}"'
            raise UsageError(nearest(what, option, interface.keywords))
    try:
        signature.bind(*positional, **dict.fromkeys(given))
    except TypeError as error:
        msg = (
            f'"{name}" must be callable as f({", ".join(operator.names)}), but its '
            f"signature {signature} does not allow it: {error}."
        )
        raise UsageError(msg) from None

"""Meaning of the parameters of a target, by name and never by position.

``(k, q, v)`` is as good as ``(query, key, value)``, and a parameter called
``initial_state`` takes a state.
"""

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from linkern.testing.errors import UsageError
from linkern.testing.spec.declarations import nearest
from linkern.testing.spec.dialect import ARGUMENTS, switch_names
from linkern.testing.spec.operators import OPERATORS, Input, Operator
from linkern.testing.spec.raw_gates import GATE_NAMES

__all__ = [
    "CONTEXT_NAMES",
    "COTANGENT_NAMES",
    "FINAL_STATE_NAMES",
    "GROUP_NAMES",
    "GROUP_NAMES_OF",
    "MICRO_STEP_NAMES",
    "OUTPUT_NAMES",
    "OUTPUT_STATE_NAMES",
    "PACKED_NAMES",
    "POSITION_NAMES",
    "STATE_COTANGENT_NAMES",
    "STATE_NAMES",
    "STATE_PARTS",
    "Interface",
    "gates_of",
    "inputs_of",
    "named_in",
    "parameters_of",
    "recognised",
    "require_callable",
    "state_of_step",
    "states_in",
    "switches_of",
    "takes_anything",
]

# Names of these parameters in published kernels.
STATE_NAMES = ("initial_state", "state", "init_state", "past_state", "h0")
# Of kernels that take its parts one by one, in the order in which they return them.
STATE_PARTS = (
    ("c_initial", "n_initial", "m_initial"),
    ("initial_C", "initial_n", "initial_m"),
    ("h_kk_init", "h_kv_init"),
)
FINAL_STATE_NAMES = (
    "output_final_state",
    "return_final_state",
    "return_state",
    "return_last_states",
    "return_last_state",
)
COTANGENT_NAMES = ("output_cotangent", "grad_output", "do")
STATE_COTANGENT_NAMES = ("state_cotangent", "dht")
PACKED_NAMES = ("cu_seqlens", "cu_seq_lens")
POSITION_NAMES = ("position", "start_position")
MICRO_STEP_NAMES = ("num_householder", "micro_steps")
GROUP_NAMES = ("group", "process_group", "cp_group")
CONTEXT_NAMES = ("cp_context",)
AXIS_NAMES = ("axis_name", "mesh_axis", "cp_axis", "seq_axis", "axis")
# Names of what all ranks are, by array library; of that of fla-core beside it.
GROUP_NAMES_OF = {"torch": GROUP_NAMES, "jax": AXIS_NAMES}
# Arrays that kernels write: their output, if it must be passed, and their last memory.
OUTPUT_NAMES = ("out", "output", "o")
OUTPUT_STATE_NAMES = ("final_state", "output_state")
# Raw gates and logits of rates, beside those.
_RAW_NAMES = {"log_decay": "a", "beta": "b"}
# Switches that published kernels take without a parameter, as any other keyword.
_UNNAMED = {"use_gate_in_kernel": False, "lower_bound": None}
_PLAIN = (bool, int, float, str)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Interface:
    """Abilities of a target, as its signature shows them.

    Parameters
    ----------
    keywords, needed : frozenset of str
        Names of its parameters, and of those that have no default.
    takes_state : bool
        True if a state can be passed to it.
    differentiable : bool
        True if it comes with a gradient function (``target.vjp``, or the declared
        one); array libraries with automatic differentiation need none.
    vjp_takes_state, vjp_takes_packed : bool
        True if that function accepts a state and its cotangent; if it accepts the
        offsets of packed sequences.
    vjp_takes_scale : bool
        True if there is no such function, or it takes the scale of the target.
    inputs : tuple of str
        Names of its inputs in the order of the operator; empty if they are passed by
        position.
    state : tuple of str
        Its parameter for a state, or one for each part of it; empty if it has none.
    final_state, scale : str or None
        Its parameters for asking it to return a state, and for the scale.
    cu_seqlens, position, micro_steps : str or None
        Its parameters for where packed sequences begin, for the position of the first
        token, and for how many keys there are for each query.
    output, output_state : str or None
        Its parameters for arrays that it writes, if it cannot be called without.
    gates : tuple of str
        Its parameters for `A_log` and `dt_bias`, of kernels that take raw gates.
    switches : mapping from str to value
        Its parameters that say which operator it is, with their defaults.
    group : str or None
        Its parameter for the process group, or for the name of the axis of the mesh, of
        targets over several ranks.
    context : str or None
        Its parameter for the context that fla-core makes of the group and the offsets.
    """

    keywords: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    takes_state: bool = False
    differentiable: bool = False
    vjp_takes_state: bool = False
    vjp_takes_packed: bool = False
    vjp_takes_scale: bool = True
    inputs: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    final_state: str | None = None
    scale: str | None = None
    cu_seqlens: str | None = None
    position: str | None = None
    micro_steps: str | None = None
    output: str | None = None
    output_state: str | None = None
    gates: tuple[str, ...] = ()
    switches: Mapping[str, Any] = field(default_factory=dict, hash=False)
    group: str | None = None
    context: str | None = None


def signature_of(function: Any) -> inspect.Signature | None:
    """Return the signature of a target, if it has one."""
    # A module of PyTorch accepts anything when called; what it means is in `forward`,
    # and that of a compiled one in the module that was compiled.
    forward = getattr(getattr(function, "_orig_mod", function), "forward", None)
    try:
        return inspect.signature(forward if callable(forward) else function)
    except (TypeError, ValueError):  # some compiled functions have none
        return None


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function that are not bound yet, by name."""
    signature = signature_of(function)
    if signature is None:
        return {}
    # What a partial has bound by name is its author's choice, and not varied.
    bound = function.keywords if isinstance(function, partial) else {}
    return {n: p for n, p in signature.parameters.items() if n not in bound}


def named_in(
    names: tuple[str, ...], parameters: dict[str, inspect.Parameter]
) -> str | None:
    """Return the first of `names` that is a parameter, if any is."""
    return next((name for name in names if name in parameters), None)


def states_in(parameters: dict[str, inspect.Parameter]) -> tuple[str, ...]:
    """Return the parameter for a state, or those for all of its parts.

    Examples
    --------
    >>> def kernel(q, k, v, i, f, c_initial=None, n_initial=None, m_initial=None): ...
    >>> states_in(parameters_of(kernel))
    ('c_initial', 'n_initial', 'm_initial')
    """
    whole = named_in(STATE_NAMES, parameters)
    if whole is not None:
        return (whole,)
    return next((x for x in STATE_PARTS if {*x} <= {*parameters}), ())


def takes_anything(parameters: dict[str, inspect.Parameter]) -> bool:
    """Return True if a function takes keywords without a parameter."""
    kinds = [p.kind for p in parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def inputs_of(
    parameters: dict[str, inspect.Parameter], name: str, operator: Operator
) -> tuple[str, ...]:
    """Return the names of the inputs, if they can be passed by name."""
    parameter_of = recognised(parameters, operator)
    if not parameter_of:
        return ()
    missing = [one for one in operator.names if one not in parameter_of]
    if missing and operator.feature_map:
        return ()
    if missing:
        msg = (
            f'"{name}" has no parameter for the {missing[0]} of {operator.name}: its '
            f"parameters are ({', '.join(parameters)}); call it "
            f"{' or '.join((missing[0], *operator.input(missing[0]).aliases))}."
        )
        fitting = _fitting(parameters)
        if fitting:
            others = " or ".join(f"`--op {one}`" for one in fitting)
            msg += f" They are the inputs of {others}."
        raise UsageError(msg)
    names = tuple(parameter_of[one] for one in operator.names)
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


def _fitting(parameters: dict[str, inspect.Parameter]) -> list[str]:
    """Return the operators of which a function takes each input, and needs no more."""
    needed = {
        n
        for n, p in parameters.items()
        if p.default is p.empty and p.kind not in _VARIADIC
    }
    fitting = []
    for one in OPERATORS.values():
        parameter_of = recognised(parameters, one)
        if needed == {*parameter_of.values()} and {*parameter_of} == {*one.names}:
            fitting.append(one.name)
    return fitting


def recognised(
    parameters: dict[str, inspect.Parameter], operator: Operator
) -> dict[str, str]:
    """Return the parameter of each input: its own name first, then an alias."""
    named = {n for n, p in parameters.items() if p.kind not in _VARIADIC}
    parameter_of = {
        declared: declared for declared in operator.names if declared in named
    }
    if {"a", *GATE_NAMES} <= named:
        raw = {one: n for one, n in _RAW_NAMES.items() if n in named}
        parameter_of |= {one: n for one, n in raw.items() if one in operator.names}
    for declared in operator.inputs:
        if declared.name in parameter_of:
            continue
        free = named - {*parameter_of.values()}
        alias = next((n for n in _aliases(declared, named) if n in free), None)
        if alias is not None:
            parameter_of[declared.name] = alias
    return parameter_of


def _aliases(one: Input, named: set[str]) -> tuple[str, ...]:
    return () if one.unless in named else one.aliases


def state_of_step(
    parameters: dict[str, inspect.Parameter],
    inputs: tuple[str, ...],
    name: str,
    operator: Operator,
) -> str:
    """Return the first parameter that is no input, under any name."""
    rest = [n for n in parameters if n not in inputs]
    at = 0 if inputs else len(operator.names)
    if len(rest) <= at:
        msg = (
            f'"{name}" must take a state to be a step, but its parameters are '
            f"({', '.join(parameters)}); call one of them {', '.join(STATE_NAMES)}."
        )
        raise UsageError(msg)
    return rest[at]


def switches_of(parameters: dict[str, inspect.Parameter]) -> dict[str, Any]:
    """Return the switches among parameters, with their defaults; None for no default.

    Examples
    --------
    >>> def kernel(q, k, v, use_qk_l2norm_in_kernel=True): ...
    >>> switches_of(parameters_of(kernel))
    {'use_qk_l2norm_in_kernel': True}
    """
    defaults = {n: parameters[n].default for n in switch_names() if n in parameters}
    if takes_anything(parameters):
        defaults = _UNNAMED | defaults
    return {n: x if isinstance(x, _PLAIN) else None for n, x in defaults.items()}


def gates_of(parameters: dict[str, inspect.Parameter]) -> tuple[str, ...]:
    """Return the parameters for `A_log` and `dt_bias` that a function takes."""
    anything = takes_anything(parameters)
    return tuple(name for name in GATE_NAMES if anything or name in parameters)


def require_callable(
    target: Any,
    name: str,
    interface: Interface,
    options: Collection[str],
    operator: Operator,
) -> None:
    """Refuse a target whose signature does not allow its calls."""
    signature = signature_of(target)
    if signature is None:
        return
    keywords = {*interface.inputs, *options}
    # Those are passed once it is known what is declared.
    later = {*ARGUMENTS, *interface.gates, *interface.switches}
    keywords |= later & interface.needed
    others = (
        interface.cu_seqlens,
        interface.position,
        interface.micro_steps,
        interface.output,
        interface.group,
        interface.context,
    )
    for known in (
        *(*interface.state, interface.final_state, interface.scale),
        *others,
    ):
        if known is not None:
            keywords.add(known)
    positional = () if interface.inputs else operator.names
    kinds = [p.kind for p in signature.parameters.values()]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for option in (n for n in options if n not in signature.parameters):
            what = f'keyword of "{name}"'
            raise UsageError(nearest(what, option, interface.keywords))
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        msg = (
            f'"{name}" must be callable as f({", ".join(operator.names)}), but its '
            f"signature {signature} does not allow it: {error}."
        )
        raise UsageError(msg) from None

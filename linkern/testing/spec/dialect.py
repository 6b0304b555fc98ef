"""Switches of published kernels by name, and the declarations that they stand for.

A kernel with a parameter `use_qk_l2norm_in_kernel` that is true divides queries and
keys by their norms, so nobody has to declare it; and one of which `l2norm` is declared
is called with that parameter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from linkern.testing.errors import UsageError
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import as_text
from linkern.testing.spec.operators import Operator
from linkern.testing.spec.raw_gates import GATE_NAMES, PARAMETRIC_FORMS

__all__ = [
    "ARGUMENTS",
    "SWITCHES",
    "Settled",
    "Switch",
    "settled",
    "switch_names",
]


@dataclass(frozen=True)
class Switch:
    """One switch under its names, and its meaning where it has a value.

    Parameters
    ----------
    names : tuple of str
        Names of the parameter in published kernels.
    value : bool
        The value under which the declaration holds.
    key, declared : str
        The declaration.
    """

    names: tuple[str, ...]
    value: bool
    key: str
    declared: Any


SWITCHES = (
    Switch(
        ("use_qk_l2norm_in_kernel", "use_qk_l2norm", "qk_l2norm"), True, "l2norm", 1e-6
    ),
    Switch(("use_gate_in_kernel",), True, "decay_form", "softplus"),
    Switch(
        ("use_beta_sigmoid_in_kernel", "apply_beta_sigmoid"),
        True,
        "beta_form",
        "sigmoid",
    ),
    Switch(("state_v_first", "transpose_state_layout"), True, "state_layout", "vk"),
    Switch(("use_exp2",), True, "decay_log_base", "2"),
    Switch(("normalize", "use_norm"), False, "normalize", False),
    Switch(("head_first",), False, "layout", "bthd"),
)
_TWICE, _BOUND, _SAFE = "allow_neg_eigval", "lower_bound", "safe_gate"
# Divisors with a floor need no epsilon, though published kernels add one.
_EPSILON = "eps"
# Parameters without a default that say nothing of the operator.
ARGUMENTS: Mapping[str, Any] = {
    "softplus_beta": 1.0,
    "softplus_threshold": 20.0,
    "layer_idx": 0,
    "num_layers": 1,
    "initial_state_source": None,
    "initial_state_indices": None,
}
# Gates of kernels that promise no more: they lie between it and 0.
_SAFE_FLOOR = -5.0


@dataclass(frozen=True)
class Settled:
    """A contract and the options of each call, which say the same.

    Parameters
    ----------
    contract : Contract
        What is declared, and what the switches of a target say.
    options : mapping
        The keyword arguments, and the switches that the contract needs.
    notes : tuple of str
        What was recognised, one sentence each.
    """

    contract: Contract
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def switch_names() -> tuple[str, ...]:
    """Return the names of all parameters that are recognised as switches."""
    names = (name for switch in SWITCHES for name in switch.names)
    return (*names, _TWICE, _BOUND, _SAFE, _EPSILON)


def settled(
    contract: Contract,
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
    needed: frozenset[str],
    operator: Operator,
) -> Settled:
    """Return a contract and options that agree about the switches of a target.

    Parameters
    ----------
    contract : Contract
        The declarations; they come before what is recognised.
    options : mapping
        Keyword arguments of every call.
    defaults : mapping from str to value
        The switches among the parameters of the target, with their defaults.
    needed : frozenset of str
        Its parameters without a default.
    operator : Operator
        Operator that the target claims to be.

    Returns
    -------
    Settled
        The same with what was recognised by name.

    Examples
    --------
    >>> from linkern.testing.spec.operators import OPERATORS
    >>> switches = {"use_qk_l2norm_in_kernel": False, "use_gate_in_kernel": False}
    >>> told = {"use_qk_l2norm_in_kernel": True}
    >>> kda = OPERATORS["kda"]
    >>> settled(Contract(), told, switches, frozenset(), kda).contract.declared()
    {'l2norm': 1e-06}
    >>> raw = Contract(decay_form="softplus")
    >>> settled(raw, {}, switches, frozenset(), kda).options
    {'use_gate_in_kernel': True}
    """
    values = {**defaults, **options}
    read = _read(values, needed)
    chosen, notes = contract, list[str]()
    kept = contract.declared()
    for key, (value, evidence) in read.items():
        if key in kept or getattr(contract, key) == value:
            continue
        changed = _with(chosen, operator, **{key: value})
        if changed is not None:
            chosen = changed
            notes.append(f"{key}={as_text(value)}, recognised: {evidence}")
    passed = _passed(chosen, options, defaults)
    passed |= {n: x for n, x in ARGUMENTS.items() if n in needed and n not in options}
    notes += [f"{name}={value!r} is passed" for name, value in passed.items()]
    added = values.get(_EPSILON, 0) != 0 and _EPSILON not in options
    if operator.floored and added:
        passed[_EPSILON] = 0.0
        notes.append(f"{_EPSILON}=0.0 is passed: {operator.name} adds none")
    return Settled(chosen, {**options, **passed}, tuple(notes))


def _with(contract: Contract, operator: Operator, **declared: Any) -> Contract | None:
    """Return a contract that declares more, if that means something."""
    try:
        changed = replace(contract, **declared)
        changed.require_of(operator)
    except UsageError:
        return None
    return changed


def _read(
    values: Mapping[str, Any], needed: frozenset[str]
) -> dict[str, tuple[Any, str]]:
    """Return the declarations that switches stand for, with the evidence."""
    read: dict[str, tuple[Any, str]] = {}
    for switch in SWITCHES:
        for name in switch.names:
            if values.get(name) is switch.value:
                read[switch.key] = switch.declared, f"{name}={switch.value}"
    if {"A_log", "dt_bias"} <= needed and "decay_form" not in read:
        read["decay_form"] = "softplus", "it needs A_log and dt_bias"
        if {"a", "b"} <= needed:
            read["beta_form"] = "sigmoid", "it needs b beside A_log and dt_bias"
    if "beta_form" in read and values.get(_TWICE) is True:
        read["beta_form"] = "twice_sigmoid", f"{_TWICE}=True"
    bound = values.get(_BOUND)
    if bound is None and _BOUND in needed:
        bound = _SAFE_FLOOR
    floor = float(bound) if isinstance(bound, int | float) else None
    if floor is not None and floor < 0 and "decay_form" in read:
        # The floor first: the form needs it.
        del read["decay_form"]
        read["decay_floor"] = floor, f"{_BOUND}={bound}"
        read["decay_form"] = "sigmoid", f"{_BOUND}={bound}"
    elif values.get(_SAFE) is True:
        read["decay_floor"] = floor or _SAFE_FLOOR, f"{_SAFE}=True"
    for name, other in (GATE_NAMES, GATE_NAMES[::-1]):
        if "decay_form" in read and values.get(name, ...) is None:
            read["gate_parameters"] = other, f"{name}=None"
    return read


def _passed(
    contract: Contract, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the switches with which a target does what its contract says."""
    passed: dict[str, Any] = {}
    declared = contract.declared()
    for switch in SWITCHES:
        name = next((x for x in switch.names if x in defaults), None)
        if name is not None and switch.key in declared and _means(switch, declared):
            passed[name] = switch.value
    if contract.beta_form == "twice_sigmoid" and _TWICE in defaults:
        passed[_TWICE] = True
    if contract.decay_form == "sigmoid" and _BOUND in defaults:
        passed[_BOUND] = contract.decay_floor
        passed |= {_SAFE: True} if _SAFE in defaults else {}
    values = {**defaults, **options}
    return {n: x for n, x in passed.items() if n not in options and values[n] != x}


def _means(switch: Switch, declared: Mapping[str, Any]) -> bool:
    """Return True if a declaration needs the value of a switch."""
    value = declared[switch.key]
    if switch.key == "l2norm":
        return True
    if switch.key == "decay_form":
        return value in PARAMETRIC_FORMS
    if switch.key == "beta_form":
        return bool(value != "rate")
    return bool(value == switch.declared)

"""Call the function that gives the gradients of a target.

It is called by name, as the target is: with the inputs, the `output_cotangent`, and
what else it has parameters for. A function whose parameters do not tell what they are
gets the inputs in the order of the operator, then the cotangent, by position.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from linkern.testing.errors import UsageError
from linkern.testing.spec.operators import Operator
from linkern.testing.target.signatures import (
    COTANGENT_NAMES,
    STATE_COTANGENT_NAMES,
    STATE_NAMES,
    named_in,
    parameters_of,
    recognised,
    takes_anything,
)

__all__ = ["GradientFunction", "gradient_function"]

# Key of the gradient of the state in a dict of gradients.
STATE_GRADIENT = "initial_state"


@dataclass(frozen=True)
class GradientFunction:
    """A function that returns gradients, and the names of its parameters.

    Parameters
    ----------
    function : callable
        The function.
    names : tuple of str
        The inputs of the operator, in its order.
    inputs : mapping of str to str
        Its keyword for each of them; empty if they are passed by position.
    cotangent : str
        Its keyword for the cotangent of the output, unless that is passed by position.
    state, state_cotangent : str or None
        Its keywords for the initial state and for the cotangent of the final one.
    keywords : frozenset of str
        All keywords that it has.
    any_keyword : bool
        True if it takes other keywords as well.
    """

    function: Any
    names: tuple[str, ...]
    inputs: Mapping[str, str]
    cotangent: str
    state: str | None
    state_cotangent: str | None
    keywords: frozenset[str]
    any_keyword: bool

    @property
    def takes_state(self) -> bool:
        """True if gradients can go through a state."""
        return self.state is not None and self.state_cotangent is not None

    def takes(self, keyword: str | None) -> bool:
        """Return True if a keyword of the target is one of it, too."""
        return keyword is not None and (self.any_keyword or keyword in self.keywords)

    def __call__(
        self,
        inputs: Mapping[str, Any],
        cotangent: Any,
        options: Mapping[str, Any],
        states: tuple[Any, Any] | None = None,
    ) -> tuple[list[Any], Any]:
        """Return the gradients of the inputs, and the gradient of the state.

        Parameters
        ----------
        inputs : mapping of str to array
            Inputs by the names of the operator.
        cotangent : array
            Of the output.
        options : mapping
            Other arguments of the target; those that it takes are passed on.
        states : tuple, optional
            The initial state and the cotangent of the final one.
        """
        named = {n: x for n, x in options.items() if self.takes(n)}
        if states is not None and self.state and self.state_cotangent:
            named |= {self.state: states[0], self.state_cotangent: states[1]}
        if self.inputs:
            named |= {self.inputs[name]: x for name, x in inputs.items()}
            returned = self.function(**named, **{self.cotangent: cotangent})
        else:
            inputs_in_order = [inputs.get(name) for name in self.names]
            returned = self.function(*inputs_in_order, cotangent, **named)
        through = states is not None and states[0] is not None
        gradients = self._by_name(returned, through)
        return [gradients[name] for name in inputs], gradients.get(STATE_GRADIENT)

    def _by_name(self, returned: Any, with_state: bool) -> dict[str, Any]:
        """Return gradients by the names of the operator; raise if some are missing."""
        if isinstance(returned, Mapping):
            gradients = {}
            for name in self.names:
                key = self.inputs.get(name, name)
                gradients[name] = returned.get(key, returned.get(name))
            gradients[STATE_GRADIENT] = returned.get(
                self.state, returned.get(STATE_GRADIENT)
            )
            if with_state and gradients[STATE_GRADIENT] is None:
                msg = f"its `vjp` must return a gradient of the {STATE_GRADIENT}"
                raise TypeError(msg)
            return gradients
        needed = len(self.names) + with_state
        if not isinstance(returned, tuple | list) or len(returned) < needed:
            *first, last = self.names
            msg = f"its `vjp` must return the gradients of the {', the '.join(first)}"
            msg += f" and the {last}" if first else last
            msg += ", and that of the state" if with_state else ""
            raise TypeError(msg)
        order = [*self.inputs] or [*self.names]
        return dict(zip((*order, STATE_GRADIENT), returned, strict=False))


def gradient_function(
    function: Any, name: str, operator: Operator, target_inputs: tuple[str, ...]
) -> GradientFunction:
    """Match the parameters of a gradient function with the inputs of an operator.

    Parameters
    ----------
    function : callable
        The declared gradient function.
    name : str
        Name of the target.
    operator : Operator
        Operator that the target claims to be.
    target_inputs : tuple of str
        The target's own names for its inputs: keywords of a function that takes any.
    """
    parameters = parameters_of(function)
    parameter_of = recognised(parameters, operator)
    any_keyword = takes_anything(parameters)
    cotangent = named_in(COTANGENT_NAMES, parameters)
    if any_keyword:
        target_names = dict(
            zip(operator.names, target_inputs or operator.names, strict=True)
        )
        parameter_of = target_names | parameter_of
        cotangent = cotangent or COTANGENT_NAMES[0]
    missing = [one for one in operator.names if one not in parameter_of]
    if not operator.feature_map and parameter_of and missing:
        msg = (
            f'the `vjp` of "{name}" has no parameter for the {missing[0]} of '
            f"{operator.name}: its parameters are ({', '.join(parameters)})."
        )
        raise UsageError(msg)
    if not operator.feature_map and parameter_of and cotangent is None:
        msg = (
            f'the `vjp` of "{name}" has no parameter for the cotangent of the output; '
            f"call it {' or '.join(COTANGENT_NAMES)}."
        )
        raise UsageError(msg)
    by_name = not missing and cotangent is not None
    # A tuple of gradients has the order of the parameters.
    order = sorted(
        parameter_of,
        key=lambda one: [*parameters, parameter_of[one]].index(parameter_of[one]),
    )
    return GradientFunction(
        function,
        operator.names,
        {one: parameter_of[one] for one in order} if by_name else {},
        cotangent or "",
        named_in(STATE_NAMES, parameters),
        named_in(STATE_COTANGENT_NAMES, parameters),
        frozenset(parameters),
        any_keyword,
    )

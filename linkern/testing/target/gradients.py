"""Calling the function that gives the gradients of a target.

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

__all__ = ["Backwards", "backwards_of"]

# Under which the gradient of the state is found in a dict.
OF_STATE = "initial_state"


@dataclass(frozen=True)
class Backwards:
    """A function of gradients, and the names that it goes by.

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
    state, of_state : str or None
        Its keywords for the initial state and for the cotangent of the final one.
    keywords : frozenset of str
        All keywords that it has.
    anything : bool
        Whether it takes others as well.
    """

    function: Any
    names: tuple[str, ...]
    inputs: Mapping[str, str]
    cotangent: str
    state: str | None
    of_state: str | None
    keywords: frozenset[str]
    anything: bool

    @property
    def takes_state(self) -> bool:
        """Whether gradients can go through a state."""
        return self.state is not None and self.of_state is not None

    def __call__(
        self,
        inputs: Mapping[str, Any],
        cotangent: Any,
        options: Mapping[str, Any],
        states: tuple[Any, Any] | None = None,
    ) -> tuple[list[Any], Any]:
        """Return the gradients of the inputs that are given, and that of the state.

        Parameters
        ----------
        inputs : mapping of str to array
            Those that are given, by the names of the operator.
        cotangent : array
            Of the output.
        options : mapping
            What the target is told besides; it is passed on as far as it is taken.
        states : tuple, optional
            The initial state and the cotangent of the final one.
        """
        named = {
            n: x for n, x in options.items() if self.anything or n in self.keywords
        }
        if states is not None and self.state and self.of_state:
            named |= {self.state: states[0], self.of_state: states[1]}
        if self.inputs:
            named |= {self.inputs[name]: x for name, x in inputs.items()}
            returned = self.function(**named, **{self.cotangent: cotangent})
        else:
            given = [inputs.get(name) for name in self.names]
            returned = self.function(*given, cotangent, **named)
        through = states is not None and states[0] is not None
        found = self._by_name(returned, through)
        return [found[name] for name in inputs], found.get(OF_STATE)

    def _by_name(self, returned: Any, through: bool) -> dict[str, Any]:
        """Return gradients by the names of the operator, if there are enough."""
        if isinstance(returned, Mapping):
            found = {}
            for name in self.names:
                key = self.inputs.get(name, name)
                found[name] = returned.get(key, returned.get(name))
            found[OF_STATE] = returned.get(self.state, returned.get(OF_STATE))
            if through and found[OF_STATE] is None:
                msg = f"its `vjp` must return a gradient of the {OF_STATE}"
                raise TypeError(msg)
            return found
        due = len(self.names) + through
        if not isinstance(returned, tuple | list) or len(returned) < due:
            *first, last = self.names
            msg = f"its `vjp` must return the gradients of the {', the '.join(first)}"
            msg += f" and the {last}" if first else last
            msg += ", and that of the state" if through else ""
            raise TypeError(msg)
        order = [*self.inputs] or [*self.names]
        return dict(zip((*order, OF_STATE), returned, strict=False))


def backwards_of(
    function: Any, name: str, operator: Operator, of_target: tuple[str, ...]
) -> Backwards:
    """Recognise the parameters of the function that gives the gradients of a target.

    Parameters
    ----------
    function : callable
        What was declared.
    name : str
        The target.
    operator : Operator
        What it claims to be.
    of_target : tuple of str
        The target's own names for its inputs: keywords of a function that takes any.
    """
    parameters = parameters_of(function)
    found, anything = recognised(parameters, operator), takes_anything(parameters)
    cotangent = named_in(COTANGENT_NAMES, parameters)
    if anything:
        own = dict(zip(operator.names, of_target or operator.names, strict=True))
        found = own | found
        cotangent = cotangent or COTANGENT_NAMES[0]
    missing = [one for one in operator.names if one not in found]
    if operator.family and found and missing:
        msg = (
            f'the `vjp` of "{name}" has no parameter for the {missing[0]} of '
            f"{operator.name}: its parameters are ({', '.join(parameters)})."
        )
        raise UsageError(msg)
    if operator.family and found and cotangent is None:
        msg = (
            f'the `vjp` of "{name}" has no parameter for the cotangent of the output; '
            f"call it {' or '.join(COTANGENT_NAMES)}."
        )
        raise UsageError(msg)
    by_name = not missing and cotangent is not None
    # A tuple of gradients has the order of the parameters.
    order = sorted(found, key=lambda one: [*parameters, found[one]].index(found[one]))
    return Backwards(
        function,
        operator.names,
        {one: found[one] for one in order} if by_name else {},
        cotangent or "",
        named_in(STATE_NAMES, parameters),
        named_in(STATE_COTANGENT_NAMES, parameters),
        frozenset(parameters),
        anything,
    )

"""Gradients of tokens that read the memory, or its cotangent, of another token.

A backward pass holds the memory around every token, or around every chunk, and may read
a wrong one. What comes back to the inputs of a token is the gradient of a call of that
token alone, with the memory before it and the cotangent of the memory after it: here
with others, in all of a gradient or in the part that comes back to one operand.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.alternatives.changes import Gradient
from linkern.testing.diagnosis.sizes import CHUNKS
from linkern.testing.influence.maps import Index, Real
from linkern.testing.problems.expected import of_declared
from linkern.testing.problems.problem import Problem

__all__ = ["of_other_states"]

States = tuple[Real, ...]

MEMORY = "with the memory {} in place of before the token"
COTANGENT = "with the cotangent of the memory {} in place of after the token"


def of_other_states(
    problem: Problem, name: str, parts: Iterable[str]
) -> Iterator[tuple[str, str, Gradient]]:
    """Yield gradients with another memory, or cotangent of it.

    Parameters
    ----------
    problem : Problem
        A problem with a cotangent.
    name : str
        The input that gradients are of.
    parts : iterable of str
        Operands, in whose part alone another memory may be read.

    Yields
    ------
    words : str
        What is read in place of what.
    part : str
        The operand in whose part it is read; empty for all of the gradient.
    gradient : callable
        Returns the gradient of an input in a problem.
    """
    operator = problem.scope.operator
    by_position = any("l" in axes for axes in operator.state)
    if by_position or not operator.causal or not operator.input(name).per_token:
        return
    tokens = _tokens(problem)
    for part in ("", *parts):
        if not part or tokens.has(part, name):
            for words, _ in _others(problem.length):
                yield words, part, partial(_gradient, words, part)


def _others(length: int) -> Iterator[tuple[str, tuple[Index, Index]]]:
    """Yield words, and the tokens before which memory and cotangent of it are read."""
    token = np.arange(length)
    yield MEMORY.format("after it"), (token + 1, token + 1)
    yield COTANGENT.format("before it"), (token, token)
    for chunk in CHUNKS:
        if chunk < length:
            first = token // chunk * chunk
            ends = {"before": first, "after": np.minimum(first + chunk, length)}
            for side, at in ends.items():
                place = f"{side} its chunk of {chunk}"
                yield MEMORY.format(place), (at, token + 1)
                yield COTANGENT.format(place), (token, at)


def _gradient(words: str, part: str, problem: Problem, name: str) -> Bounded:
    """Return the gradient of an input, a part of it with other states."""
    tokens, exact = _tokens(problem), problem.solve_gradients()[name]
    # The same for all states that one part may read.
    rest = problem.recalled(
        ("rest of a gradient", part, name), lambda: tokens.rest(part, name)
    )
    states = dict(_others(problem.length))[words]
    meant = rest + tokens.part(part, name, *states)
    return Bounded(of_declared(problem.oracle_call, name, meant), exact.bound)


class _Tokens:
    """The tokens of a problem, each of them a call.

    Parameters
    ----------
    problem : Problem
        A problem with a cotangent.
    """

    def __init__(self, problem: Problem) -> None:
        assert problem.cotangent is not None
        call, self._length = problem.oracle_call, problem.length
        self._operator, self._scale = call.operator, call.scale
        self._options = call.options()
        self._inputs = {n: x for n, x in call.meant.items() if x is not None}
        self._cotangent = problem.cotangent.astype(np.float64)
        token = np.arange(self._length)
        self._own = token, token + 1  # the tokens before which states are read

    def has(self, part: str, name: str) -> bool:
        """Return True if something comes back to an input through a part."""
        return bool(self.part(part, name, *self._own).any())

    def rest(self, part: str, name: str) -> Real:
        """Return a gradient less one part; zeros if `part` is empty, which is all."""
        whole, lost = (self.part(x, name, *self._own) for x in ("", part))
        return whole - lost

    def part(self, part: str, name: str, memory: Index, cotangent: Index) -> Real:
        """Return a part of a gradient, all of it if empty, with some states."""
        states, returned = (
            tuple(_in_batch(x[at]) for x in every)
            for every, at in ((self._states, memory), (self._returned, cotangent))
        )
        every = range(self._length)
        whole = self._gradients(every, states, returned)[name]
        if part:
            whole = whole - self._gradients(every, states, returned, part)[name]
        axis = self._operator.input(name).token_axis
        assert axis is not None
        by_token = whole.reshape(self._length, -1, *whole.shape[1:])
        shape = self._inputs[name].shape
        return np.asarray(np.moveaxis(by_token, 0, axis).reshape(shape))

    @cached_property
    def _states(self) -> States:
        """The states before every token, and after the last one."""
        states = [self._operator.empty_state(self._inputs)]
        for token in range(self._length):
            inputs = self._inputs_of([token])
            result = self._operator.evaluate(
                inputs, self._scale, states[-1], options=self._options
            )
            states.append(result.state)
        return tuple(map(np.stack, zip(*states, strict=True)))

    @cached_property
    def _returned(self) -> States:
        """The cotangents of these states."""
        last = tuple(np.zeros_like(x[-1]) for x in self._states)
        cotangents = [last]
        for token in reversed(range(self._length)):
            state = tuple(x[token] for x in self._states)
            made = self._gradients([token], state, cotangents[-1])
            cotangents.append(made["initial_state"])
        return tuple(map(np.stack, zip(*reversed(cotangents), strict=True)))

    def _gradients(
        self, tokens: Sequence[int], state: States, returned: States, without: str = ""
    ) -> dict[str, Any]:
        """Return gradients of calls of single tokens, which are entries of a batch."""
        return self._operator.gradients(
            self._inputs_of(tokens),
            _of_tokens(self._cotangent, 2, self._length, tokens),
            self._scale,
            state,
            returned,
            options=self._options,
            without=without,
        )

    def _inputs_of(self, tokens: Sequence[int]) -> dict[str, Real]:
        inputs = dict(self._inputs)
        for name, x in self._inputs.items():
            axis = self._operator.input(name).token_axis
            if axis is not None:
                inputs[name] = _of_tokens(x, axis, self._length, tokens)
        return inputs


def _of_tokens(x: Real, axis: int, length: int, tokens: Sequence[int]) -> Real:
    """Return an array of single tokens, which are entries of a batch."""
    each = x.shape[axis] // length
    split = x.reshape(*x.shape[:axis], length, each, *x.shape[axis + 1 :])
    return _in_batch(np.moveaxis(split, axis, 0)[[*tokens]])


def _in_batch(x: Real) -> Real:
    return x.reshape(-1, *x.shape[2:])


# States of all tokens are many numbers: not to be kept with every problem.
_tokens = lru_cache(maxsize=4)(_Tokens)

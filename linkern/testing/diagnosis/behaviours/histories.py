"""Histories: the same problems again and again, after calls with other inputs.

A target that depends on its inputs alone gives each problem the same bits, whatever was
computed before. One that does not is told by the calls that it got wrong: all that came
after a certain one, every nth, those that follow a call with some inputs in common.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.calm import calm_problem
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, in_float64

__all__ = ["OF_EARLIER_CALLS", "agrees", "is_right", "kept_between_calls"]

Real = NDArray[np.float64]
# Batch, heads, length, key and value dimension.
SIZES, OTHER_SIZES, CUT = (2, 2, 37, 4, 5), (1, 2, 23, 4, 5), 16
# The same sizes but for one each: what is kept by the others is wrong for them.
RESIZED = {
    "batch size": (3, 2, 37, 4, 5),
    "number of heads": (2, 3, 37, 4, 5),
    "length": (2, 2, 29, 4, 5),
    "key dimension": (2, 2, 37, 6, 5),
    "value dimension": (2, 2, 37, 4, 7),
}
# Runs of one problem before and after the others: what starts at a later call shows.
BEFORE, AFTER = 10, 26
# Wrong calls that are looked at for stale inputs.
FEW = 4
# Said of a call that is wrong after others, and right in a new process.
OF_EARLIER_CALLS = Diagnosis(
    "state_kept_between_calls",
    "the output depends on earlier calls: one that is wrong after others is right in a "
    "new process",
    np.inf,
)


@dataclass(frozen=True, eq=False)
class _Turn:
    """One call: what it shares with the one before, whether it is cut, its new size."""

    problem: Problem
    shared: str = ""
    cut: bool = False
    resized: str = ""


@dataclass(frozen=True, eq=False)
class _Asked(_Turn):
    """A turn with the output of its call, and the earlier result that it changed."""

    output: Real = field(kw_only=True)
    overwrites: str = field(kw_only=True)

    @property
    def inputs(self) -> tuple[int, bool]:
        """Key that calls of the same inputs have in common."""
        return id(self.problem), self.cut


def kept_between_calls(target: Target, scope: Scope) -> Diagnosis | None:
    """Return what the answers of a target depend on besides their inputs.

    Parameters
    ----------
    target : Target
        Loaded; it is called some sixty times, with few tokens.
    scope : Scope
        What it claims and declares.

    Returns
    -------
    Diagnosis or None
        None if all calls with the same inputs return the same bits, and keep them.

    Raises
    ------
    TargetRaised, TargetDied
        If the target does not answer.
    """
    asked = [_ask(target, turn) for turn in _schedule(scope)]
    lost = next((one.overwrites for one in asked if one.overwrites), "")
    if lost:
        sentence = f"the call changed the {lost} that an earlier call returned"
        name = f"overwrites_{lost.replace(' ', '_')}"
        return Diagnosis(name, sentence, np.inf)
    first = {one.inputs: one.output for one in reversed(asked)}
    unequal = [not _same(one.output, first[one.inputs]) for one in asked]
    wrong = [not agrees(one.output, one.problem) for one in asked]
    if not any(unequal) and (wrong[0] or not any(wrong)):
        return None
    kept = _replayed(asked, wrong) or _stale(asked, wrong)
    if kept is not None:
        return kept
    if any(unequal):
        return _order(asked, wrong, unequal)
    resized = _of_other_sizes(target, asked, wrong)
    if resized is not None:
        return resized
    return _made_at_first(target, asked[wrong.index(True)])


@lru_cache(maxsize=8)
def _schedule(scope: Scope) -> tuple[_Turn, ...]:
    """Return problems in turn, with what each has in common with those before it."""
    rng = np.random.default_rng(0)
    one, new, other = (calm_problem(scope, x, rng) for x in (SIZES, SIZES, OTHER_SIZES))
    names = scope.operator.names
    variants = {"shape": new}
    variants |= {name: new.with_inputs(**{name: one.inputs[name]}) for name in names}
    begins, swapped, single = (_copied(problem) for problem in (new, one, one))
    middle = one.length // 2
    for name in names:
        axis = scope.operator.input(name).token_axis
        if axis is None:
            continue
        begins.of_tokens(name, 0, 1)[...] = one.of_tokens(name, 0, 1)
        pair = one.of_tokens(name, middle - 1, middle + 1)
        swapped.of_tokens(name, middle - 1, middle + 1)[...] = np.flip(pair, axis)
    place = one.shape.keys // 2
    single.value[-1:, -1:, place : place + 1, :1] *= -2
    variants["first token"] = begins
    variants["numbers in another order"] = swapped
    variants["inputs but one number"] = single
    usual = _Turn(one)
    turns = [usual] * BEFORE
    for shared, variant in variants.items():
        turns += [usual, _Turn(variant, shared)]
        if other.shape != one.shape:
            turns += [_Turn(other), _Turn(variant)]
    for size, sizes in RESIZED.items() if not scope.few_shapes else ():
        if nearest_shape(scope, sizes) != one.shape:
            resized = calm_problem(scope, sizes, rng)
            turns += [usual, _Turn(resized, resized=size)]
    takes_state = scope.interface.takes_state and one.length > CUT
    if takes_state and CUT % scope.contract.length_multiple_of == 0:
        turns += [_Turn(one, cut=True), _Turn(new, "shape", cut=True)]
        turns += [_Turn(other, cut=True), _Turn(new, cut=True)]
    return (*turns, *[usual] * AFTER)


def _copied(problem: Problem) -> Problem:
    return problem.with_inputs(**{n: x.copy() for n, x in problem.inputs.items()})


def _ask(target: Target, turn: _Turn) -> _Asked:
    problem = turn.problem
    cuts = (CUT,) if turn.cut and problem.length > CUT else ()
    reply = target.call(Call(problem.inputs, cuts=cuts, wants_state=bool(cuts)))
    output = in_float64(np.zeros(0) if reply.output is None else reply.output)
    return _Asked(**vars(turn), output=output, overwrites=reply.overwritten)


def _same(one: Real, other: Real) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def agrees(output: NDArray[np.generic], problem: Problem) -> bool:
    """Return True if an output is that of a problem, within rounding."""
    exact = problem.solve()
    if output.shape != exact.output.shape:
        return False
    with np.errstate(all="ignore"):
        error = abs(in_float64(output) - exact.output)
        return bool((error <= exact.once_stored(problem.scope.output_dtype)).all())


def is_right(target: Target, problem: Problem) -> bool:
    """Return True if a target gives the output of a problem, within rounding."""
    output = target.call(Call(problem.inputs)).output
    return output is not None and agrees(output, problem)


def _replayed(asked: list[_Asked], wrong: list[bool]) -> Diagnosis | None:
    """Return the replay of an earlier output, if all that is wrong is one."""
    places = np.flatnonzero(wrong).tolist()
    if not places or not all(_is_replay(asked, at) for at in places):
        return None
    shared = _common([asked[at].shared for at in places])
    sentence = f"returns the output of an earlier call that had {shared}"
    return Diagnosis("replays_output", sentence, np.inf)


def _is_replay(asked: list[_Asked], at: int) -> bool:
    """Return True if a call before had other inputs and the same output."""
    others = (one for one in asked[:at] if one.problem is not asked[at].problem)
    return any(_same(one.output, asked[at].output) for one in others)


def _stale(asked: list[_Asked], wrong: list[bool]) -> Diagnosis | None:
    """Return the input of an earlier call that explains what is wrong, or the two."""
    calls = [(at, one) for at, one in enumerate(asked) if wrong[at] and not one.cut]
    places = [at for at, _ in calls if at][:FEW]
    names = [*asked[0].problem.inputs] if places else []
    for stale in [*combinations(names, 1), *combinations(names, 2)]:
        if all(_is_stale(asked, at, stale) for at in places):
            shared = _common([asked[at].shared for at in places])
            read = " and ".join(f"the {name}" for name in stale)
            sentence = f"reads {read} of an earlier call that had {shared}"
            return Diagnosis("stale_input", sentence, np.inf)
    return None


def _is_stale(asked: list[_Asked], at: int, names: tuple[str, ...]) -> bool:
    """Return True if an output is that of some inputs of an earlier call."""
    now = asked[at].problem
    earlier = {id(x.problem): x.problem for x in reversed(asked[:at])}
    return any(
        agrees(
            asked[at].output,
            now.with_inputs(**{name: one.inputs[name] for name in names}),
        )
        for one in earlier.values()
        if one.shape == now.shape
        and not all(np.array_equal(one.inputs[x], now.inputs[x]) for x in names)
    )


def _of_other_sizes(
    target: Target, asked: list[_Asked], wrong: list[bool]
) -> Diagnosis | None:
    """Return the size on which what is kept from call to call should depend, if any.

    Calls with another one are wrong, and right in a new process, or, where none can be
    had, with one token less, which were not asked before.
    """
    calls = [one for one, is_wrong in zip(asked, wrong, strict=True) if is_wrong]
    if not all(one.resized for one in calls):
        return None
    first = calls[0].problem
    if not target.restart():
        first = first.prefix(max(first.length - 1, 0))
    if not is_right(target, first):
        return None
    sizes = " or ".join(one.resized for one in calls)
    sentence = (
        f"the output is wrong after a call with another {sizes} whose other sizes are "
        "the same: what is kept between calls does not depend on that size"
    )
    return Diagnosis("state_kept_between_calls", sentence, np.inf)


def _made_at_first(target: Target, asked: _Asked) -> Diagnosis | None:
    """Return what a wrong call tells that is right without its last token.

    That token cannot change the rows before it: what was made at an earlier call of
    this shape does.
    """
    problem = asked.problem
    if asked.cut or not problem.scope.operator.causal:
        return None
    shorter = problem.prefix(problem.length - 1)
    if not is_right(target, shorter):
        return None
    if agrees(asked.output[:, :, :-1], shorter):
        return None
    sentence = (
        "the output is right at the first call of a shape, and wrong at later ones "
        "with other inputs"
    )
    return Diagnosis("state_kept_between_calls", sentence, np.inf)


def _order(asked: list[_Asked], wrong: list[bool], unequal: list[bool]) -> Diagnosis:
    """Return the calls that are wrong: from one on, every nth, after some others."""
    places, name = np.flatnonzero(wrong), "state_kept_between_calls"
    shapes = [one.problem.shape for one in asked]
    repeated = [shape in shapes[:at] for at, shape in enumerate(shapes)]
    steps = set(np.diff(places).tolist())
    to_the_end = len(places) > 2 and places[-1] + max(steps) >= len(asked)
    alone = [at for at in places if not asked[at].shared]
    if wrong == repeated:
        sentence = (
            "the output is right at the first call of each shape, and wrong after it"
        )
    elif to_the_end and steps == {1}:
        sentence = "the output is right at first, and wrong from a later call on"
    elif to_the_end and len(steps) == 1:
        sentence = f"the output is wrong at one of every {min(steps)} calls"
    elif len(places) and not alone:
        shared = _common([asked[at].shared for at in places])
        sentence = f"the output depends on the call before, if that had {shared}"
    else:
        name = "not_deterministic"
        sentence = (
            "returns other bits for the same inputs from call to call: "
            f"{sum(unequal)} of {len(asked)} calls"
        )
    return Diagnosis(name, sentence, np.inf)


def _common(shared: list[str]) -> str:
    """Return what calls before had in common with those that are wrong."""
    kinds = [x for x in dict.fromkeys(shared) if x]
    if "shape" in kinds or len(kinds) not in (1, 2):
        return "the same shape"
    return f"the same {' or '.join(kinds)}"

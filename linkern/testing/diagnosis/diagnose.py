"""Diagnosis of a failure: what behaves otherwise, or where which results are wrong.

Influence maps of the results are measured one stage after the other; the first that
is wrong is described. Nothing is said that does not hold on fresh inputs, and nothing
at all of a target whose maps are right. One clock is for all of it, and what it leaves
out is said.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeVar

import numpy as np

from linkern.testing.diagnosis.alternatives.chunked_erases import other_chunk
from linkern.testing.diagnosis.alternatives.states_read import state_read
from linkern.testing.diagnosis.behaviours.finiteness import not_finite, not_finite_tails
from linkern.testing.diagnosis.behaviours.histories import (
    OF_EARLIER_CALLS,
    kept_between_calls,
)
from linkern.testing.diagnosis.behaviours.observed import (
    Observe,
    adds_up,
    observed_after,
    observed_before,
    refused,
    right_where_dense,
)
from linkern.testing.diagnosis.behaviours.roundings import rounded_result, rounding
from linkern.testing.diagnosis.declarations import (
    declarations,
    declarations_of_gradients,
)
from linkern.testing.diagnosis.diagnosis import UNEXPLAINED, Diagnosis
from linkern.testing.diagnosis.factors.factor import Factor, holds
from linkern.testing.diagnosis.index_sets.atoms import interval
from linkern.testing.diagnosis.index_sets.search import IndexSet
from linkern.testing.diagnosis.localising import Finding, localise
from linkern.testing.diagnosis.sentences import localised
from linkern.testing.errors import OutOfTime, TargetRaised
from linkern.testing.influence.forward import HANDED_ON, STAGES
from linkern.testing.influence.gradient_maps import GRADIENT_STAGES
from linkern.testing.influence.gradient_places import (
    DENOMINATOR,
    INSIDE,
    NAMES,
    THROUGH,
)
from linkern.testing.influence.long_maps import LONG
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.influence.readings import OF_KEYS
from linkern.testing.influence.scenes import SPREAD, carrier
from linkern.testing.influence.stages import Stage
from linkern.testing.problems.context import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.target.clock import Clock, Timed
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply

__all__ = ["Diagnosis", "diagnose", "examine"]

# Inputs are the same in every run; those of the second seed test what the first says.
SEED, FRESH = 1, 2
# Seconds for a diagnosis, several times those of a fast target; those that behaviours
# leave for the maps; those that maps leave for what tests and explains them.
SECONDS, FOR_MAPS, FOR_THE_REST = 30.0, 22.0, 8.0
LATE = "no time is left"
# What comes back through a state: one result, if several inputs have it wrong.
THROUGH_STATES = NAMES[THROUGH].removeprefix(NAMES[INSIDE])
ACROSS_CUTS = f"gradient{THROUGH_STATES}"
# The usual line of keys that are wrong in a state, and outputs with them.
WRITES = "what a token writes along its key into the state, or the decay of that"
DENOMINATORS = NAMES[DENOMINATOR].removeprefix(NAMES[INSIDE])
# Declarations of inputs without which the maps are measured, if a target refuses them.
LIMITS = ("decay_floor", "packing")
NOTHING = "nothing that was measured tells what it computes instead"

_Result = TypeVar("_Result")


def diagnose(target: Target, scope: Scope) -> Diagnosis | None:
    """Return what a target computes instead of the operator, as far as it shows.

    Parameters
    ----------
    target : Target
        Loaded; it is called up to some hundred times.
    scope : Scope
        What it claims and declares.

    Returns
    -------
    Diagnosis or None
        None if no result is beyond its bound.

    Raises
    ------
    TargetDied
        If the target crashed or hung.
    """
    diagnosis = examine(target, scope)
    return None if diagnosis.name == UNEXPLAINED else diagnosis


def examine(
    target: Target,
    scope: Scope,
    *,
    seconds: float = 0.0,
    repeats: bool = True,
    shown_by: Sequence[Sequence[Call]] = (),
) -> Diagnosis:
    """Return the diagnosis of a target; its name is `UNEXPLAINED` where nothing shows.

    Parameters
    ----------
    target : Target
        Loaded.
    scope : Scope
        What it claims and declares.
    seconds : float
        Time that a slow target may take, if that is more than usual.
    repeats : bool
        False if a call that was wrong is right in a new process: it depends on the
        calls before it, and nothing else is looked for.
    shown_by : sequence of sequence of Call
        The calls of each law that failed. Of a target that is slow, maps of results
        that none of them asks for are measured last. If one needs no heads that share
        queries, there are none in maps: gates of several heads are no factors of a key.
    """
    if scope.contract.value_groups and any(_groups_nothing(scope, x) for x in shown_by):
        scope = replace(scope, contract=replace(scope.contract, value_groups=None))
    clock = Clock(max(SECONDS, seconds))
    watched = _Watched(target, clock)
    slow = scope.few_shapes or scope.interpreted
    probe = _Probe(watched, scope, clock, _stages(shown_by if slow else ()))
    if not repeats:
        return probe.observed(kept_between_calls, 0.0) or OF_EARLIER_CALLS
    refusal = probe.observed(refused, FOR_MAPS)
    if refusal is not None:
        probe = probe.within(refusal)
    diagnosis = (
        probe.observed(observed_before, FOR_MAPS)
        or probe.described()
        or probe.observed(observed_after, 0.0)
        or refusal  # of which no other fault is a consequence
        or Diagnosis(UNEXPLAINED, NOTHING)
    )
    if diagnosis.name == "not_finite" and diagnosis.declaration:
        diagnosis = _beside(probe.within(diagnosis).described(), diagnosis)
    # What is refused with axes in another order is refused of other sizes.
    swapped = any(x.startswith("layout=") for x in diagnosis.declaration)
    if refusal not in (None, diagnosis) and probe.scope != scope and not swapped:
        diagnosis = _beside(diagnosis, refusal)
    if watched.out_of_bounds:
        diagnosis = _out_of_bounds(diagnosis, watched.out_of_bounds)
    return replace(diagnosis, not_measured=probe.not_measured)


class _Watched(Timed):
    """A target under a clock, and the first access out of bounds of its calls."""

    out_of_bounds = ""

    def call(self, call: Call) -> Reply:
        """Call the target once, for no longer than there is time."""
        reply = super().call(call)
        self.out_of_bounds = self.out_of_bounds or next(iter(reply.out_of_bounds), "")
        return reply


def _out_of_bounds(other: Diagnosis, access: str) -> Diagnosis:
    """Return what is wrong of a kernel with an access out of bounds.

    Numbers that are not finite come from there, and say nothing of their own.
    """
    if other.name in (UNEXPLAINED, "not_finite") or "not finite" in other.sentence:
        return Diagnosis("out_of_bounds", access, np.inf)
    return replace(other, sentence=f"{other.sentence}; besides, {access}")


def _beside(other: Diagnosis | None, limit: Diagnosis) -> Diagnosis:
    """Return what is wrong of the inputs that a target takes, and what it refuses."""
    if other is None:
        return limit
    return replace(other, sentence=f"{other.sentence}; besides, it {limit.sentence}")


@dataclass(frozen=True)
class _Probe:
    """A target under a clock, and the parts that could not be measured, by reason."""

    target: Timed
    scope: Scope
    clock: Clock
    stages: tuple[Stage, ...]
    left_out: dict[str, list[str]] = field(default_factory=dict)

    @property
    def not_measured(self) -> tuple[str, ...]:
        """The parts that were not measured, and the reasons."""
        return tuple(
            f"{', '.join(names)}: {reason}" for reason, names in self.left_out.items()
        )

    def within(self, limit: Diagnosis) -> "_Probe":
        """Return the same for the inputs that are left by what a target refuses."""
        pairs = (text.split("=", 1) for text in limit.declaration)
        limits = {key: value for key, value in pairs if key in LIMITS}
        contract = Contract.from_mapping({**self.scope.contract.declared(), **limits})
        return replace(self, scope=replace(self.scope, contract=contract))

    def tried(
        self, name: str, measure: Callable[[], _Result], nothing: _Result
    ) -> _Result:
        """Return a measurement, or nothing and the note why there is none."""
        try:
            return measure()
        except (TargetRaised, OutOfTime) as error:
            self.leave_out(name, str(error) or LATE)
            return nothing

    def leave_out(self, name: str, reason: str) -> None:
        """Note that a part was not measured."""
        names = self.left_out.setdefault(reason, [])
        names += [name] * (name not in names)

    def observed(self, observe: Observe, kept: float) -> Diagnosis | None:
        """Return a behaviour, if it shows before so many seconds are left."""
        with self.clock.without(kept):
            return self.tried(
                "behaviour", lambda: observe(self.target, self.scope), None
            )

    def described(self) -> Diagnosis | None:
        """Return what is wrong in the first stage with a wrong map."""
        for stage in self.stages:
            with self.clock.without(FOR_THE_REST):
                maps = self._maps(stage)
            wrong = [one.tensor for one in maps if one.wrong.any()]
            if wrong:
                told = self._of_maps(stage, maps, wrong)
                return self._of_keys(told) or self._of_handed_on(told, maps) or told
        return None

    def _of_handed_on(
        self, told: Diagnosis, maps: list[InfluenceMap]
    ) -> Diagnosis | None:
        """Return what is wrong of the final states of calls that begin with a state.

        Outputs are right in the second call of a sequence then, and in all later ones
        they are wrong by no factor.
        """
        if told.factor is not None or not told.where.startswith("spans from"):
            return None
        if any((one.wrong & (one.coordinates["span"] < 2)).any() for one in maps):
            return None
        with self.clock.without(FOR_THE_REST):
            states = self._maps(HANDED_ON)
        names = [one.tensor for one in states if one.wrong.any()]
        return self._of_maps(HANDED_ON, states, names) if names else None

    def _of_keys(self, told: Diagnosis) -> Diagnosis | None:
        """Return what is wrong of the keys in a state, where outputs have no formula.

        Rows read them by no linear rule, and are wrong by no factor.
        """
        stage = next(one for one in STAGES if one.name == "state")
        explained = told.stage != "output" or told.factor is not None
        if explained or not self.scope.operator.keeps_keys or stage.skipped(self.scope):
            return None
        with self.clock.without(FOR_THE_REST):
            maps = self._maps(stage)
        maps = _of_tensor(maps, OF_KEYS)
        if not any(one.wrong.any() for one in maps):
            return None
        of_keys = self._of_maps(stage, maps, [OF_KEYS])
        return replace(of_keys, hint=WRITES) if of_keys.factor else None

    def _maps(self, stage: Stage, seed: int = SEED) -> list[InfluenceMap]:
        """Return the maps of a stage, if it has some."""
        name = stage.name if seed == SEED else "fresh inputs"
        reason = stage.skipped(self.scope)
        if reason:
            self.leave_out(name, reason)
            return []
        rng = np.random.default_rng(seed)
        maps: list[InfluenceMap] = self.tried(
            name, lambda: stage.measure(self.target, self.scope, rng), []
        )
        if self.clock.left <= 0:  # some calls may be missing
            self.leave_out(name, LATE)
        return maps

    def _of_maps(
        self, stage: Stage, every: list[InfluenceMap], wrong: list[str]
    ) -> Diagnosis:
        """Return what is wrong in the first of the results of a stage that are."""
        maps = _of_tensor(every, _chosen(wrong))
        nonlinear = self._nonlinear(maps)
        if nonlinear is not None:
            return nonlinear
        behaviour = self._not_finite_in_tails(maps)
        if behaviour is not None:
            return behaviour
        tensor, finding = self._localised(stage, every, wrong)
        behaviour = self._rounded_or_not_finite(tensor, finding)
        if behaviour is not None:
            return behaviour
        if tensor == "output" and finding.factor and finding.factor.kind == "instead":
            names = maps[0].problem.inputs
            said = partial(adds_up, self.target, self.scope, names)
            if not self.tried("sums of calls", said, False):
                finding = replace(finding, factor=None)
        if tensor == "output" and finding.factor is None:
            finding = self._as_another_rule(maps, finding)
        declared: tuple[str, ...] = ()
        if tensor == "output":
            by_what = finding.factor.text if finding.factor else ""
            declared = self.tried(
                "declarations",
                lambda: declarations(self.target, self.scope, by_what),
                (),
            )
        if tensor.startswith("gradient"):
            declared = self.tried(
                "declarations",
                lambda: declarations_of_gradients(self.target, self.scope),
                (),
            )
        return localised(
            finding.maps, finding.place, finding.factor, declaration=declared
        )

    def _localised(
        self, stage: Stage, every: list[InfluenceMap], wrong: list[str]
    ) -> tuple[str, Finding]:
        """Return the first result that is wrong, with the place and the factor.

        A gradient that is wrong as a whole is wrong through the denominator as well.
        """
        fresh = cache(partial(self._maps, stage, FRESH))

        def found(tensor: str) -> Finding:
            again = partial(_of_tensor, tensor=tensor)
            return localise(again(every), lambda: again(fresh()))

        tensor = _chosen(wrong)
        first, whole = found(tensor), tensor.removesuffix(DENOMINATORS)
        if whole == tensor or whole not in wrong:
            return tensor, first
        other, part = found(whole), _of_tensor(every, tensor)
        if other.place and other.factor:
            factor = other.factor
            if all(holds(factor, one, one.wrong) for one in part):
                return whole, other
        return tensor, first

    def _as_another_rule(self, maps: list[InfluenceMap], finding: Finding) -> Finding:
        """Return a finding with the state or the chunk that a target has instead."""
        through, place = _handed_over(maps), finding.place
        probe = state_read if through else other_chunk
        said = partial(probe, self.target, self.scope)
        factor: Factor | None = self.tried("other rules", said, None)
        if factor is None:
            return finding
        if through and place is None:
            place = IndexSet((interval("span", ">=", 1),))
        wrong = [one for one in maps if one.wrong.any()]
        return replace(finding, maps=wrong, place=place, factor=factor)

    def _nonlinear(self, maps: list[InfluenceMap]) -> Diagnosis | None:
        """Return why maps mean nothing, if sums of their impulses come out right."""
        whole = [
            one
            for one in maps
            if one.wrong.any()
            and one.tensor == "output"
            and carrier(self.scope) == "value"
            and one.problem.kind != SPREAD
            and not {"cuts", "packing"} & {*one.problem.knobs}
        ]
        if not whole:
            return None
        problem = min(whole, key=lambda one: one.exact.size).problem
        return self.tried(
            "sums of values", lambda: right_where_dense(self.target, problem), None
        )

    def _rounded_or_not_finite(self, tensor: str, finding: Finding) -> Diagnosis | None:
        """Return the stage that rounds, or where NaN starts, if that is wrong."""
        target, scope, stage = self.target, self.scope, None
        if finding.coarse:
            place = finding.place.text if finding.place else ""
            if tensor == "output":
                stage = self.tried(
                    "roundings", lambda: rounding(target, scope, finding.maps), None
                )
            return stage or rounded_result(finding.maps, place, scope)
        if tensor == "output" and finding.broken:
            return self.tried("not finite", lambda: not_finite(target, scope), None)
        return None

    def _not_finite_in_tails(self, maps: list[InfluenceMap]) -> Diagnosis | None:
        """Return the lengths of which a gradient is finite, if maps have it nowhere."""
        name = maps[0].tensor.removeprefix("gradient of ")
        if name not in maps[0].problem.inputs or any(
            np.isfinite(one.measured[one.wrong]).any() for one in maps
        ):
            return None
        said = partial(not_finite_tails, self.target, self.scope, name)
        return self.tried("lengths", said, None)


def _groups_nothing(scope: Scope, calls: Sequence[Call]) -> bool:
    """Return True if a law failed in calls whose heads of values have own queries."""
    sizes = [scope.operator.sizes(call.inputs) for call in calls]
    return bool(sizes) and all(one["g"] == one["h"] for one in sizes)


def _stages(shown_by: Sequence[Sequence[Call]]) -> tuple[Stage, ...]:
    """Return the stages in turn, from the first one that some law has shown wrong."""
    every = [*STAGES, *GRADIENT_STAGES, *LONG]
    names = [stage.name for stage in every]
    shown = [max(names.index(_asked(x)) for x in calls) for calls in shown_by if calls]
    first = min(shown, default=0)
    return (*every[first:], *every[:first])


def _asked(call: Call) -> str:
    """Return the name of the stage whose calls are as one."""
    if call.cotangent is None:
        last = "state" if call.wants_state else "outputs"
        return "packed" if call.segments else "spans" if call.cuts else last
    through = " of packed sequences" * bool(call.segments) or " of spans"
    return f"gradients{through if call.segments or call.cuts else ''}"


def _handed_over(maps: Sequence[InfluenceMap]) -> bool:
    """Return True if nothing is wrong but behind a state that was handed over."""
    return all(
        "span" in one.coordinates and (one.coordinates["span"][one.wrong] > 0).all()
        for one in maps
        if one.wrong.any()
    )


def _chosen(wrong: Sequence[str]) -> str:
    """Return the tensor to describe, of those that are wrong somewhere."""
    through = {one for one in wrong if one.endswith(THROUGH_STATES)}
    several = wrong[0] in through and len(through) > 1
    return ACROSS_CUTS if several else wrong[0]


def _of_tensor(maps: Sequence[InfluenceMap], tensor: str) -> list[InfluenceMap]:
    """Return the maps of a tensor, or of all that comes back through states."""
    if tensor != ACROSS_CUTS:
        return [one for one in maps if one.tensor == tensor]
    through = (one for one in maps if one.tensor.endswith(THROUGH_STATES))
    return [replace(one, tensor=tensor) for one in through]

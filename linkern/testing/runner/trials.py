"""Trials of a target: one call of a small valid input in each dtype of a plan."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from linkern.testing.checks.packed import no_packed_gradients, not_packed
from linkern.testing.checks.registry import no_gradients, no_gradients_of_state
from linkern.testing.errors import DoesNotApply, TargetDied, TargetRaised, UsageError
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes, nearest_shape
from linkern.testing.problems.sharding import even_sharding
from linkern.testing.runner.opening import config_of, scope_of
from linkern.testing.runner.plan import DEFAULT_DTYPES, Plan
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.inference import library_of
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply, TargetConfig, in_float64

__all__ = [
    "Death",
    "Trials",
    "Tried",
    "groups_values",
    "refusal_of_no_token",
    "returns_state",
    "tried",
]

# Batch, heads, length, key and value dimension: no two alike.
UNEQUAL = (2, 3, 5, 4, 6)


@dataclass(frozen=True)
class Death:
    """Input on which the process of a target crashed or hung."""

    problem: Problem
    call: Call
    error: TargetDied


@dataclass(frozen=True)
class Tried:
    """Outcome of the first call in each dtype.

    Parameters
    ----------
    accepted : tuple of str
        Dtypes in which the target returned.
    refused : mapping of str to str
        Dtypes in which it did not, with what it did instead.
    problem : Problem or None
        The first input; None if the contract allows no such input.
    death : Death or None
        The crash or hang that ended the trial.
    """

    accepted: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = None
    death: Death | None = None

    @property
    def refusal(self) -> str:
        """Exception or object of the first dtype that it refused; empty if none."""
        return next(iter(self.refused.values()), "")


class Trials:
    """First calls of one target under several plans.

    Parameters
    ----------
    plan : Plan
        The plan of the run.
    target : Target
        Its target, loaded; after a trial it is as the last plan opened it.
    """

    def __init__(self, plan: Plan, target: Target) -> None:
        self._target = target
        self._config: TargetConfig | None = config_of(plan)

    def of(self, plan: Plan, sizes: Sizes = UNEQUAL) -> Tried:
        """Call the target under a plan.

        Raises
        ------
        UsageError
            If it cannot be called in that way at all.
        """
        config = config_of(plan)
        if config != self._config:
            self._config = None
            self._target.reopen(config)
            self._config = config
        return tried(plan, self._target, sizes)

    def runs(self, plan: Plan, sizes: Sizes = UNEQUAL) -> bool:
        """Return True if the target returns under a plan in some dtype."""
        try:
            return bool(self.of(plan, sizes).accepted)
        except UsageError:
            return False


def tried(plan: Plan, target: Target, sizes: Sizes = UNEQUAL) -> Tried:
    """Call a target once in each dtype of a plan."""
    accepted: list[str] = []
    refused: dict[str, str] = {}
    first: Problem | None = None
    for dtype in plan.dtypes or DEFAULT_DTYPES:
        if dtype not in target.opened.library.dtypes:
            refused[dtype] = f"takes no {dtype}"
            continue
        scope = scope_of(plan, target, dtype)
        try:
            problem = _problem(scope, sizes)
        except DoesNotApply:
            return Tried()
        first = first or problem
        call = Call(problem.inputs, sharding=problem.sharding)
        try:
            reply = target.call(call)
        except TargetRaised as raised:
            refused[dtype] = f"raised {raised}"
        except TargetDied as error:
            death = Death(problem, call, error)
            return Tried(tuple(accepted), refused, problem, death)
        else:
            other = library_of(reply.kind) if reply.output is None else None
            if other not in (None, target.opened.library.name):
                refused[dtype] = f"returned a {reply.kind}"
            elif dtype == "float64" and _computes_in_float32(plan, reply):
                refused[dtype] = "computed it in float32; name it with --dtype if not"
            else:
                accepted.append(dtype)
    return Tried(tuple(accepted), refused, first)


def _computes_in_float32(plan: Plan, reply: Reply) -> bool:
    """Return True for a kernel on a GPU that gave numbers of float32 for float64.

    Most of them do, for every dtype that they take. Where a plan names float64, and on
    a CPU, it is a fault.
    """
    x = reply.output
    if plan.dtypes or not plan.on_cuda or x is None or not x.any():
        return False
    return np.array_equal(x, x.astype(np.float32))


def returns_state(target: Target, problem: Problem) -> bool:
    """Return True if what a call returns has the shape of a state after its output.

    Other arrays, as the weights of all pairs, may have that shape too where sizes are
    equal; then it is not said of them. Nor is it of a square memory that is closer to
    the transposed one: its layout is another, and is to be declared.
    """
    sizes = problem.sizes
    if sizes["t"] in (sizes["h"], sizes["k"], sizes["v"]):
        return False
    try:
        reply = target.call(Call(problem.inputs, wants_state=True))
    except (TargetRaised, TargetDied):
        return False
    if reply.states is None:
        return False
    memory, exact = in_float64(reply.states[0]), problem.solve_state()[0].output
    if memory.shape[-1] != memory.shape[-2]:
        return True
    error, transposed = (
        abs(memory - x).sum() for x in (exact, np.swapaxes(exact, -1, -2))
    )
    return not transposed < error


def refusal_of_no_token(target: Target, problem: Problem) -> str:
    """Return what a target raises if there is no token; empty if it does not.

    A crash or a hang is a fault, which the laws report.
    """
    empty = problem.prefix(0)
    calls = [Call(empty.inputs)]
    if problem.scope.interface.takes_state:
        calls.append(Call(empty.inputs, wants_state=True))
    for call in calls:
        try:
            target.call(call)
        except TargetRaised as raised:
            return str(raised)
        except TargetDied:
            return ""
    return ""


def groups_values(plan: Plan, target: Target, dtype: str) -> bool:
    """Return True if a target computes rows for more heads of values than of queries.

    One that leaves the rows of some heads zero, or not finite, takes no such heads; nor
    does one that takes them in plain calls, and not with states, gradients or packed
    sequences. Of a target that compiles every shape a plain call is enough.
    """
    contract = replace(plan.contract, value_groups=True)
    scope = scope_of(replace(plan, contract=contract), target, dtype)
    try:
        problem = _problem(scope, UNEQUAL)
        if problem.sizes["g"] == problem.sizes["h"]:
            return False
        calls = [
            *islice(_calls(problem), 1 if target.opened.library.compiles else None)
        ]
        replies = [target.call(call) for call in calls]
    except (DoesNotApply, TargetRaised, TargetDied):
        return False
    return all(map(_has_all_heads, calls, replies))


def _has_all_heads(call: Call, reply: Reply) -> bool:
    """Return True if no head of the output is left out, and gradients fit."""
    if reply.output is None or reply.shape != reply.expected_shape:
        return False
    rows = np.moveaxis(in_float64(reply.output), 1, 0)
    shapes = [x.shape for x in call.inputs.values()]
    fit = [x.shape for x in reply.gradients or ()] in ([], shapes)
    return fit and all(np.isfinite(x).all() and x.any() for x in rows)


def _calls(problem: Problem) -> Iterator[Call]:
    """Yield calls of a problem: whole, in two spans, packed, each for gradients too."""
    scope, contract = problem.scope, problem.scope.contract
    ways = [Call(problem.inputs)]
    cut = max(contract.length_multiple_of, contract.shortest)
    if scope.interface.takes_state and cut < problem.length:
        ways.append(Call(problem.inputs, cuts=(cut,), wants_state=True))
    if not_packed(scope) is None:
        one, edges = problem.first_of_batch(), (0, problem.length)
        ways.append(Call(one.inputs, segments=(edges,)))
    for call in ways:
        yield call
        unless = no_packed_gradients if call.segments else no_gradients
        if call.cuts:
            unless = no_gradients_of_state
        if no_gradients(scope) is None and unless(scope) is None:
            shape = (len(call.inputs["value"]), *problem.shape.of("bgtv")[1:])
            cotangent = np.ones(shape, numpy_dtype(scope.output_dtype))
            yield replace(call, cotangent=cotangent, wants_state=False)


def _problem(scope: Scope, sizes: Sizes) -> Problem:
    kind = "uniform" if scope.operator.feature_map else "mild"
    shape = nearest_shape(scope, sizes)
    problem = real_problem(scope, shape, kind, "normal", np.random.default_rng(0))
    if not scope.ranks:
        return problem
    return problem.told(sharding=even_sharding(scope, scope.ranks[0]))

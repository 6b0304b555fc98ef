"""Compare the replies of a target with the results of a correct kernel."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded, unit_roundoff
from linkern.testing.checks.findings import NOT_FINITE, OUT_OF_BOUNDS, Tally, Violation
from linkern.testing.errors import DoesNotApply, TargetRaised, skipped
from linkern.testing.problems.mixture import provable
from linkern.testing.problems.problem import Problem
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply, in_float64

__all__ = ["CheckedTarget", "Comparison", "compared", "well_formed"]

Real = NDArray[np.float64]
# Calls that may be repeated, the share of calls before which one is, and of those that
# are repeated at another address.
EARLIER, REPEATED, HALF = 8, 0.06, 0.5
# Letters of the axes of an output.
OUTPUT = "bgtv"


@dataclass(frozen=True)
class Comparison:
    """Results beside the intervals of a correct kernel, entry by entry.

    Parameters
    ----------
    low, high : array
        The least and the greatest result of a correct kernel.
    fine : array of bool
        Whether the result lies between them; anything but NaN where no bound is known.
    ratio : array
        The error as a multiple of what is allowed.
    known : array of bool
        Whether a finite bound is proved.
    """

    low: Real
    high: Real
    fine: NDArray[np.bool_]
    ratio: Real
    known: NDArray[np.bool_]


def compared(got: Real, expected: Bounded, dtype: str) -> Comparison:
    """Compare results with exact ones, both rounded to the dtype they are stored in.

    A correct kernel holds a number within ``bound`` of the exact one and rounds it.
    Rounding is monotonic, so its result lies between the roundings of the two ends: no
    further allowance for the output is needed.
    """
    low, high = _interval(expected.output, expected.bound, dtype)
    known = np.isfinite(expected.bound)
    beyond = np.where(got >= expected.output, high, low)
    ratio = _ratio(abs(got - expected.output), abs(beyond - expected.output))
    fine = (low <= got) & (got <= high) | (~known & ~np.isnan(got))
    return Comparison(low, high, fine, ratio, known)


class CheckedTarget:
    """A target whose replies one check compares with bounds.

    Parameters
    ----------
    target : Target
        Loaded target.
    tally : Tally
        Counts examples, calls and comparisons.
    """

    def __init__(self, target: Target, tally: Tally) -> None:
        self._target = target
        self._tally = tally
        self._alone = False
        self._order: np.random.Generator | None = None
        self._earlier: list[tuple[Problem, NDArray[Any]]] = []
        self._kept: list[tuple[Problem, NDArray[Any]]] = []

    def begin(self, order: int = 0, *, keeping: bool = True) -> None:
        """Begin an example.

        Parameters
        ----------
        order : int
            Says in which order related calls are made, and which earlier ones are
            repeated in between; 0 for none, and the order in which a law is written.
        keeping : bool
            Remember calls of the example before, to repeat them.
        """
        self._tally.start()
        self._order = np.random.default_rng(order) if order else None
        if keeping:
            self._earlier = [*self._earlier, *self._kept][-EARLIER:]
        self._kept = []

    def cover(self, problem: Problem) -> None:
        """Make a call like any other, whose output is not compared."""
        asked = self._tally.asked
        self.observe(problem, cotangent=problem.cotangent)
        self._tally.asked = asked

    def runs(self, *problems: Problem) -> list[Real]:
        """Call the target on related problems, in any order; return their outputs."""
        order = np.arange(len(problems))
        if self._order is not None:
            order = self._order.permutation(order)
        outputs = {i: self.run(problems[i]) for i in order.tolist()}
        return [outputs[i] for i in range(len(problems))]

    def _repeat(self) -> None:
        """Repeat an earlier call now and then, at another address or at the same.

        The output must have the same bits, or at least be right: how many bits may
        differ is what `determinism` says. An entry that was wrong before is told by
        the check of that call, whichever bits it has now.
        """
        order = self._order
        if order is None or not self._earlier or order.random() > REPEATED:
            return
        problem, output = self._earlier[order.integers(len(self._earlier))]
        elsewhere = "offset" in problem.scope.styles and order.random() < HALF
        memory = "offset" if elsewhere else "contiguous"
        reply = self._call(problem, _call_of(problem, memory=memory))
        if np.array_equal(well_formed(reply, problem), output):
            return
        expected, got = problem.solve(), well_formed(reply, problem)
        seen = compared(got, expected, problem.scope.output_dtype)
        before = compared(output, expected, problem.scope.output_dtype)
        message = "a call with the inputs of an earlier one gave another output"
        fine = seen.fine | ~before.fine
        self._judge(fine, seen.ratio, got, expected, problem, message)

    def leave_out(self, configurations: Sequence[str]) -> None:
        """Count configurations that the device cannot hold."""
        self._tally.refused.update(configurations)

    def observe(self, problem: Problem, **options: Any) -> Reply:
        """Call the target and return its reply, well-formed or not.

        `options` are fields of `Call` other than the inputs.
        """
        self._repeat()
        self._tally.asked += 1
        return self._call(problem, _call_of(problem, **options))

    def _call(self, problem: Problem, call: Call) -> Reply:
        try:
            return self._reply(problem, call)
        except TargetRaised as raised:
            message = f"the target raised {raised}"
            deviation = _without_numbers(str(raised))
            raise Violation(message, problem, deviation=deviation) from None

    def _reply(self, problem: Problem, call: Call) -> Reply:
        """Call the target; what it raises is raised."""
        self._tally.problem = problem
        self._tally.calls.append(call)
        self._tally.outputs.append(None)
        reply = self._target.call(call)
        self._tally.outputs[-1] = reply.output
        self._alone = not reply.collective
        if reply.out_of_bounds and OUT_OF_BOUNDS not in self._tally.reported:
            raise Violation(reply.out_of_bounds[0], problem, deviation=OUT_OF_BOUNDS)
        return reply

    def run(self, problem: Problem, *, cuts: Any = (), **options: Any) -> Real:
        """Call the target and return a well-formed output, in float64."""
        reply = self.observe(problem, cuts=tuple(cuts), options=options)
        output = well_formed(reply, problem)
        plain = not cuts and not options
        if plain and provable(problem) and np.isfinite(output).all():
            self._kept.append((problem, output))
        return output

    def split(self, problem: Problem, cuts: Any) -> Reply:
        """Call the target segment by segment, handing over its state."""
        reply = self.observe(problem, cuts=tuple(cuts), wants_state=True)
        well_formed(reply, problem)
        if not reply.state_kind:
            reason = "it returned no state besides its output"
            raise DoesNotApply(skipped(reason, "return a state with the output"))
        return reply

    def states(self, problem: Problem) -> list[Real]:
        """Call the target and return its final state: memory, then normalizer."""
        reply = self.split(problem, ())
        if reply.states is None:
            state = _state_of(problem)
            reason = f"its state, a {reply.state_kind}, is not {state}"
            raise DoesNotApply(skipped(reason, f"return as its state {state}"))
        return [in_float64(x) for x in reply.states]

    def gradients(
        self,
        problem: Problem,
        expected: Mapping[str, Bounded] | None = None,
        cuts: Any = (),
        segments: Any = (),
    ) -> dict[str, Real]:
        """Return the target's gradients for the cotangent of the problem.

        The gradient of an input without tokens is the sum over all calls. It is left
        out where each call rounds its part to a dtype narrower than the accumulator.
        """
        reply = self.observe(
            problem, cotangent=problem.cotangent, cuts=tuple(cuts), segments=segments
        )
        well_formed(reply, problem)
        if reply.gradients is None:
            reason = reply.not_differentiable
            if problem.scope.contract.gradients == "required":
                message = f"it has no gradients: {reason}"
                raise Violation(message, problem)
            raise DoesNotApply(skipped(reason, "declare a `vjp`"))
        names, gradients = tuple(problem.inputs), list(reply.gradients)
        replies = zip(names, reply.gradients, reply.gradient_dtypes, strict=True)
        for i, (name, gradient, dtype) in enumerate(replies):
            x = problem.inputs[name]
            if not dtype:
                if (expected or problem.solve_gradients())[name].output.any():
                    message = f"no gradient reaches the {name}"
                    raise Violation(message, problem)
                gradients[i] = np.zeros(x.shape)  # none is right where it is zero
                continue
            if gradient.shape != x.shape or dtype != problem.scope.dtype:
                message = (
                    f"the gradient of the {name} is {dtype} {gradient.shape}, it must "
                    f"be {problem.scope.dtype} {x.shape} as the {name} is"
                )
                raise Violation(message, problem)
        unproved = _rounded_in_parts(problem, cuts)
        return {
            name: in_float64(gradient)
            for name, gradient in zip(names, gradients, strict=True)
            if name not in unproved
        }

    def refuses(self, problem: Problem) -> bool:
        """Return True if the target raises an exception."""
        self._repeat()
        self._tally.asked += 1
        try:
            self._reply(problem, _call_of(problem))
        except TargetRaised:
            return True
        return False

    def require_within(
        self,
        got: Real,
        expected: Bounded,
        problem: Problem,
        message: str,
        stored: str | None = None,
        axes: str = "",
    ) -> None:
        """Require ``got`` to be the rounding of a number within the bound.

        States and gradients are rounded to the dtype in which they are `stored`;
        gradients have the `axes` of an input.
        """
        dtype = stored or problem.scope.output_dtype
        seen = compared(got, expected, dtype)
        self._count(seen.known)
        fine = seen.fine | self._repeated(got)
        try:
            axes = _output_axes(got) if stored is None else axes
            self._judge(fine, seen.ratio, got, expected, problem, message, axes)
        except Violation as violation:
            if stored is None and violation.index is not None:
                index = violation.index
                violation.allowed = float(seen.low[index]), float(seen.high[index])
            raise
        if expected.sharp is not None:
            low, high = _interval(expected.output, expected.sharp, dtype)
            self._tally.exact &= bool(((low <= got) & (got <= high)).all())

    def require_agreement(
        self, one: Real, other: Real, expected: Bounded, problem: Problem, message: str
    ) -> None:
        """Require two results to differ by no more than two correct kernels can."""
        stored = problem.scope.output_dtype
        low, high = _interval(expected.output, expected.bound, stored)
        self.require_close(one, other, high - low, problem, message)

    def is_right(self, problem: Problem) -> bool:
        """Return True if a plain call gives an output within the bound; count the rest.

        If a plain call already fails, checks of memory and states are not judged: they
        would only repeat that failure.
        """
        output, expected = self.run(problem), problem.solve()
        return self.is_within(output, expected, problem, "value_on_reals")

    def is_within(
        self,
        got: Real,
        expected: Bounded,
        problem: Problem,
        check: str,
        stored: str | None = None,
    ) -> bool:
        """Return True if a result is within the bound; leave the rest to a check.

        It is an output, if no dtype is given that it is `stored` in.
        """
        stored = stored or problem.scope.output_dtype
        low, high = _interval(expected.output, expected.bound, stored)
        fine = (low <= got) & (got <= high) | self._repeated(got)
        right = bool(fine.all())
        if not right:
            self._tally.leave(check)
        return right

    def require_close(
        self, one: Real, other: Real, allowed: Real, problem: Problem, message: str
    ) -> None:
        """Require two results to differ by no more than is allowed."""
        known = np.isfinite(allowed)
        self._count(known)
        with np.errstate(invalid="ignore"):
            difference = abs(one - other)
        ratio = _ratio(difference, allowed)
        agree = (difference <= allowed) | (one == other)
        agree |= ~known & ~np.isnan(one) & ~np.isnan(other)
        agree |= self._repeated(one) | self._repeated(other)
        expected = Bounded(other, allowed)
        axes = _output_axes(one)
        self._judge(agree, ratio, one, expected, problem, message, axes)

    def require_same(
        self, one: Real, other: Real, problem: Problem, message: str
    ) -> None:
        """Require two results to be equal bit by bit.

        The sign of a zero aside, and a NaN is equal to a NaN: that it should be a
        number is what `finite_output` says.
        """
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        ratio = np.where(same, 0.0, np.inf)
        expected = Bounded(other, np.zeros_like(other))
        self._judge(same, ratio, one, expected, problem, message, _output_axes(one))

    def require_finite(self, got: Real, problem: Problem, message: str) -> None:
        """Require finite numbers where the exact result can be stored as one."""
        finite = np.isfinite(got)
        if finite.all():
            return
        expected = problem.solve()
        low, high = _interval(
            expected.output, expected.bound, problem.scope.output_dtype
        )
        beyond = np.where(got > 0, high, low) == got  # an infinity of the same sign
        fine = finite | beyond
        ratio = np.where(fine, 0.0, np.inf)
        self._judge(fine, ratio, got, expected, problem, message, _output_axes(got))

    def _repeated(self, got: Real) -> NDArray[np.bool_]:
        """Return the entries that repeat an earlier finding: they are not finite."""
        repeated = ~np.isfinite(got)
        if repeated.any() and self._tally.repeats(NOT_FINITE):
            return repeated
        return np.zeros_like(repeated)

    def _count(self, known: NDArray[np.bool_]) -> None:
        self._tally.bounded += 1
        self._tally.proved += bool(known.all())

    def _judge(
        self,
        fine: NDArray[np.bool_],
        ratio: Real,
        got: Real,
        expected: Bounded,
        problem: Problem,
        message: str,
        axes: str = "",
    ) -> None:
        # An error within an infinite bound is none.
        self._tally.record(np.where(fine & ~np.isfinite(ratio), 0.0, ratio))
        if fine.all():
            return
        index = tuple(int(i) for i in np.argwhere(~fine)[0])
        shown = ratio[index[:-2]] if ratio.ndim >= 2 else ratio[None]
        ignored = "; no rank called a collective" if self._alone else ""
        number = "" if np.isfinite(got[index]) else f": it is {got[index]}"
        where = _rank_of(problem, self._tally.calls, ~fine, axes)
        raise Violation(
            message + number + where + ignored,
            problem,
            index=index,
            axes=axes,
            got=float(got[index]),
            expected=float(np.broadcast_to(expected.output, got.shape)[index]),
            bound=float(np.broadcast_to(expected.bound, got.shape)[index]),
            ratio=float(ratio[index]),
            errors=tuple(tuple(row) for row in shown.tolist()),
            deviation="" if np.isfinite(got[~fine]).any() else NOT_FINITE,
        )


def _call_of(problem: Problem, **options: Any) -> Call:
    """Return a call with the inputs of a problem, its scale and its sharding."""
    scale, sharding = problem.scale, problem.sharding
    return Call(problem.inputs, scale=scale, sharding=sharding, **options)


def _output_axes(output: Real) -> str:
    """Return the axes of outputs, of which some heads may be left out."""
    return OUTPUT if output.ndim == len(OUTPUT) else ""


def _rank_of(
    problem: Problem, calls: Sequence[Call], wrong: NDArray[np.bool_], axes: str
) -> str:
    """Return the rank and the token there of the first wrong entry, in words."""
    axis = next((k for k, letter in enumerate(axes) if letter in "ts"), None)
    if problem.sharding is None or axis is None:
        return ""
    sharding, cuts = problem.sharding, calls[-1].cuts
    each = max(wrong.shape[axis] // max(problem.length, 1), 1)  # keys of one query
    token = int(np.nonzero(wrong)[axis].min()) // each
    spans = pairwise((0, *cuts, problem.length))
    start, end = next(span for span in spans if token < span[1])
    rank, there = sharding.place(token - start, end - start)
    of_span = f" of span {start}:{end}" if cuts else ""
    return f", first at token {there} of rank {rank} of {sharding.ranks}{of_span}"


def _rounded_in_parts(problem: Problem, cuts: Any) -> set[str]:
    """Return the inputs whose gradients are sums of what several calls round."""
    scope = problem.scope
    several = bool(cuts) or scope.contract.interface == "step" or bool(scope.ranks)
    stored = unit_roundoff(scope.dtype)
    if not several or stored <= scope.contract.precisions(scope.dtype).unit:
        return set()
    return {name for name in problem.inputs if not scope.operator.input(name).per_token}


def well_formed(reply: Reply, problem: Problem) -> Real:
    """Return the output of a reply in float64; require type, shape and dtype."""
    if reply.output is None:
        message = (
            f"the target returned {reply.kind}{reply.place}, not an array of its "
            "library"
        )
        raise Violation(message, problem, deviation="no array of its library")
    if reply.shape != reply.expected_shape:
        message = (
            f"the output{reply.place} has shape {reply.shape}, it must have "
            f"{reply.expected_shape}"
        )
        raise Violation(message, problem, deviation="an output of another shape")
    required, dtype, place = problem.scope.output_dtype, reply.dtype, reply.place
    if len({*reply.dtypes}) > 1:
        rank = next(r for r, other in enumerate(reply.dtypes) if other != required)
        dtype, place = reply.dtypes[rank], f" on rank {rank} of {len(reply.dtypes)}"
    if dtype != required:
        whose = (
            "of the query" if required == problem.scope.dtype else "that is declared"
        )
        message = (
            f"the output{place} has dtype {dtype}, it must have the dtype "
            f"{whose}, {required}"
        )
        raise Violation(message, problem, deviation="an output of another dtype")
    if reply.state_fault:
        form = "a final state of another form"
        raise Violation(reply.state_fault, problem, deviation=form)
    return in_float64(reply.output)


def _without_numbers(raised: str) -> str:
    """Return the text of an exception without its sizes, but with its line.

    Examples
    --------
    >>> _without_numbers("ValueError: 3 is not 4 (kernel.py:12)")
    'ValueError: # is not # (kernel.py:12)'
    """
    said, bracket, place = raised.rpartition(" (")
    return re.sub(r"\d+", "#", said) + bracket + place


def _state_of(problem: Problem) -> str:
    """Return the required form of a state, in words."""
    named = ("a memory", "with a normalizer")
    shapes = (
        ", ".join(("B", "H", *(axis.upper() for axis in axes)))
        for axes in problem.scope.operator.state
    )
    return " ".join(f"{n} ({x})" for n, x in zip(named, shapes, strict=False))


def _interval(output: Real, bound: Real, dtype: str) -> tuple[Real, Real]:
    """Return the least and the greatest result that rounding to `dtype` can give."""
    stored = numpy_dtype(dtype)
    with np.errstate(all="ignore"):
        low = (output - bound).astype(stored).astype(np.float64)
        high = (output + bound).astype(stored).astype(np.float64)
    return low, high


def _ratio(error: Real, allowed: Real) -> Real:
    with np.errstate(all="ignore"):
        ratio = np.where(error == 0, 0.0, error / allowed)
    return np.where(np.isnan(ratio) | (ratio < 0), np.inf, ratio)

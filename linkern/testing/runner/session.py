"""A loaded target whose checks are judged one at a time, in any order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from linkern.testing.checks import Check
from linkern.testing.checks.findings import Tally, Violation
from linkern.testing.diagnosis.behaviours.broken_laws import reported_law
from linkern.testing.diagnosis.diagnose import examine
from linkern.testing.diagnosis.diagnosis import UNEXPLAINED, Diagnosis
from linkern.testing.errors import TargetDied, TargetRaised, UsageError
from linkern.testing.fingerprint import Fingerprint, fingerprint
from linkern.testing.runner.first_call import first_call
from linkern.testing.runner.jobs import MOST_HANGS
from linkern.testing.runner.judging import Judgement, failed, judge, result_of
from linkern.testing.runner.opening import open_target, scope_of, settle
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import command
from linkern.testing.runner.results import CheckResult
from linkern.testing.runner.rounds import Question
from linkern.testing.runner.trials import Death
from linkern.testing.target.clock import Clock
from linkern.testing.target.protocol import Call, in_float64

__all__ = ["Ask", "Session"]

# Times that a wrong call is made in a new process: one that jitters is right by chance.
REPLAYS = 3
# The part of the time of the checks that a diagnosis may take, and the most seconds.
PART, MOST_SECONDS = 0.5, 120.0

Ask = Callable[[Question], Judgement]


class Session:
    """A target after its first call, and what its checks have shown so far.

    Parameters
    ----------
    plan : Plan
        Target and contract.
    clock : Clock, optional
        The time of the run. Default: that of the plan, from now on.

    Attributes
    ----------
    plan : Plan
        The plan with the array library and the dtypes that are judged.
    notes : tuple of str
        What was recognised by name, the library that was inferred, and each dtype that
        the target refuses.

    Raises
    ------
    UsageError
        If the target, the contract or an option cannot be used.
    """

    def __init__(self, plan: Plan, clock: Clock | None = None) -> None:
        self._clock = clock or Clock(plan.seconds)
        self._target = open_target(plan, self._clock)
        try:
            plan, recognised = settle(plan, self._target)
            start = first_call(plan, self._target)
        except BaseException:
            self._target.close()
            raise
        self.plan, self.notes = start.plan, (*recognised, *start.notes)
        self._death = start.death
        self._killed = ""  # the check that reports the death
        self._died_in = set[str]()  # checks on which no further call is spent
        self._hangs = 0
        self._seconds = 0.0
        self._broken: list[str] = []  # dtypes in which there is something to explain
        self._reported: Mapping[str, str] = {}
        self._failures = dict[str, CheckResult]()
        self._repeats = True

    @property
    def alive(self) -> bool:
        """True if the target survived its first call."""
        return self._death is None

    def applies(self, question: Question) -> bool:
        """Return True unless it is known before any call that a check is not judged."""
        plan, check = question.plan, question.check
        if plan.inputs is not None or not self.alive:
            return True
        scopes = (scope_of(plan, self._target, dtype) for dtype in plan.dtypes)
        return any(not (check.unless(x) or plan.leaves_out(check)) for x in scopes)

    def judge(self, question: Question, reported: Mapping[str, str]) -> Judgement:
        """Judge a check that knows what others have `reported`."""
        return judge(question.plan, self._target, question.check, reported)

    def result(self, question: Question, ask: Ask | None = None) -> CheckResult:
        """Return the verdict of a check.

        Parameters
        ----------
        question : Question
            One check of the plan, in one of its rounds.
        ask : callable, optional
            Gives its judgement. Default: it is judged now.

        Raises
        ------
        OutOfTime
            If the time of the run ends before.
        """
        check = question.check
        if self._death is not None:
            judgement = self._died(check, self._death)
        elif self._hangs >= MOST_HANGS:
            message = f"not run: the target did not return {MOST_HANGS} times before"
            judgement = Judgement(result_of(check, "error", Tally(), message))
        else:
            judgement = ask(question) if ask else self.judge(question, self._reported)
            self._reported = judgement.reported
        example = judgement.result.counterexample
        if example is not None and example.died:
            self._died_in.add(check.name)
        self._hangs += judgement.hung
        self._seconds += judgement.result.seconds
        self._broken += judgement.broken
        reason = self.plan.expect_failure.get(check.name)
        in_time = self.plan.seconds is not None
        result = _expected(judgement, reason, in_time=in_time)
        return self._named(question, result)

    def smallest(self, question: Question) -> CheckResult | None:
        """Judge the first check that failed again, for its smallest counterexample.

        None if it ended the process of the target, or does not fail a second time.
        """
        if question.check.name in self._died_in or not self.alive:
            return None
        plan = replace(question.plan, shrink=True)
        result = self.judge(Question(plan, question.check), {}).result
        if result.verdict != "failed":
            return None
        return self._named(question, result)

    def _named(self, question: Question, result: CheckResult) -> CheckResult:
        """Return a result with the command that shows it again; keep a failure."""
        name, plan = question.check.name, question.plan
        # It fails by being kept, where that was expected of it.
        kept = result.verdict == "failed" and name in plan.expect_failure
        named = replace(result, again=command(plan, name, expecting=kept))
        if named.verdict == "failed":
            self._failures[named.name] = named
        return named

    def replayed(self, questions: Sequence[Question]) -> CheckResult | None:
        """Make the wrong call of a counterexample first in a new process, a few times.

        Of several questions that failed, the first whose counterexample says which
        number is right is taken. Its result says if it is wrong again; if it is not, it
        takes all checks to show it. None if nothing could be tried.
        """
        if not self._target.restart():
            return None
        for question in questions:
            result = self._failures.get(question.check.name)
            example = result and result.counterexample
            if not (result and example and example.allowed and example.index):
                continue
            try:
                replies = [self._target.call(example.calls[-1]) for _ in range(REPLAYS)]
            except (TargetDied, TargetRaised, UsageError):
                return None
            formed = (x for x in replies if x.shape == x.expected_shape)
            outputs = [x.output for x in formed if x.output is not None]
            if len(outputs) < REPLAYS:
                return None
            (low, high), entry = example.allowed, tuple(example.index)
            got = [float(in_float64(output)[entry]) for output in outputs]
            self._repeats = not all(low <= x <= high for x in got)
            example = replace(example, repeats=self._repeats)
            again = result.again if self._repeats else command(question.plan)
            return replace(result, counterexample=example, again=again)
        return None

    def _died(self, check: Check, death: Death) -> Judgement:
        """Report a target that did not survive its first call, once."""
        problem, reason = death.problem, death.error.reason
        if self._killed:
            message = f"not run: {self._killed} reports that the target {reason}"
            return Judgement(
                result_of(check, "covered", Tally(), message), covered=True
            )
        self._killed = check.name
        tally = Tally(examples=1, asked=1, problem=problem, calls=[death.call])
        last = Violation(f"the target {reason} on its first call", problem)
        return Judgement(failed(check, tally, last, self._target, died=True))

    @property
    def broken(self) -> tuple[str, ...]:
        """The dtypes in which there is something to explain."""
        return () if self._hangs else tuple(dict.fromkeys(self._broken))

    def diagnosis(self) -> Diagnosis | None:
        """Look for the cause in the dtypes that failed, until one shows it.

        Where none does, what was not measured is said of the first; None if the target
        died in all of them.
        """
        silent: list[Diagnosis] = []
        left = self._clock.left
        if self.plan.seconds is None:
            left = min(PART * self._seconds, MOST_SECONDS)
        for dtype in self.broken:
            try:
                scope = scope_of(self.plan, self._target, dtype)
                diagnosis = examine(
                    self._target,
                    scope,
                    seconds=left,
                    repeats=self._repeats,
                    shown_by=self._calls_of_failures,
                )
            except (TargetDied, TargetRaised):
                continue
            except Exception as error:  # the verdicts stand without their cause
                sentence = f"could not be looked for: the referee failed with {error!r}"
                return Diagnosis("unknown", sentence, float("nan"))
            if diagnosis.name != UNEXPLAINED:
                return diagnosis
            silent.append(diagnosis)
        if not silent:
            return None
        # Some laws break at few sizes, of which no map and no calm problem is.
        named = reported_law([*self._without_numbers()], scope)
        not_measured = silent[0].not_measured
        return replace(named, not_measured=not_measured) if named else silent[0]

    @property
    def _calls_of_failures(self) -> list[tuple[Call, ...]]:
        """The calls of each failed law."""
        examples = (result.counterexample for result in self._failures.values())
        return [example.calls for example in examples if example is not None]

    def _without_numbers(self) -> Iterator[tuple[str, str, str]]:
        """Yield the check, the sentence and the sizes of failures without an error."""
        for result in self._failures.values():
            example = result.counterexample
            if example is not None and example.ratio is None and not example.died:
                yield result.name, result.message, example.input.split(",")[0]

    def fingerprint(self) -> Fingerprint | None:
        """Measure the arithmetic of the target, as far as that is possible."""
        if self._hangs or not self.alive or self.plan.ranks:
            return None
        scope = scope_of(self.plan, self._target, self.plan.dtypes[0])
        try:
            return fingerprint(self._target, scope)
        except (TargetDied, TargetRaised):
            return None  # the checks say what it does instead

    def close(self) -> None:
        """End the process of the target."""
        self._target.close()


def _expected(
    judgement: Judgement, reason: str | None, *, in_time: bool
) -> CheckResult:
    """Turn an expected failure into xfailed, and its absence into a failure.

    A check that is covered by an earlier one may fail for another reason, too. In the
    time of a run a check may get few examples: its failure is then awaited.
    """
    result = judgement.result
    if reason is None:
        return result
    if result.verdict == "failed" or judgement.covered:
        message = f"{result.message} (expected: {reason})"
        return replace(result, verdict="xfailed", message=message)
    if in_time and result.verdict == "passed":
        message = (
            f"expected to fail ({reason}), and it holds in {result.examples} examples"
        )
        return replace(result, verdict="inconclusive", message=message)
    message = (
        f"expected to fail ({reason}), but it is {result.verdict}; "
        "remove the expectation"
    )
    return replace(result, verdict="failed", message=message)

"""Exceptions that end a run or a check early, and the reason why a law is left out."""

from dataclasses import dataclass

__all__ = [
    "INAPPLICABLE",
    "DoesNotApply",
    "Inapplicable",
    "OutOfTime",
    "TargetDied",
    "TargetRaised",
    "UsageError",
    "covered",
    "not_applicable",
    "skipped",
]

# Kinds of reasons, and verdicts of checks that were not judged; the one that weighs
# most comes first: nothing that a target does makes a law hold that is about another
# operator.
INAPPLICABLE = ("not_applicable", "covered", "skipped")


@dataclass(frozen=True)
class Inapplicable:
    """Reason why a law is not judged.

    Parameters
    ----------
    kind : {"not_applicable", "covered", "skipped"}
        The law says nothing of this operator; another check judges it; the target or
        its declarations leave it out.
    reason : str
        The same for people.
    remedies : tuple of str
        What to do, in the imperative, to have a skipped law judged: all of it.
    """

    kind: str
    reason: str
    remedies: tuple[str, ...] = ()


def not_applicable(reason: str) -> Inapplicable:
    """Return the reason why a law says nothing of an operator."""
    return Inapplicable("not_applicable", reason)


def covered(reason: str) -> Inapplicable:
    """Return the reason why a law is left to another check."""
    return Inapplicable("covered", reason)


def skipped(reason: str, *remedies: str) -> Inapplicable:
    """Return the reason why a target leaves a law out, and what would include it."""
    return Inapplicable("skipped", reason, remedies)


class UsageError(Exception):
    """The target, the contract or an option cannot be used: exit code 2, no verdict."""


class TargetRaised(Exception):  # noqa: N818 -- it names what happened, no error of ours
    """The target raised an exception on a valid input."""


class DoesNotApply(BaseException):
    """A law turns out not to be judged, once the target was called.

    Like `TargetDied`, it passes through Hypothesis, which must not repeat it.
    """

    def __init__(self, why: Inapplicable) -> None:
        super().__init__(why.reason)
        self.why = why


class OutOfTime(BaseException):
    """The time of a run is over: it says nothing of the target.

    Like `TargetDied`, it passes through Hypothesis, which must not repeat it.
    """


class TargetDied(BaseException):
    """The target crashed or hung: a failed check that must not be shrunk.

    Deriving from BaseException takes it straight through Hypothesis, which would
    otherwise repeat the crash or the wait a hundred times.
    """

    def __init__(self, reason: str, *, hung: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hung = hung

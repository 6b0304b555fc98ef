"""Exceptions that end a run or a check early."""

__all__ = ["DoesNotApply", "TargetDied", "TargetRaised", "UsageError"]


class UsageError(Exception):
    """The target, the contract or an option cannot be used: exit code 2, no verdict."""


class TargetRaised(Exception):  # noqa: N818 -- it names what happened, no error of ours
    """The target raised an exception on a valid input."""


class DoesNotApply(BaseException):
    """A law does not apply to the target; the message says why.

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

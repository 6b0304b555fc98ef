"""The ways in which judging can end early, and what each says about whom."""

__all__ = ["DoesNotApply", "TargetDied", "TargetRaised", "UsageError"]


class UsageError(Exception):
    """The target, the contract or an option cannot be used: exit code 2, no verdict."""


class TargetRaised(Exception):  # noqa: N818 -- it names what happened, no error of ours
    """The target raised an exception on a valid input."""


class DoesNotApply(BaseException):
    """A law that the target turns out to have nothing to do with, and why.

    Like `TargetDied`, it is not for Hypothesis to repeat.
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

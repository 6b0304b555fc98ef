"""Entry of the catalogue: a kernel, its contract and its known failures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["GRADIENTS", "Entry", "because"]

# The laws that compare gradients with exact ones.
GRADIENTS = ("gradient_value", "gradient_on_random_reals")


@dataclass(frozen=True)
class Entry:
    """One kernel, and how to judge it.

    Parameters
    ----------
    package : str
        Import name of the package that must be installed.
    target : str
        ``package.module:attribute``.
    op : str
        Operator it claims to be.
    framework : str
        Array library of the inputs.
    declare : mapping
        Its contract.
    expect_failure : mapping
        Checks that it is known to fail, and why.
    options : mapping
        Keyword arguments of every call.
    dtypes : tuple of str
        Dtypes of the inputs.
    function : str
        ``package.module:attribute`` of the published function, if the target is an
        adapter.
    interpret : bool
        True for Triton kernels, which are interpreted on a CPU.
    seconds : float, optional
        Time in which it is judged. Default: all examples of the profile.
    checks : tuple of str
        The only checks that judge it; empty for all.
    require : tuple of str
        The checks that are enough for a verdict within that time.
    """

    package: str
    target: str
    op: str
    framework: str = "torch"
    declare: Mapping[str, str] = field(default_factory=dict)
    expect_failure: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "float64")
    function: str = ""
    interpret: bool = False
    seconds: float | None = None
    checks: tuple[str, ...] = ()
    require: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``package.module:attribute`` of the published function itself."""
        return self.function or self.target

    @property
    def needs(self) -> tuple[str, ...]:
        """Import names of the packages without which it cannot be judged."""
        return (self.package, *("triton",) * self.interpret)


def because(reason: str, *checks: str) -> dict[str, str]:
    """Return these laws, each expected to fail for one reason."""
    return dict.fromkeys(checks, reason)

"""A plan: everything that a run depends on, checked before anything is run."""

import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from secrets import randbits
from typing import Any

from linkern.testing.checks import CHECKS, SMOKE, Check
from linkern.testing.errors import Inapplicable, UsageError, skipped
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import nearest
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.frameworks import FRAMEWORKS
from linkern.testing.target.protocol import MEMORY_LIMIT

__all__ = ["DEFAULT_DTYPES", "PROFILES", "SMOKE_LEAVES_IT_OUT", "Plan", "fresh_seed"]

# Dtypes of a plan that names none, as far as the target takes them.
DEFAULT_DTYPES = ("float32", "float64")
# The same of an interpreted target.
INTERPRETED_DTYPES = ("float32",)
# Those of a target over ranks in these profiles, whose calls are slow.
DTYPES_OVER_RANKS, BRIEF = ("float32",), ("smoke", "quick")

# Examples per check and dtype.
PROFILES = {"smoke": 8, "quick": 25, "default": 90, "deep": 1500}
SMOKE_LEAVES_IT_OUT = skipped(
    "the profile smoke leaves it out", "take `--profile quick`"
)
# Each has a target of its own, which may allocate memory up to its limit.
MOST_PROCESSES = 8


def fresh_seed() -> int:
    """Return 64 bits of the operating system, which no kernel can know in advance."""
    return randbits(64)


@dataclass(frozen=True)
class Plan:
    """Everything that a run depends on.

    Parameters
    ----------
    target : str
        ``package.module:attribute`` or ``path/to/file.py:attribute``.
    op : str
        Operator the target claims to be.
    contract : Contract
        Its declarations.
    framework : str or None
        Array library of the inputs; None to infer it from the target.
    device : str
        Device of the inputs.
    dtypes : tuple of str
        Dtypes of the inputs; empty for those of `DEFAULT_DTYPES` that the target takes.
    profile, seed : str, int
        Number of examples, and their seed: by default a fresh one; "smoke" has few
        laws, too.
    checks : tuple of str
        Names of the checks to run; empty for all.
    expect_failure : mapping of str to str
        Checks that must fail, with the reason. One that did not fail within `seconds`
        is inconclusive: it had few examples.
    timeout : float, optional
        Seconds that one call may take. Default: 20, or half of `seconds`; 120 if it is
        interpreted, with JAX, or on a device, where first calls compile.
    memory_limit : float
        GiB that the target may allocate; in a child process only.
    in_process : bool
        Call the target in this process.
    sandbox : bool
        Run the process of the target by bubblewrap: without network, other processes
        and files that it could write to.
    shrink : bool
        Look for the smallest counterexample, not just for one.
    function : callable, optional
        The target itself; implies `in_process`.
    options : mapping
        Keyword arguments of every call.
    command : str, optional
        A program to run instead of a function to call.
    diagnose : bool
        Look for the cause of a failure.
    fingerprint : bool
        Measure the arithmetic of the target too.
    fail_fast : bool
        Leave out the checks after the first one that fails.
    jobs : int, optional
        Processes that run checks, each with a target of its own. Default: one for each
        core, up to eight; one for a target in this process or on a device.
    seconds : float, optional
        The time of the whole run: every check gets few examples before any gets many,
        and a failure ends it. Default: all examples of the profile.
    require : tuple of str
        Names of checks, or their number, without which nothing is concluded: checks
        that were left out, skipped or not reached in time do not count. What the time
        left out besides does not matter then.
    inputs : str, optional
        A safetensors file with the inputs of one call, on which laws are judged first.
    read_defaults : bool
        Declare what the defaults of known switches of the target say.
    interpret : bool
        Run the Triton kernels of the target by Triton's interpreter, on a CPU; the
        dtype is float32 unless `dtypes` names others.
    ranks : tuple of int
        The numbers of ranks that a target runs on: a process for each of
        torch.distributed, a device for each of `jax.shard_map`; empty for a target on
        one.
    """

    target: str
    op: str
    contract: Contract = field(default_factory=Contract)
    framework: str | None = None
    device: str = "cpu"
    dtypes: tuple[str, ...] = ()
    profile: str = "default"
    seed: int = field(default_factory=fresh_seed)
    checks: tuple[str, ...] = ()
    expect_failure: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    memory_limit: float = MEMORY_LIMIT
    in_process: bool = False
    shrink: bool = True
    function: Callable[..., Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None
    diagnose: bool = True
    fingerprint: bool = False
    fail_fast: bool = False
    jobs: int | None = None
    seconds: float | None = None
    require: tuple[str, ...] = ()
    inputs: str | None = None
    sandbox: bool = False
    read_defaults: bool = True
    interpret: bool = False
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse unknown names before anything is run."""
        for what, got, known in (
            ("operator", (self.op,), OPERATORS),
            ("framework", (self.framework or "numpy",), FRAMEWORKS),
            ("profile", (self.profile,), PROFILES),
            ("check", (*self.checks, *self.expect_failure, *self._required), CHECKS),
        ):
            for name in got:
                if name not in known:
                    raise UsageError(nearest(what, name, known))
        self.contract.require_of(OPERATORS[self.op])
        called = self.in_process or self.function is not None
        if self.command is not None and (
            called or self.framework not in (None, "numpy")
        ):
            msg = (
                "a command is a process that reads files: no framework, no in-process."
            )
            raise UsageError(msg)
        if self.jobs is not None and self.jobs < 1:
            msg = f"`jobs` must be a positive number of processes, got {self.jobs}."
            raise UsageError(msg)
        if (self.jobs or 1) > 1 and (self.in_process or self.function is not None):
            msg = (
                f"`jobs` must be 1 for a target in this process, got {self.jobs}; "
                'name the target, "package.module:function", to use more.'
            )
            raise UsageError(msg)
        if self.sandbox and called:
            msg = (
                "`sandbox` is for a process of the target's own; name the target, "
                '"package.module:function", and leave `in_process` out.'
            )
            raise UsageError(msg)
        if self.interpret:
            self._require_interpretable(called=called)
        if self.ranks:
            self._require_ranks(called=called)
        self._require_limits()
        if self.seconds is not None:
            self._require_judgeable_in_time(self.seconds)
        if self.require:
            self._require_reachable()

    def _require_interpretable(self, *, called: bool) -> None:
        """Refuse what cannot be interpreted, and settle the dtype."""
        if called or self.command is not None:
            msg = (
                "`interpret` must be set before Triton is imported, so it needs a "
                'process of its own: name the target, "package.module:function", and '
                "leave `in_process` out."
            )
            raise UsageError(msg)
        if self.framework not in (None, "torch") or self.device != "cpu":
            msg = (
                "`interpret` runs Triton kernels on CPU tensors of torch; got the "
                f"framework {self.framework or 'torch'} on {self.device}."
            )
            raise UsageError(msg)
        # Most kernels accumulate in float32: they are not meant for float64.
        object.__setattr__(self, "dtypes", self.dtypes or INTERPRETED_DTYPES)

    def _require_ranks(self, *, called: bool) -> None:
        """Refuse what cannot be judged over ranks, and settle the library."""
        object.__setattr__(self, "ranks", tuple(sorted({*self.ranks})))
        if self.profile in BRIEF:
            object.__setattr__(self, "dtypes", self.dtypes or DTYPES_OVER_RANKS)
        if self.ranks[0] < 2:
            msg = f"`ranks` must be numbers of at least 2, got {self.ranks[0]}."
            raise UsageError(msg)
        operator = OPERATORS[self.op]
        if not operator.affine:
            msg = (
                f"`ranks` needs spans of tokens that are affine maps of the state, and "
                f"those of {operator.name} are not; judge it on one rank."
            )
            raise UsageError(msg)
        for what, refused in (
            ("a program", self.command is not None),
            ("a target in this process: name it", called),
            ("a sandbox", self.sandbox),
            ("the inputs of a file", self.inputs is not None),
            ("`interface=step`", self.contract.interface == "step"),
            (f"the device {self.device}", self.device not in ("cpu", "cuda")),
            ("JAX on a device", (self.framework, self.device) == ("jax", "cuda")),
            (
                f"the framework {self.framework}",
                self.framework not in (None, "torch", "jax"),
            ),
        ):
            if refused:
                msg = (
                    "`ranks` is for functions of torch.distributed, each rank a "
                    "process on the CPU or on a GPU of its own (`--device cuda`), and "
                    f"of JAX, each rank a device of the CPU, so not for {what}."
                )
                raise UsageError(msg)
        object.__setattr__(self, "framework", self.framework or "torch")

    def _require_limits(self) -> None:
        """Refuse limits under which no call ends."""
        if self.timeout is not None and not self.timeout > 0:
            msg = f"the timeout must be positive, got {self.timeout:g}."
            raise UsageError(msg)
        if not (self.memory_limit > 0 and math.isfinite(self.memory_limit)):
            msg = (
                "the memory limit must be a positive number of GiB, got "
                f"{self.memory_limit:g}."
            )
            raise UsageError(msg)

    def _require_judgeable_in_time(self, seconds: float) -> None:
        """Refuse a time in which nothing can be judged."""
        if not (seconds > 0 and math.isfinite(seconds)):
            msg = f"`seconds` must be a positive number, got {seconds:g}."
            raise UsageError(msg)

    def _require_reachable(self) -> None:
        """Refuse to require what the plan leaves out."""
        names = {check.name for check in self.chosen() if not self.leaves_out(check)}
        left_out = [name for name in self._required if name not in names]
        if left_out:
            msg = f"`require` names {', '.join(left_out)}, which this plan leaves out."
            raise UsageError(msg)
        if self._least > len(names):
            msg = (
                f"`require` asks for {self._least} checks, and this plan has "
                f"{len(names)}; name fewer."
            )
            raise UsageError(msg)

    @property
    def _required(self) -> list[str]:
        """Names of the checks that are required."""
        return [name for name in self.require if not name.isdecimal()]

    @property
    def _least(self) -> int:
        """The number of checks that are required."""
        return max((int(n) for n in self.require if n.isdecimal()), default=0)

    def lacking(self, judged: Collection[str]) -> tuple[str, ...]:
        """Return what is required and is not among the checks that were judged.

        Examples
        --------
        >>> asked = ("causality", "decoding", "3")
        >>> plan = Plan("kernels.py:kernel", "linear_attention", require=asked)
        >>> plan.lacking({"causality", "ranges"})
        ('decoding', '1 more check')
        """
        missing = self._least - len(judged)
        number = (f"{missing} more check{'s' * (missing > 1)}",) * (missing > 0)
        return (*(n for n in self._required if n not in judged), *number)

    def chosen(self) -> list[Check]:
        """Return the checks to run, in their order."""
        if self.checks:
            return [c for c in CHECKS.values() if c.name in self.checks]
        modes = {"interpreted": self.interpret, "cuda": self.on_cuda}
        return [
            c
            for c in CHECKS.values()
            if not c.shown_by or any(modes[mode] for mode in c.shown_by)
        ]

    def leaves_out(self, check: Check) -> Inapplicable | None:
        """Return the reason why the profile leaves out a check, or None."""
        if self.profile != "smoke" or self.checks or check.name in SMOKE:
            return None
        return SMOKE_LEAVES_IT_OUT

    @property
    def on_cuda(self) -> bool:
        """True if the inputs are on a CUDA device."""
        return self.device.partition(":")[0] == "cuda"

    @property
    def processes(self) -> int:
        """The number of processes that run checks."""
        if self.jobs is not None:
            return self.jobs
        if self.in_process or self.function is not None or self.device != "cpu":
            return 1  # two targets at once would share one device, and its memory
        return min(MOST_PROCESSES, max(1, _cores() // max(self.ranks, default=1)))


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

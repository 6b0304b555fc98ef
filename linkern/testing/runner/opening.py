"""Opening of the target of a plan, and the context of its problems."""

import math
import shlex
from dataclasses import replace

from linkern.testing.errors import UsageError
from linkern.testing.problems.context import Scope
from linkern.testing.problems.shapes import INTERPRETED
from linkern.testing.problems.workload import read_workload
from linkern.testing.runner.plan import Plan
from linkern.testing.spec.declarations import nearest
from linkern.testing.spec.dialect import settled
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.clock import Clock, Timed
from linkern.testing.target.command import CommandTarget
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.process import LOAD_TIMEOUT, ChildProcess, InProcess, Target
from linkern.testing.target.protocol import TargetConfig
from linkern.testing.target.ranks.over_ranks import OverRanks
from linkern.testing.target.sandbox import Sandbox, paths_in

__all__ = ["INTERPRETED_LENGTH", "config_of", "open_target", "scope_of", "settle"]

# The longest sequence of an interpreted target that declares no other: a tail after a
# chunk of 128, and after two of 64; over ranks, after one of 64 on each.
INTERPRETED_LENGTH = 130
MESH_WORKER = "linkern.testing.target.ranks.mesh_worker"
# Seconds that one call may take, where a plan does not say; and one that is
# interpreted, or compiles first.
TIMEOUT, LONG_TIMEOUT = 20.0, 120.0


def config_of(plan: Plan) -> TargetConfig:
    """Return the name of the target of a plan, and how it is called."""
    contract = plan.contract
    return TargetConfig(
        plan.target,
        plan.framework,
        plan.device,
        layout=contract.layout,
        interface=contract.interface,
        vjp=contract.vjp,
        scale=contract.scale,
        state_layout=contract.state_layout,
        takes_state=contract.takes_state is not False,
        cu_seqlens_dtype=contract.cu_seqlens_dtype,
        op=OPERATORS[plan.op].name,
        decay_form=contract.decay_form,
        gate_parameters=contract.gate_parameters,
        options=plan.options,
        memory_limit=plan.memory_limit,
        interpret=plan.interpret,
        ranks=plan.ranks,
        ranks_order=contract.ranks_order,
        ranks_initial=contract.ranks_initial,
        ranks_final=contract.ranks_final,
        ranks_cu_seqlens=contract.ranks_cu_seqlens,
    )


def open_target(plan: Plan, clock: Clock | None = None) -> Target:
    """Load the target of a plan, in a child process unless told otherwise.

    Parameters
    ----------
    plan : Plan
        Target and contract.
    clock : Clock, optional
        The time of the run: loading and calls end with it.

    Raises
    ------
    UsageError
        If the target, the contract or an option cannot be used.
    """
    workload = None
    if plan.inputs is not None:  # refused before anything of the target runs
        workload = read_workload(plan.inputs, plan.op, plan.contract)
    clock = clock or Clock()
    target = Timed(_loaded(plan, clock), clock)
    library = target.opened.library
    try:
        of_inputs = () if workload is None else (workload.dtype,)
        for dtype in (*plan.dtypes, *of_inputs):
            if dtype not in library.dtypes:
                what = f"dtype for {library.name}"
                raise UsageError(nearest(what, dtype, library.dtypes))
            numpy_dtype(dtype)
    except UsageError:
        target.close()
        raise
    return target


def settle(plan: Plan, target: Target) -> tuple[Plan, tuple[str, ...]]:
    """Return a plan that agrees with the switches of its target, and notes on them.

    The target is opened again if it is called in another way now. Under a plan that
    does not read defaults, a target says nothing of itself.
    """
    interface, contract = target.interface, plan.contract
    defaults = interface.switches
    if not plan.read_defaults:
        defaults = dict.fromkeys(defaults)
    operator = OPERATORS[plan.op]
    agreed = settled(contract, plan.options, defaults, interface.needed, operator)
    if not agreed.notes:
        return plan, ()
    plan = replace(plan, contract=agreed.contract, options=agreed.options)
    target.reopen(config_of(plan))
    return plan, agreed.notes


def _loaded(plan: Plan, clock: Clock) -> Target:
    config, contract = config_of(plan), plan.contract
    sandbox = None
    if plan.sandbox:
        words = shlex.split(plan.command or "") or [plan.target.rpartition(":")[0]]
        sandbox = Sandbox(paths_in(words), device=plan.device)
    timeout = _seconds_of_a_call(plan)
    if plan.command is not None:
        return CommandTarget(
            plan.command,
            config,
            timeout,
            takes_state=bool(contract.takes_state),
            differentiable=contract.gradients == "required",
            sandbox=sandbox,
        )
    if plan.in_process or plan.function is not None:
        return InProcess(config, plan.function)
    load_timeout = min(LOAD_TIMEOUT, clock.left)
    if plan.ranks and plan.framework == "jax":
        return ChildProcess(config, timeout, load_timeout, worker=MESH_WORKER)
    if plan.ranks:
        return OverRanks(config, timeout, load_timeout)
    return ChildProcess(config, timeout, load_timeout, sandbox)


def _seconds_of_a_call(plan: Plan) -> float:
    """Return after how many seconds a call is taken for one that hangs."""
    if plan.timeout is not None:
        return plan.timeout
    if plan.interpret or plan.device != "cpu" or plan.framework == "jax":
        return LONG_TIMEOUT
    # What hangs is seen to do so within the time of a run.
    return min(TIMEOUT, (plan.seconds or math.inf) / 2)


def scope_of(plan: Plan, target: Target, dtype: str) -> Scope:
    """Return the context of all problems of a plan, in one dtype."""
    library = target.opened.library
    contract = plan.contract
    if plan.interpret and contract.max_length is None:
        over_ranks = INTERPRETED * max(plan.ranks, default=0)
        most = max(INTERPRETED_LENGTH, over_ranks)
        contract = replace(contract, max_length=most)
    if target.interface.context:  # fla-core makes it of equal shards
        contract = replace(contract, ranks_even=True, ranks_empty=False)
    if plan.ranks:
        contract = contract.over(plan.ranks, alike=plan.framework == "jax")
    return Scope(
        OPERATORS[plan.op],
        contract,
        dtype,
        interface=target.interface,
        fixed=frozenset(plan.options),
        few_shapes=library.compiles,
        styles=() if plan.command else library.styles,
        differentiates=library.differentiates,
        seed=plan.seed,
        interpreted=plan.interpret,
        on_cuda=library.on_cuda if plan.on_cuda else (),
        ranks=plan.ranks,
    )

"""Opening of the target of a plan, and the context of its problems."""

from linkern.testing.errors import UsageError
from linkern.testing.problems.context import Scope
from linkern.testing.runner.plan import Plan
from linkern.testing.spec.declarations import nearest
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.command import CommandTarget
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.process import ChildProcess, InProcess, Target
from linkern.testing.target.protocol import TargetConfig

__all__ = ["config_of", "open_target", "scope_of"]


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
        cu_seqlens_dtype=contract.cu_seqlens_dtype,
        op=OPERATORS[plan.op].name,
        options=plan.options,
        memory_limit=plan.memory_limit,
    )


def open_target(plan: Plan) -> Target:
    """Load the target of a plan, in a child process unless told otherwise.

    Raises
    ------
    UsageError
        If the target, the contract or an option cannot be used.
    """
    target = _loaded(plan)
    library = target.opened.library
    try:
        for dtype in plan.dtypes:
            if dtype not in library.dtypes:
                what = f"dtype for {library.name}"
                raise UsageError(nearest(what, dtype, library.dtypes))
            numpy_dtype(dtype)
    except UsageError:
        target.close()
        raise
    return target


def _loaded(plan: Plan) -> Target:
    config, contract = config_of(plan), plan.contract
    if plan.command is not None:
        return CommandTarget(
            plan.command,
            config,
            plan.timeout,
            takes_state=contract.takes_state,
            differentiable=contract.gradients == "required",
        )
    if plan.in_process or plan.function is not None:
        return InProcess(config, plan.function)
    return ChildProcess(config, plan.timeout)


def scope_of(plan: Plan, target: Target, dtype: str) -> Scope:
    """Return the context of all problems of a plan, in one dtype."""
    library = target.opened.library
    return Scope(
        OPERATORS[plan.op],
        plan.contract,
        dtype,
        interface=target.interface,
        fixed=frozenset(plan.options),
        few_shapes=library.compiles,
        styles=() if plan.command else library.styles,
        differentiates=library.differentiates,
        seed=plan.seed,
    )

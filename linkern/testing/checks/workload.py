"""Laws on the inputs of a user: the same laws, on inputs that nothing draws."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.registry import CHECKS, Check
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.workload import Part, Workload, parts

__all__ = ["judged_part", "laws_of", "on_workload"]

Problems = st.SearchStrategy[Problem]
Draw = Callable[[Problems], Problems]


def _value(target: CheckedTarget, problem: Problem) -> None:
    """Compare the output with the exact one, in the parts that can be computed."""
    output = target.run(problem)
    message = "the error exceeds the proved bound on the given inputs"
    for part in parts(problem):
        exact = part.problem.solve()
        target.require_within(output[part.where], exact, part.problem, message)


def _as_it_is(problems: Problems) -> Problems:
    return problems


def _with_head(problems: Problems) -> Problems:
    return draws.with_choice(problems, head=(0, 1, 2))


# The laws that need no exact result of the whole, and what they draw besides inputs.
_VIEWS: dict[str, Draw] = {
    "shape_and_dtype": _as_it_is,
    "value_on_reals": _as_it_is,
    "causality": draws.with_cut,
    "heads_independent": _with_head,
    "inputs_untouched": draws.with_cuts,
    "determinism": _as_it_is,
    "leaves_no_trace": _as_it_is,
}
# Those that compare with exact results of the whole, if that is what is computed.
_WHOLE: dict[str, Draw] = {
    "prefix": draws.with_cut,
    "state_split": draws.with_cuts,
    "decoding": draws.with_cuts,
    "state_value": _as_it_is,
}
_GRADIENTS: dict[str, Draw] = {"gradient_value": _as_it_is}


def laws_of(workload: Workload, scope: Scope) -> dict[str, Draw]:
    """Return the laws that are judged on some inputs, and what each draws besides."""
    problem = workload.problem(scope)
    whole = _is_whole(problem, [*parts(problem)])
    gradients = _GRADIENTS if workload.cotangent is not None else {}
    laws = _VIEWS | (_WHOLE | gradients if whole else {})
    return {name: laws[name] for name in CHECKS if name in laws}


def on_workload(check: Check, workload: Workload, scope: Scope) -> Check:
    """Return a check that asks its law on some inputs, in few examples."""
    problems = st.builds(lambda: workload.problem(scope))
    drawn = laws_of(workload, scope)[check.name](problems)
    law = _value if check.name == "value_on_reals" else check.law
    judged = replace(check, judges=lambda _: True, problems=lambda _: drawn)
    return replace(judged, law=law, share=0.0)


def judged_part(workload: Workload, scope: Scope) -> str:
    """Return which outputs are compared with exact ones, for people."""
    problem = workload.problem(scope)
    judged = [*parts(problem)]
    if _is_whole(problem, judged):
        return f"all outputs on {workload.name} are compared with exact ones"
    tokens = judged[0].problem.length
    heads = sum(part.problem.sizes["g"] for part in judged)
    total = problem.sizes["g"] * problem.sizes["b"]
    return (
        f"of the outputs on {workload.name}, the first {tokens} of {problem.length} "
        f"tokens in {heads} of {total} heads are compared with exact ones"
    )


def _is_whole(problem: Problem, judged: list[Part]) -> bool:
    entries = sum(part.problem.value.size for part in judged)
    return entries == problem.value.size

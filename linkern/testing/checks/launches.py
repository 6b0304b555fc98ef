"""Laws of launches on a CUDA device: the stream that they wait on, captured graphs."""

import numpy as np

from linkern.testing.checks.assertions import CheckedTarget, well_formed
from linkern.testing.checks.registry import check, no_side_stream, not_captured
from linkern.testing.problems.mixture import any_problem, provable
from linkern.testing.problems.problem import Problem

__all__ = ["current_stream", "graph_replay"]


@check(
    "a call on another stream waits for what made its inputs there",
    problems=any_problem,
    judges=provable,
    unless=no_side_stream,
    share=0.2,
    in_outputs=False,
    over_ranks=False,
    relation=True,
    shown_by=("cuda",),
)
def current_stream(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: launches on the default stream, scratch memory of another stream.

    Fix: Launch every kernel, copy and fill on the current stream of the library: in C++
    by `at::cuda::getCurrentCUDAStream()`, never as `<<<grid, block>>>` alone. A stream
    of the kernel's own must wait for the current one, which must wait for it.
    """
    # What compiles and chooses configurations takes longer than the stream pauses.
    if not target.is_right(problem):
        return
    output = well_formed(target.observe(problem, side_stream=True), problem)
    message = "the output is wrong on another stream, behind what makes the inputs"
    target.require_within(output, problem.solve(), problem, message)


@check(
    "a call that was captured as a CUDA graph gives, replayed on other inputs, the "
    "outputs of these",
    problems=any_problem,
    judges=provable,
    unless=not_captured,
    share=0.2,
    in_outputs=False,
    over_ranks=False,
    relation=True,
    shown_by=("cuda",),
)
def graph_replay(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: numbers read on the host, which a graph keeps as they were captured.

    Fix: Leave all that depends on numbers to kernels: `item()`, branches on values and
    copies from the host happen once, at the capture. Grids may depend on shapes alone,
    and what is kept between calls is kept in the graph.
    """
    if not target.is_right(problem):
        return
    earlier = {name: np.flip(x) for name, x in problem.inputs.items()}
    output = well_formed(target.observe(problem, captured=earlier), problem)
    message = "the output of a replayed graph is not that of its present inputs"
    target.require_within(output, problem.solve(), problem, message)

"""Verifiers: a taskset of operators whose reward is the score of the kernel written.

taskset = KernelTaskset(KernelTasksetConfig(ops=("gla", "kda")))
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

from linkern.testing.grading.single import grade
from linkern.testing.integrations.sources import code_in, written
from linkern.testing.spec.operators import OPERATORS

__all__ = ["KernelData", "KernelTask", "KernelTaskset", "KernelTasksetConfig"]

_PROMPT = """\
Write a Python function `kernel({names})` for {framework} arrays.

It computes, causally where nothing else is said: {summary}
Arrays have the axes {axes}; B is the batch, H and G are heads, T is time.
Return the output (B, G, T, V) in the dtype of the value. Answer with one block of code.
"""


class KernelData(vf.TaskData):  # type: ignore[misc]  # the package has no types
    """One operator to write a kernel for."""

    op: str
    framework: str = "torch"


class KernelTaskConfig(vf.TaskConfig):  # type: ignore[misc]
    """Budget of one verdict, and the last round of its checks."""

    seconds: float = 20.0
    profile: str = "default"


class KernelTask(vf.Task[KernelData, vf.State, KernelTaskConfig]):  # type: ignore[misc]
    """A kernel in the last reply, judged by the laws of its operator."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def score_of_kernel(self, trace: vf.Trace) -> float:
        """Return the score of the kernel in the last reply, between 0 and 1."""
        result = await asyncio.to_thread(self._grade, trace.last_reply)
        trace.info["linkern"] = result
        return float(result["score"])

    def _grade(self, reply: str) -> dict[str, Any]:
        with written({"candidate.py": code_in(reply)}, "kernel") as target:
            result = grade(
                target,
                op=self.data.op,
                seconds=self.config.seconds,
                profile=self.config.profile,
                framework=self.data.framework,
            )
        return result.to_dict()


class KernelTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Operators of a taskset; all of them if none is named."""

    ops: tuple[str, ...] = ()
    framework: str = "torch"
    task: KernelTaskConfig = KernelTaskConfig()


class KernelTaskset(vf.Taskset[KernelTask, KernelTasksetConfig]):  # type: ignore[misc]
    """One task for each operator."""

    def load(self) -> Iterator[KernelTask]:
        """Yield the tasks."""
        for op in self.config.ops or OPERATORS:
            operator, framework = OPERATORS[op], self.config.framework
            axes = (f"{x.name} ({', '.join(x.axes.upper())})" for x in operator.inputs)
            prompt = _PROMPT.format(
                names=", ".join(operator.names),
                framework=framework,
                summary=operator.summary,
                axes=", ".join(axes),
            )
            data = KernelData(op=op, framework=framework, prompt=prompt, name=op)
            yield KernelTask(data, self.config.task)

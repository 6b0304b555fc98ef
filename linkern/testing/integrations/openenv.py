"""OpenEnv: a rubric whose reward is the score of a kernel.

rubric = KernelRubric("gated_delta_rule", entry="kernel", seconds=20)
reward = rubric(action, observation)    # 0 to 1; `rubric.grade` says why
"""

from typing import Any

from openenv.core.rubrics import Rubric

from linkern.testing.grading.single import grade
from linkern.testing.integrations.sources import code_in, written
from linkern.testing.report.grade import Grade

__all__ = ["KernelRubric"]


class KernelRubric(Rubric):  # type: ignore[misc]  # the package has no types
    """Reward of an action that holds the source of a kernel.

    Parameters
    ----------
    op : str
        Operator that the kernel must be: a key of `linkern.testing.OPERATORS`.
    entry : str
        Name of the function in the source.
    seconds : float
        Budget of one verdict.
    source : str
        Attribute of the action that holds the source, or a reply with a block of code.
    **options
        Further arguments of `linkern.testing.grade`.

    Attributes
    ----------
    grade : Grade or None
        The last grade: verdict, cause, counterexample.
    """

    def __init__(
        self,
        op: str,
        *,
        entry: str = "kernel",
        seconds: float = 20.0,
        source: str = "code",
        **options: Any,
    ) -> None:
        super().__init__()
        self.op, self.entry, self.seconds = op, entry, seconds
        self.source, self.options = source, options
        self.grade: Grade | None = None

    def forward(self, action: Any, observation: Any) -> float:
        """Return the score of the kernel in an action, between 0 and 1."""
        del observation
        files = {"candidate.py": code_in(str(getattr(action, self.source)))}
        with written(files, self.entry) as target:
            self.grade = grade(target, op=self.op, seconds=self.seconds, **self.options)
        return self.grade.score

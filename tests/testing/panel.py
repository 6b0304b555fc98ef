"""Judging several kernels at once: what is drawn and solved for one serves all.

Inputs follow from the check, the dtype and the seed alone, so kernels of one interface
meet the same examples whether they are judged one by one or together.
"""

from dataclasses import replace
from itertools import groupby

from linkern.testing import CHECKS, Plan, run
from linkern.testing.checks.findings import Violation
from linkern.testing.errors import DoesNotApply
from linkern.testing.runner import opening, session
from linkern.testing.runner.loop import CheckFinished

__all__ = ["panels", "verdict_on_all"]


class Panel:
    """Targets of one interface, each in a process of its own; one of them is called."""

    def __init__(self, targets):
        self.targets = targets
        self.called = next(iter(targets.values()))
        self.interface = self.called.interface
        self.opened = self.called.opened

    def call(self, call):
        return self.called.call(call)

    def close(self):
        for target in self.targets.values():
            target.close()

    def each(self, law):
        """The law, of each target in turn; it applies to all or none, time allowing."""

        def of_each(checked, problem):
            reasons = []
            for name, target in self.targets.items():
                self.called = target
                try:
                    law(checked, problem)
                except DoesNotApply as reason:
                    reasons.append(reason)
                except Violation as violation:
                    violation.message = f"{name}: {violation.message}"
                    raise
            if len(reasons) == len(self.targets):
                raise reasons[0]
            # On a machine under load some targets are stopped, as too slow.
            assert all(one.why.kind == "skipped" for one in reasons), reasons

        return of_each


def opened(name, kernel, **of_plan):
    return opening.open_target(Plan(name, function=kernel, **of_plan))


def panels(kernels, **of_plan):
    """Return the names of kernels by their interface."""

    def interface(name):
        return str(opened(name, kernels[name], **of_plan).interface)

    alike = groupby(sorted(kernels, key=interface), interface)
    return [tuple(names) for _, names in alike]


def verdict_on_all(monkeypatch, kernels, check: str, **of_plan):
    """Return the result of one check, which is that of the first kernel to fail it."""
    targets = {n: opened(n, kernel, **of_plan) for n, kernel in kernels.items()}
    assert len({str(target.interface) for target in targets.values()}) == 1
    panel = Panel(targets)
    monkeypatch.setattr(session, "open_target", lambda *_: panel)
    law = panel.each(CHECKS[check].law)
    monkeypatch.setitem(CHECKS, check, replace(CHECKS[check], law=law))
    plan = Plan("panel", checks=(check,), diagnose=False, **of_plan)
    (result,) = (e.result for e in run(plan) if isinstance(e, CheckFinished))
    return result

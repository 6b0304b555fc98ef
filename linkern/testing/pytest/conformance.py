"""Tests of ``pytest --pyargs linkern.testing --linkern-target ...``.

One test for each check, with the name of the check, under the name of the target:
reports of different jobs can be merged.
"""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from linkern.testing.errors import UsageError
from linkern.testing.pytest.parametrize import conclude, examine
from linkern.testing.pytest.reports import Results
from linkern.testing.runner.plan import DEFAULT_DTYPES, Plan, fresh_seed
from linkern.testing.runner.shared import SHARED_SESSION, why_no_verdict
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import as_text, keywords, pairs
from linkern.testing.spec.operators import OPERATORS

__all__ = ["CheckItem", "Conformance", "TargetCollector", "header", "prepare"]

PLAN = pytest.StashKey[Plan]()
NO_TARGET = (
    "there is nothing to judge; pass --linkern-target package.module:attribute and "
    f"--linkern-op ({', '.join(OPERATORS)})"
)


def prepare(config: pytest.Config) -> None:
    """Read the options into a plan and load the target; refuse what cannot be used.

    Parameters
    ----------
    config : pytest.Config
        The options of the command line.

    Raises
    ------
    pytest.UsageError
        If the target, the contract or an option cannot be used.
    """
    try:
        if config.option.linkern_seed is None:
            # Workers of pytest-xdist are started with the options as they are now.
            config.option.linkern_seed = fresh_seed()
        plan = config.stash[PLAN] = _plan_of(config.option)
        _require_folders(config.option)
        if hasattr(config, "workerinput"):
            return  # of pytest-xdist; the process that started it has loaded the target
        SHARED_SESSION.open(plan)
    except UsageError as error:
        msg = f"linkern: {error}"
        raise pytest.UsageError(msg) from None
    if config.getoption("dist", "no") != "no":
        SHARED_SESSION.close()  # the tests will run in other processes


def header(config: pytest.Config) -> str:
    """Return the target and its declarations in one line."""
    plan = config.stash[PLAN]
    declared = plan.contract.declared().items()
    relaxed = ", ".join(f"{key}={as_text(value)}" for key, value in declared)
    library = plan.framework or "library inferred"
    where = "" if plan.device == "cpu" else f" on {plan.device}"
    dtypes = ", ".join(plan.dtypes or DEFAULT_DTYPES)
    return (
        f"linkern: {plan.target} as {plan.op} "
        f"({library}{where}: {dtypes}), profile {plan.profile}, "
        f"seed {plan.seed}; {f'declared: {relaxed}' if relaxed else 'nothing declared'}"
    )


class Conformance(pytest.File):
    """The file that holds the tests of a target."""

    def collect(self) -> Iterable["TargetCollector"]:
        """Yield the target, if one was named."""
        plan = self.config.stash.get(PLAN, None)
        if plan is None:
            pytest.skip(NO_TARGET, allow_module_level=True)
        yield TargetCollector.from_parent(self, name=_title(plan), plan=plan)


class TargetCollector(pytest.Collector):
    """A target; in reports, the class of its tests."""

    def __init__(self, *, plan: Plan, **node: Any) -> None:
        super().__init__(**node)
        self._plan = plan

    def collect(self) -> Iterable["CheckItem"]:
        """Yield the checks that were chosen."""
        for check in self._plan.chosen():
            yield CheckItem.from_parent(self, name=check.name, plan=self._plan)

    def setup(self) -> None:
        """Fail every test if the referee does not catch its canaries."""
        doubt = why_no_verdict(self._plan.seed)
        if doubt is not None:
            pytest.fail(doubt, pytrace=False)


class CheckItem(pytest.Item):
    """One check of a target."""

    def __init__(self, *, plan: Plan, **node: Any) -> None:
        super().__init__(**node)
        self._plan = plan
        self.user_properties += [
            ("target", plan.target),
            ("op", plan.op),
            *((key, as_text(value)) for key, value in plan.contract.declared().items()),
        ]

    def runtest(self) -> None:
        """Run the check."""
        result = examine(self._plan, self.name)
        Results.of(self.config).add(self._plan, result)
        conclude(self._plan, result)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the file of the test, and the headline of its failure."""
        return self.path, None, f"{self.name} of {self._plan.target}"


def _title(plan: Plan) -> str:
    """Return the target, its operator, and framework, device, dtypes unless default."""
    words = [plan.target, plan.op]
    for field in fields(plan):
        value = getattr(plan, field.name)
        if field.name in ("framework", "device", "dtypes") and value != field.default:
            words.append(as_text(value))
    return "-".join(words)


def _require_folders(option: Any) -> None:
    """Refuse a file in a missing folder before the tests, not after them."""
    for name in ("html", "json", "bundle"):
        path = getattr(option, f"linkern_{name}")
        if path is not None and not Path(path).absolute().parent.is_dir():
            msg = (
                f"--linkern-{name}: there is no folder {Path(path).absolute().parent}."
            )
            raise UsageError(msg)


def _plan_of(option: Any) -> Plan:
    if option.linkern_op is None:
        known = ", ".join(OPERATORS)
        msg = f"say which operator the target is with --linkern-op: {known}."
        raise UsageError(msg)
    declared: dict[str, Any] = {}
    if option.linkern_contract is not None:
        declared.update(Contract.from_file(Path(option.linkern_contract)))
    declared.update(pairs("--linkern-declare", "KEY=VALUE", option.linkern_declare))
    options = {
        "framework": option.linkern_framework,
        "device": option.linkern_device,
        "dtypes": option.linkern_dtype and tuple(option.linkern_dtype),
        "profile": option.linkern_profile,
        "seed": option.linkern_seed,
        "checks": option.linkern_check and tuple(option.linkern_check),
        "timeout": option.linkern_timeout,
        "options": keywords("--linkern-option", option.linkern_option),
    }
    return Plan(
        target=option.linkern_target,
        op=option.linkern_op,
        contract=Contract.from_mapping(declared),
        expect_failure=pairs(
            "--linkern-expect-failure", "CHECK=REASON", option.linkern_expect_failure
        ),
        **{key: value for key, value in options.items() if value is not None},
    )

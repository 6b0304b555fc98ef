"""Plugin of pytest: options of the referee, and collection of its tests.

Every run of pytest in an environment with linkern loads this file, so it imports the
standard library and pytest alone; the referee is imported when a target is named.
"""

from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "pytest_addoption",
    "pytest_collect_file",
    "pytest_configure_node",
    "pytest_ignore_collect",
    "pytest_report_header",
    "pytest_sessionfinish",
    "pytest_sessionstart",
    "pytest_terminal_summary",
]

CONFORMANCE = Path(__file__).with_name("conformance.py")
TESTING = CONFORMANCE.parents[1]  # the package that `--pyargs` names

_REPEATABLE = {"action": "append"}
# Options without a value are not passed: the defaults are those of `verify`.
_OPTIONS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("target", "TARGET", "Kernel, package.module:attribute.", {}),
    ("op", "OP", "Operator that it claims to be (`linkern list`).", {}),
    ("declare", "KEY=VALUE", "What it declares. Repeatable.", _REPEATABLE),
    ("contract", "FILE", "The same, as TOML.", {}),
    ("framework", "NAME", "Array library of its inputs.", {}),
    ("device", "NAME", "Device of its inputs.", {}),
    ("dtype", "NAME", "Dtype of its inputs. Repeatable.", _REPEATABLE),
    ("profile", "NAME", "How many examples: smoke, quick, default or deep.", {}),
    ("seed", "N", "Which examples; the header names it.", {"type": int}),
    ("check", "NAME", "Default all. Repeatable.", _REPEATABLE),
    (
        "expect-failure",
        "CHECK=REASON",
        "A check that must fail; if it passes, that is a failure. Repeatable.",
        _REPEATABLE,
    ),
    ("timeout", "SECONDS", "Seconds that one call may take.", {"type": float}),
    (
        "option",
        "NAME=VALUE",
        "A keyword argument of every call, as Python writes it. Repeatable.",
        _REPEATABLE,
    ),
    ("html", "FILE", "Write the report as one HTML page.", {}),
    ("json", "FILE", "Write the report as JSON.", {}),
    ("bundle", "DIR", "Write report, contract and reproducers to a folder.", {}),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--linkern-target`` and the other options."""
    group = parser.getgroup("linkern", "the referee for linear attention")
    for name, metavar, meaning, settings in _OPTIONS:
        group.addoption(f"--linkern-{name}", metavar=metavar, help=meaning, **settings)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse a target that cannot be judged before any test is collected."""
    if session.config.option.linkern_target is not None:
        from linkern.testing.pytest import conformance  # noqa: PLC0415 -- see above

        conformance.prepare(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist where to leave its results."""
    if node.config.option.linkern_target is None:
        return
    from linkern.testing.pytest import reports  # noqa: PLC0415 -- see above

    folder = reports.folder_of_workers(node.config)
    if folder is not None:
        node.workerinput[reports.FOLDER] = folder


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write the reports when all tests have ended, and name the files."""
    plan = _judged(config)
    if plan is None or hasattr(config, "workerinput"):
        return
    from linkern.testing.pytest import reports  # noqa: PLC0415 -- see above

    for path in reports.write_reports(config, plan):
        terminalreporter.write_line(f"linkern: wrote {path}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave the results of a worker of pytest-xdist."""
    plan = _judged(session.config)
    if plan is None or not hasattr(session.config, "workerinput"):
        return
    from linkern.testing.pytest import reports  # noqa: PLC0415 -- see above

    reports.write_reports(session.config, plan)


def _judged(config: pytest.Config) -> Any:
    """Return the plan of the target, if one is judged."""
    if config.option.linkern_target is None:
        return None
    from linkern.testing.pytest import conformance  # noqa: PLC0415 -- see above

    return config.stash.get(conformance.PLAN, None)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return a line with the target and its declarations."""
    if config.option.linkern_target is None:
        return None
    from linkern.testing.pytest import conformance  # noqa: PLC0415 -- see above

    return conformance.header(config)


def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    """Collect the checks of the target where pytest comes across `conformance.py`."""
    if file_path.name != CONFORMANCE.name or not file_path.samefile(CONFORMANCE):
        return None
    from linkern.testing.pytest import conformance  # noqa: PLC0415 -- see above

    collector: pytest.Collector = conformance.Conformance.from_parent(
        parent, path=file_path
    )
    return collector


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Keep to the checks, even where a project takes every file for a test."""
    if config.option.linkern_target is None:
        return None
    if collection_path in (CONFORMANCE, CONFORMANCE.parent):
        return None
    return True if TESTING in collection_path.parents else None

"""Plans of ``linkern verify``: of one target, of a folder, of the catalogue."""

from typing import Any

from linkern.adapters.catalogue import Entry, installed
from linkern.cli.options import contract_of
from linkern.testing import OPERATORS, Contract, UsageError
from linkern.testing.campaign.candidates import candidates
from linkern.testing.runner.plan import Plan
from linkern.testing.spec.declarations import keywords, pairs

__all__ = ["plan_of_target", "plans_of_catalogue", "plans_of_folder"]

# Options that mean nothing for several targets, and for the whole catalogue.
_OF_ONE_TARGET = ("html_path", "bundle_path")
_OF_NAMED_TARGETS = (
    *("seconds", "inputs", "require", "ranks", "framework", "dtype"),
    *("contract", "declare", "option", "expect_failure"),
)


def plan_of_target(target: str | None, options: dict[str, Any]) -> Plan:
    """Return the plan of a named target, or of a program."""
    command = options["command"]
    if target is not None and command is not None:
        msg = "TARGET and --command exclude each other; give one of them."
        raise UsageError(msg)
    for several in ("executor", "resume"):
        if options[several]:
            msg = f"--{several} is for several kernels: the catalogue, or --all FOLDER."
            raise UsageError(msg)
    return _plan(command if target is None else target, options)


def plans_of_folder(place: str, options: dict[str, Any]) -> list[Plan]:
    """Return the plans of the candidates of a folder, as all are declared."""
    _refuse(options, _OF_ONE_TARGET)
    return [_plan(target, options) for target in candidates(place)]


def plans_of_catalogue(options: dict[str, Any]) -> list[Plan]:
    """Return the plans of our own forms and of the published kernels installed."""
    _refuse(options, (*_OF_NAMED_TARGETS, *_OF_ONE_TARGET))
    if options["device"] != "cpu":
        msg = "--device is for one target: the catalogue is judged on a CPU."
        raise UsageError(msg)
    return [_plan_of(entry, options) for entry in installed(options["op"])]


def _refuse(options: dict[str, Any], names: tuple[str, ...]) -> None:
    for single in names:
        if options[single] not in (None, ()):
            name = single.removesuffix("_path").replace("_", "-")
            msg = f"--{name} is for one target; name it."
            raise UsageError(msg)


def _plan(target: str, options: dict[str, Any]) -> Plan:
    """Return the plan of a target from all options of the command."""
    if options["op"] is None:
        msg = f"say which operator the target is with --op: {', '.join(OPERATORS)}."
        raise UsageError(msg)
    expected = pairs("--expect-failure", "CHECK=REASON", options["expect_failure"])
    for name in expected:
        if options["check"] and name not in options["check"]:
            msg = f'"{name}" is expected to fail, but --check leaves it out.'
            raise UsageError(msg)
    return Plan(
        target=target,
        op=options["op"],
        contract=contract_of(options),
        framework=options["framework"],
        device=options["device"],
        dtypes=options["dtype"],
        expect_failure=expected,
        options=keywords("--option", options["option"]),
        command=options["command"],
        inputs=options["inputs"],
        require=options["require"],
        **_shared(options),
    )


def _plan_of(entry: Entry, options: dict[str, Any]) -> Plan:
    """Return the plan of an entry of the catalogue."""
    checks = options["check"] or entry.checks

    def asked(name: str) -> bool:
        return not checks or name in checks

    shared = _shared(options)
    if entry.interpret:
        shared |= {"interpret": True, "seconds": entry.seconds}
        shared["require"] = tuple(filter(asked, entry.require))
    return Plan(
        target=entry.target,
        op=entry.op,
        contract=Contract.from_mapping(entry.declare),
        framework=entry.framework,
        dtypes=entry.dtypes,
        expect_failure={k: v for k, v in entry.expect_failure.items() if asked(k)},
        options=entry.options,
        **shared | {"checks": checks},
    )


def _shared(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are the same for any plan."""
    return {
        "profile": options["profile"],
        "seed": options["seed"],
        "checks": options["check"],
        "timeout": options["timeout"],
        "memory_limit": options["memory"],
        "in_process": options["in_process"],
        "interpret": options["interpret"],
        "ranks": options["ranks"],
        "sandbox": options["sandbox"],
        "fingerprint": bool(options["html_path"] or options["bundle_path"]),
        "fail_fast": options["fail_fast"],
        "jobs": options["jobs"],
        "seconds": options["seconds"],
    }

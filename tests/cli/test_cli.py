"""The command: exit codes, JSON, reproducers, and never a traceback."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from linkern import cli
from linkern.cli import plans, verdicts
from linkern.testing import CHECKS
from linkern.testing.checks import OF_LAUNCHES, assertions
from linkern.testing.diagnosis.diagnosis import UNEXPLAINED, Diagnosis
from linkern.testing.report.report import Report
from linkern.testing.runner import session

KERNELS = Path(__file__).parents[1] / "testing" / "targets.py"


@pytest.fixture(autouse=True)
def trusted(request, monkeypatch):
    """Spare most tests the canaries, which run at the start of every command."""
    if "exits_with_4" not in request.node.name:
        monkeypatch.setattr(verdicts, "run_canaries", lambda seed: None)


@pytest.fixture(autouse=True)
def unexplained(request, monkeypatch):
    """Spare most tests the search for a cause, longest where there is none to name."""
    if "cause" not in request.node.name:
        nothing = Diagnosis(UNEXPLAINED, "nothing was looked for")
        monkeypatch.setattr(session, "examine", lambda target, scope: nothing)


def run(*words, target="good", op="linear_attention", profile="quick"):
    command = ["verify", f"{KERNELS}:{target}", "--op", op, "--profile", profile]
    return CliRunner().invoke(cli.main, [*command, *words])


def test_a_correct_kernel_exits_with_0(tmp_path):
    # Of one dtype: what is written is the same for several.
    result = run("--json", str(tmp_path / "report.json"), "--dtype", "float32")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "passed"
    assert [check["name"] for check in report["checks"]] == [
        name for name in CHECKS if name not in OF_LAUNCHES
    ]
    assert set(report) == {
        "schema",
        "linkern",
        "rules",
        "target",
        "op",
        "interpreted",
        "ranks",
        "contract",
        "environment",
        "complete",
        "grade",
        "rounds",
        "seconds",
        "time_over",
        "not_run",
        "required",
        "lacking",
        "verdict",
        "checks",
        "diagnosis",
        "fingerprint",
        "notes",
    }
    assert report["complete"]
    keys = {
        "name",
        "statement",
        "verdict",
        "examples",
        "worst_ratio",
        "counterexample",
        "message",
        "seconds",
        "again",
        "curve",
        "ratios",
        "remedies",
        "dtypes",
    }
    assert all(set(check) == keys for check in report["checks"])


def test_a_faulty_kernel_exits_with_1_and_can_be_reproduced(tmp_path):
    check = ("--check", "value_on_integers", "--seed", "2")
    result = run(*check, "--repro", str(tmp_path), target="loses_last_key")
    assert result.exit_code == 1
    for word in ("smallest", "got", "expected", "bound", "again", "linkern verify"):
        assert word in result.output
    script = tmp_path / "loses_last_key-value_on_integers.py"
    unwrapped = "".join(result.output.split())
    written = {script, script.with_suffix(".npz")}
    assert set(tmp_path.iterdir()) == written
    assert all(f"wrote{path}" in unwrapped for path in written)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "output of shape (1, 1, 2, " in done.stdout
    assert "the law is still broken" in done.stdout
    # The same calls of a kernel that is right.
    fixed = script.with_name("fixed.py")
    fixed.write_text(script.read_text().replace("'loses_last_key'", "'good'"))
    fixed.with_suffix(".npz").write_bytes(script.with_suffix(".npz").read_bytes())
    assert subprocess.run([sys.executable, str(fixed)], check=False).returncode == 0


@pytest.mark.slow
def test_a_bundle_is_whole_and_shows_every_failure_again(tmp_path):
    folder = tmp_path / "bundle"
    checks = ("value_on_integers", "strides", "inputs_untouched")
    words = [word for check in checks for word in ("--check", check)]
    waived = ("--expect-failure", "value_on_integers=known")
    result = run(
        *words, *waived, "--bundle", str(folder), target="loses_and_overwrites"
    )
    assert result.exit_code == 1, result.output
    names = {path.name for path in folder.iterdir()}
    assert names >= {"report.json", "report.html", "contract.toml", "waivers.toml"}
    assert "value_on_integers" in (folder / "waivers.toml").read_text()
    again = CliRunner().invoke(cli.main, ["check-bundle", str(folder)])
    assert again.exit_code == 0, again.output
    # What overwrites an input shows in no output: it was judged again.
    assert again.output.count("reproduced") == 2

    for script in (folder / "reproducers").glob("*integers.py"):
        script.write_text(script.read_text().replace("loses_and_overwrites", "good"))
    again = CliRunner().invoke(cli.main, ["check-bundle", str(folder)])
    assert again.exit_code == 1
    assert "gone" in again.output


@pytest.mark.parametrize("content", [None, "{}", "[]", "not json"])
def test_what_is_no_bundle_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    result = CliRunner().invoke(cli.main, ["check-bundle", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not a bundle" in result.output


def test_results_are_written_as_they_come(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    seen = []
    write = Report.to_json

    def watched(report, where):
        write(report, where)
        seen.append(json.loads(path.read_text()))
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Report, "to_json", watched)
    words = ("value_on_integers", "causality", "prefix")
    checks = [word for check in words for word in ("--check", check)]
    result = run(*checks, "--json", str(path))
    assert result.exit_code == 130
    assert [len(report["checks"]) for report in seen] == [1, 2]
    assert not seen[-1]["complete"]
    assert "interrupted" in result.output


def test_a_cause_is_named_and_what_is_known_otherwise(tmp_path):
    checks = ("--check", "value_on_integers", "--check", "causality")
    path = tmp_path / "report.html"
    example = str(KERNELS.parents[2] / "examples" / "chunked_attention.py")
    result = CliRunner().invoke(
        cli.main,
        [
            "verify",
            f"{example}:with_epsilon",
            *("--op", "linear_attention", "--profile", "quick", *checks),
            *("--html", str(path)),
        ],
    )
    said = " ".join(result.output.split())
    assert "multiplied by `denominator / (denominator + 1e-6)`" in said
    assert "--declare eps=1e-6" in said
    assert "eps=1e-6" in path.read_text()
    result = run(*checks, target="off_by_a_little")
    assert "unlike any product that was tried: ratios" in " ".join(
        result.output.split()
    )
    assert "causality" in result.output


def test_keywords_of_every_call(tmp_path):
    words = ("--check", "value_on_integers")
    assert run(*words, target="needs_a_switch").exit_code == 1
    assert (
        run(*words, "--option", "switch=True", target="needs_a_switch").exit_code == 0
    )
    result = run(*words, "--option", "switch", target="needs_a_switch")
    assert result.exit_code == 2
    assert "must have the form NAME=VALUE" in result.output


def test_fingerprints(tmp_path):
    path = tmp_path / "sheet.json"
    words = ["fingerprint", f"{KERNELS}:good", "--op", "linear_attention"]
    result = CliRunner().invoke(cli.main, [*words, "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())[0]["bits"]["state"] == 24
    result = CliRunner().invoke(cli.main, [*words, "--declare", "eps=1e-3"])
    assert result.exit_code == 1
    assert "declared" in result.output
    for refused in (["fingerprint"], ["fingerprint", f"{KERNELS}:good"]):
        assert CliRunner().invoke(cli.main, refused).exit_code == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--declare", "epz=1"), 'did you mean "eps"'),
        (("--declare", "eps"), "must have the form KEY=VALUE"),
        (("--check", "causalty"), 'did you mean "causality"'),
        (("--expect-failure", "causality"), "must have the form CHECK=REASON"),
        (("--expect-failure", "nope=x"), 'unknown check "nope"'),
        (("--framework", "tensorflow"), 'unknown framework "tensorflow"'),
        (("--framework", "cupy"), "pip install 'linkern[cuda12]'"),
        (("--dtype", "int8"), 'unknown dtype for numpy "int8"'),
        (("--profile", "slow"), 'unknown profile "slow"'),
        (("--timeout", "0"), "the timeout must be positive"),
        (("--contract", "/nowhere.toml"), "cannot be read: No such file"),
        (("--json", "/nowhere/report.json"), "there is no folder"),
        (("--seed", "-1"), "--seed"),
        (("--command", "true {inputs} {outputs}"), "exclude each other"),
        (("--html", "/nowhere/report.html"), "there is no folder"),
        (("--memory", "nan"), "the memory limit must be a positive number of GiB"),
        (("--memory", "-1"), "the memory limit must be a positive number of GiB"),
        (("--no-source",), "--no-source is for --bundle"),
    ],
)
def test_unusable_options_exit_with_2(words, sentence):
    result = run(*words)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("nowhere.py:kernel", "--op", "linear_attention"),
            "there is no file nowhere.py",
        ),
        (("no.such.module:f", "--op", "linear_attention"), "No module named"),
        (("kernel", "--op", "linear_attention"), "package.module:attribute"),
        (("", "--op", "linear_attention"), 'package.module:attribute" or '),
        ((f"{KERNELS}:not_callable", "--op", "linear_attention"), "must be callable"),
        ((f"{KERNELS}:good",), "with --op"),
        (
            (f"{KERNELS}:good", "--op", "linear_atention"),
            'did you mean "linear_attention"',
        ),
        (("--op", "nonsense"), 'unknown operator "nonsense"'),
    ],
)
def test_unusable_targets_exit_with_2(words, sentence):
    result = CliRunner().invoke(cli.main, ["verify", *words])
    assert result.exit_code == 2
    assert sentence in result.output


def test_a_module_that_fails_to_import_exits_with_2(tmp_path):
    (tmp_path / "broken.py").write_text("raise SystemExit(5)\n")
    (tmp_path / "crash.py").write_text("import os\nos.abort()\n")
    (tmp_path / "odd.py").write_text("x = 1\ndef f(q, k, v)\n")
    said = (
        ("broken", "SystemExit: 5"),
        ("crash", "SIGABRT"),
        ("odd", "(odd.py, line 2)"),
    )
    for name, sentence in said:
        words = ["verify", f"{tmp_path / name}.py:f", "--op", "linear_attention"]
        result = CliRunner().invoke(cli.main, words)
        assert result.exit_code == 2
        assert sentence in result.output


def test_nothing_concluded_exits_with_3():
    # The only check asked for does not apply: nothing was judged.
    assert run("--check", "scaling_of_keys").exit_code == 3
    # Nothing can be proved of sums in bfloat16 over this many features.
    declared = ("--declare", "accumulator_dtype=bfloat16", "--declare", "key_dims=128")
    result = run(*declared, "--check", "value_on_reals", "--dtype", "float32")
    assert result.exit_code == 3
    assert "inconclusive" in result.output


def test_a_blind_referee_exits_with_4(monkeypatch):
    monkeypatch.setattr(assertions.CheckedTarget, "_judge", lambda *args: None)
    result = run()
    assert result.exit_code == 4
    assert "did not catch the planted defect" in result.output


def test_a_too_generous_referee_exits_with_4(monkeypatch):
    generous = assertions._interval

    def ten_thousand_times(output, bound, dtype):
        return generous(output, 1e4 * bound + 1, dtype)

    monkeypatch.setattr(assertions, "_interval", ten_thousand_times)
    assert run().exit_code == 4


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("segfaults", "crashed with SIGSEGV"),
        ("exits_hard", "ended its process with exit code 7"),
        ("hangs", "did not return within 0.5 s"),
        ("returns_none", "returned None, not an array"),
        ("returns_scalar", "returned numpy.float32, not an array"),
    ],
)
def test_wild_targets_fail_and_end_nothing(name, sentence, tmp_path, monkeypatch):
    here, crashes = tmp_path / "here", tmp_path / "crashes"
    here.mkdir(), crashes.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(crashes))
    checks = ("--check", "shape_and_dtype", "--check", "value_on_reals")
    result = run(*checks, "--timeout", "0.5" if name == "hangs" else "120", target=name)
    assert result.exit_code == 1
    assert sentence in result.output
    assert "Traceback" not in result.output
    assert not [*here.iterdir()]
    saved = list(crashes.glob("linkern-*/*.npz"))
    assert all(f"wrote {path}" in result.output for path in saved)
    died = name in ("segfaults", "exits_hard", "hangs")
    assert bool(saved) == died


def test_a_target_that_raises_at_once_exits_with_2_and_one_sentence():
    result = run(target="raises")
    assert result.exit_code == 2
    assert result.output.count("no such kernel image") == 1
    assert "on its first call" in result.output


@pytest.mark.parametrize(
    "name", ["chatters", "changes_the_process", "returns_state_too", "layer"]
)
def test_odd_but_correct_targets_pass(name):
    result = run("--check", "value_on_reals", "--check", "causality", target=name)
    assert result.exit_code == 0, result.output


def test_expected_failures_are_strict():
    words = (
        "--check",
        "value_on_integers",
        "--expect-failure",
        "value_on_integers=known",
    )
    result = run(*words, target="loses_last_key")
    assert result.exit_code == 0
    assert "xfailed" in result.output
    result = run(*words, target="good")
    assert result.exit_code == 1
    assert "remove the expectation" in " ".join(result.output.split())


def test_a_contract_file_and_a_declaration_add_up(tmp_path):
    path = tmp_path / "contract.toml"
    path.write_text('layout = "bhtd"\nmin_length = 1\n')
    words = ("--declare", "max_length=40", "--dtype", "float32")
    result = run("--contract", str(path), *words, target="segfaults")
    assert result.exit_code == 0, result.output
    assert "max_length=40" in result.output


def test_help_and_version():
    for option in ("--help", "--version"):
        assert CliRunner().invoke(cli.main, [option]).exit_code == 0
    assert "Exit code" in CliRunner().invoke(cli.main, ["verify", "-h"]).output


@pytest.mark.slow
def test_without_a_target_our_own_forms_are_judged(monkeypatch):
    from linkern.adapters import catalogue

    own = [
        entry
        for entry in catalogue.OWN
        if entry.framework == "numpy" and entry.op.startswith("linear_attention")
    ]
    monkeypatch.setattr(
        plans, "installed", lambda op: [e for e in own if op in (None, e.op)]
    )
    words = ("--check", "value_on_integers", "--check", "state_split")
    words = ("--profile", "quick", *words)
    result = CliRunner().invoke(cli.main, ["verify", *words])
    assert result.exit_code == 0, result.output
    judged = [line for line in result.output.splitlines() if line[1:3] == "/6"]
    assert all(" passed linkern:linear_attention as " in line for line in judged)
    for option, times in (("form=recurrent", 2), ("form=parallel", 2), ("=False", 3)):
        assert sum(option in line for line in judged) == times


def test_reproducers_that_cannot_be_written_lose_no_verdict(tmp_path):
    (tmp_path / "file").write_text("")
    words = (
        "--check",
        "value_on_integers",
        "--repro",
        str(tmp_path / "file" / "below"),
    )
    result = run(*words, target="loses_last_key")
    assert result.exit_code == 2
    assert "failed value_on_integers" in result.output
    assert "Not a directory" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("absent", ["torch", "triton"])
def test_without_triton_nothing_is_interpreted(absent, request, tmp_path, monkeypatch):
    if absent == "triton":
        request.getfixturevalue("triton")  # what is asked for first must be there
    blocked = f"import sys\nsys.modules[{absent!r}] = None\n"
    (tmp_path / "sitecustomize.py").write_text(blocked)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = run("--interpret", target="good")
    assert result.exit_code == 2
    said = f"`interpret` needs {absent}, which is not installed; run `python -m pip"
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.output

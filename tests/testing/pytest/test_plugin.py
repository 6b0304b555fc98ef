"""The pytest face: one test for each check, and pytest's outcomes for its verdicts."""

import json
import os
import re
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from linkern.testing import UsageError
from linkern.testing.pytest.parametrize import parametrize_with_checks, subject
from tests.marks import slow_unless
from tests.waiting import LONG

KERNELS = """
import numpy as np

def good(query, key, value):
    wide = np.result_type(query.dtype, np.float32)
    q, k, v = (x.astype(wide) for x in (query, key, value))
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k))
    scores = np.tril(q @ np.swapaxes(k, -1, -2))
    return ((scores @ v) / scores.sum(-1, keepdims=True)).astype(query.dtype)

def too_large(query, key, value):
    return good(query, key, value) * np.asarray(1.001, query.dtype)

def multiplied(query, key, value, factor):
    return good(query, key, value) * np.asarray(factor, query.dtype)
"""

SUITE = """
from kernels import good, too_large
from linkern.testing.pytest.parametrize import parametrize_with_checks, subject

CHECKS = ["value_on_integers", "causality", "scaling_of_keys"]
SHARED = {
    "op": "linear_attention",
    "profile": "quick",
    "dtypes": ["float32"],
    "checks": CHECKS,
}
EXPECTED = {"value_on_integers": "issue 7"}

@parametrize_with_checks([
    subject(good, **SHARED),
    subject(too_large, **SHARED),
    subject("kernels:too_large", **SHARED, expect_failure=EXPECTED),
    subject("kernels:good", **SHARED, expect_failure=EXPECTED, name="strict"),
    subject("kernels:missing", **SHARED),
])
def test_laws(check):
    check()
"""

# What a demanding project asks of everything that runs in its tests.
STRICT = """
[pytest]
addopts = --strict-markers --strict-config --import-mode=importlib -p no:cacheprovider
filterwarnings = error
xfail_strict = true
"""

# The same examples every time.
REPEATED = """
from linkern.testing.runner import plan

plan.randbits = lambda bits: 0
"""

# Most tests are spared the canaries, which run before the first verdict.
SPARED = """
from linkern.testing.runner import canaries

canaries.failures = lambda seed: []
"""

BLIND = """
from linkern.testing.runner import canaries

canaries.failures = lambda seed: ["causality did not catch a planted defect"]
"""


@pytest.fixture
def run(tmp_path):
    """Run pytest in a folder of its own, without the plugins of this environment."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "test_laws.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text(STRICT)
    (tmp_path / "repeated.py").write_text(REPEATED)
    (tmp_path / "spared.py").write_text(SPARED)
    (tmp_path / "blind.py").write_text(BLIND)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTEST_ADDOPTS", None)

    def run(*words, referee="spared"):
        plugins = ["-p", "linkern.testing.pytest.plugin", "-p", "repeated"]
        if referee is not None:
            plugins += ["-p", referee]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *plugins, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )

    return run


@pytest.fixture
def judge(run):
    """Judge a kernel of that folder."""

    def judge(*words, target="kernels:good", referee="spared"):
        where = ("--pyargs", "linkern.testing", "--linkern-profile", "quick")
        options = ("--linkern-target", target, "--linkern-op", "linear_attention")
        dtype = ("--linkern-dtype", "float32")
        return run(*where, *options, *dtype, *words, referee=referee)

    return judge


def checks(*names):
    return [word for name in names for word in ("--linkern-check", name)]


def cases(path):
    """Return what a JUnit report says of each of its tests."""
    return {
        (case.get("classname"), case.get("name")): case
        for case in ET.parse(path).iter("testcase")
    }


def test_each_check_is_a_test_and_each_verdict_an_outcome(judge, tmp_path):
    result = judge(
        *checks("value_on_integers", "value_on_reals", "causality"),
        *checks("scaling_of_keys", "scaling_of_values"),
        *("--linkern-expect-failure", "value_on_reals=issue 7"),
        *("--linkern-expect-failure", "causality=issue 8"),
        *("--linkern-declare", "chunk_size=16"),
        *("--junit-xml", str(tmp_path / "junit.xml")),
        target="kernels:too_large",
    )
    assert result.returncode == 1, result.stdout
    assert "2 failed, 1 passed, 1 skipped, 1 xfailed" in result.stdout
    assert "declared: chunk_size=16" in result.stdout
    found = cases(tmp_path / "junit.xml")
    (where,) = {classname for classname, _ in found}
    assert where.endswith(".kernels:too_large-linear_attention-float32")

    properties = found[where, "value_on_reals"].iter("property")
    assert {p.get("name"): p.get("value") for p in properties} == {
        "target": "kernels:too_large",
        "op": "linear_attention",
        "chunk_size": "16",
    }
    explanation = found[where, "value_on_integers"].find("failure").text
    assert explanation.startswith("failed value_on_integers: ")
    for word in ("law", "smallest", "entry", "got", "expected", "bound", "again"):
        assert re.search(rf"^  {word} +\S", explanation, re.MULTILINE), word
    assert "linkern verify kernels:too_large --op linear_attention" in explanation
    strict = found[where, "causality"].find("failure").text
    assert "remove the expectation" in strict
    for name, text in (("value_on_reals", "issue 7"), ("scaling_of_keys", "feature")):
        assert text in found[where, name].find("skipped").get("message")
    assert "Traceback" not in result.stdout
    assert "pytest_checks.py" not in result.stdout


def test_a_correct_kernel_passes_and_names_select(judge):
    result = judge("-v", "-k", "determinism or causality", referee=None)
    assert result.returncode == 0, result.stdout
    assert "2 passed" in result.stdout
    for name in ("determinism", "causality"):
        assert f"kernels:good-linear_attention-float32::{name} PASSED" in result.stdout


def test_an_inconclusive_check_does_not_pass(judge):
    declared = ("accumulator_dtype=bfloat16", "key_dims=128")
    words = [word for text in declared for word in ("--linkern-declare", text)]
    result = judge(*words, *checks("value_on_reals"))
    assert result.returncode == 1
    assert "inconclusive value_on_reals: " in result.stdout
    assert "--dtype float32" in result.stdout


def test_an_expected_failure_is_none_under_runxfail(judge):
    words = ("--linkern-expect-failure", "value_on_integers=issue 7", "--runxfail")
    result = judge(*checks("value_on_integers"), *words, target="kernels:too_large")
    assert result.returncode == 1
    assert "issue 7" in result.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    slow_unless(
        lambda words, _: words[0] in ("--linkern-target", "--linkern-check"),
        [
            (("--linkern-check", "causalty"), 'did you mean "causality"'),
            (("--linkern-op", "linear_atention"), 'did you mean "linear_attention"'),
            (("--linkern-declare", "epz=1"), 'did you mean "eps"'),
            (("--linkern-declare", "eps"), "must have the form KEY=VALUE"),
            (("--linkern-expect-failure", "x"), "must have the form CHECK=REASON"),
            (("--linkern-contract", "nowhere.toml"), "cannot be read: No such file"),
            (("--linkern-framework", "tensorflow"), 'unknown framework "tensorflow"'),
            (("--linkern-profile", "slow"), 'unknown profile "slow"'),
            (("--linkern-dtype", "int8"), 'unknown dtype for numpy "int8"'),
            (("--linkern-timeout", "0"), "the timeout must be positive"),
            (("--linkern-target", "kernels:nope"), 'has no attribute "nope"'),
            (("--linkern-target", "nowhere:f"), "No module named"),
            (("--linkern-html", "missing/x.html"), "there is no folder"),
            (("--linkern-option", "1x=2"), "must name a parameter"),
        ],
    ),
)
def test_what_cannot_be_used_exits_with_4(judge, words, sentence):
    result = judge(*words)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: linkern: {result.stderr.partition('linkern: ')[2]}" == result.stderr
    assert sentence in result.stderr


def test_without_an_operator_the_known_ones_are_named(run):
    result = run("--pyargs", "linkern.testing", "--linkern-target", "kernels:good")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--linkern-op: linear_attention," in result.stderr


def test_without_a_target_nothing_is_judged(run):
    result = run("--pyargs", "linkern.testing", "-rs")
    assert result.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "pass --linkern-target package.module:attribute" in result.stdout


@pytest.mark.slow
def test_nothing_else_is_taken_for_a_test(judge):
    words = ("-o", "python_files=*.py", "--doctest-modules")
    result = judge(*checks("shape_and_dtype"), *words)
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout


def test_a_contract_file_and_a_declaration_add_up(judge, tmp_path):
    (tmp_path / "contract.toml").write_text("chunk_size = 16\nmin_length = 1\n")
    words = ("--linkern-contract", "contract.toml", "--linkern-declare", "eps=1e-6")
    result = judge(*words, *checks("shape_and_dtype"))
    assert result.returncode == 0, result.stdout
    declared = re.search("declared: (.*)", result.stdout)[1]
    assert set(declared.split(", ")) == {"chunk_size=16", "min_length=1", "eps=1e-06"}


@pytest.mark.slow
def test_several_processes_come_to_the_same_verdicts(judge, tmp_path):
    pytest.importorskip("xdist")
    names = ("value_on_integers", "causality", "scaling_of_keys", "determinism")
    verdicts = []
    for i, words in enumerate([(), ("-p", "xdist.plugin", "-n", "2")]):
        path = tmp_path / f"{i}.xml"
        options = (*checks(*names), "--junit-xml", str(path))
        result = judge(*words, *options, target="kernels:too_large")
        assert result.returncode == 1
        verdicts.append({k: [c.tag for c in v] for k, v in cases(path).items()})
    assert len(verdicts[0]) == len(names)
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize(
    "processes", [(), pytest.param(("-p", "xdist", "-n", "2"), marks=pytest.mark.slow)]
)
def test_reports_are_written_when_the_tests_have_ended(judge, tmp_path, processes):
    names = ("shape_and_dtype", "value_on_integers", "scaling_of_keys")
    result = judge(
        *checks(*names),
        *("--linkern-json", "report.json", "--linkern-html", "report.html"),
        *("--linkern-bundle", "bundle", *processes),
        target="kernels:too_large",
    )
    assert result.returncode == 1, result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert [check["name"] for check in report["checks"]] == [*names]
    assert report["complete"]
    assert report["diagnosis"] is not None
    assert f"cause: {report['diagnosis']['sentence']}" in result.stdout
    assert "<title>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    for name in ("report.json", "report.html", "bundle/report.json"):
        assert f"linkern: wrote {name}" in result.stdout


def test_keyword_arguments_are_passed(judge):
    result = judge(
        *checks("value_on_integers"),
        *("--linkern-option", "factor=3"),
        target="kernels:multiplied",
    )
    assert result.returncode == 1, result.stdout
    result = judge(
        *checks("value_on_integers"),
        *("--linkern-option", "factor=1"),
        target="kernels:multiplied",
    )
    assert result.returncode == 0, result.stdout


def test_laws_as_tests_of_ones_own_suite(run, tmp_path):
    result = run("test_laws.py", "--junit-xml", str(tmp_path / "junit.xml"))
    assert result.returncode == 1
    found = {
        name: [child.tag for child in case if child.tag != "properties"]
        for (_, name), case in cases(tmp_path / "junit.xml").items()
    }
    failed, skipped, passed = ["failure"], ["skipped"], []
    assert found == {
        "test_laws[good-value_on_integers]": passed,
        "test_laws[good-causality]": passed,
        "test_laws[good-scaling_of_keys]": skipped,
        "test_laws[too_large-value_on_integers]": failed,
        "test_laws[too_large-causality]": passed,
        "test_laws[too_large-scaling_of_keys]": skipped,
        "test_laws[kernels:too_large-value_on_integers]": skipped,
        "test_laws[kernels:too_large-causality]": passed,
        "test_laws[kernels:too_large-scaling_of_keys]": skipped,
        "test_laws[strict-value_on_integers]": failed,
        "test_laws[strict-causality]": passed,
        "test_laws[strict-scaling_of_keys]": skipped,
        "test_laws[kernels:missing-value_on_integers]": failed,
        "test_laws[kernels:missing-causality]": failed,
        "test_laws[kernels:missing-scaling_of_keys]": failed,
    }
    assert "smallest" in result.stdout
    assert 'no verdict, "kernels" has no attribute "missing"' in result.stdout
    assert "Traceback" not in result.stdout


def test_a_blind_referee_gives_no_verdict(judge, run):
    sentence = "no verdict, causality did not catch a planted defect."
    result = judge(*checks("causality", "determinism"), referee="blind")
    assert "2 errors" in result.stdout
    assert result.stdout.count(sentence) >= 2
    result = run("test_laws.py", "-k", "good-causality", referee="blind")
    assert "1 failed" in result.stdout
    assert sentence in result.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"op": "linear_atention"}, 'did you mean "linear_attention"'),
        ({"contract": {"epz": 1}}, 'did you mean "eps"'),
        ({"dtype": "float32"}, 'did you mean "dtypes"'),
        ({"checks": ["causalty"]}, 'did you mean "causality"'),
        ({"expect_failure": {"nope": "x"}}, 'unknown check "nope"'),
    ],
)
def test_subjects_are_refused_where_they_are_named(options, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        subject("kernels:good", **{"op": "linear_attention", **options})


def test_subjects_are_told_apart():
    one = subject("kernels:good", op="linear_attention")
    other = subject("kernels:good", op="linear_attention", name="other")
    assert parametrize_with_checks([one, other]).args[0] == "check"
    with pytest.raises(UsageError, match="must be unique, got "):
        parametrize_with_checks([one, one])
    with pytest.raises(UsageError, match="at least one kernel"):
        parametrize_with_checks([])
    with pytest.raises(UsageError, match="must be made with `subject`, got str"):
        parametrize_with_checks(["kernels:good"])

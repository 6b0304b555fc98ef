"""A bundle runs elsewhere: the kernel's file is in it, and no path of this machine."""

import getpass
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from linkern.testing import UsageError, verify
from linkern.testing.report import bundle

KERNEL = """import helper


def doubled(query, key, value):
    return helper.twice(value)
"""
HELPER = "def twice(x):\n    return 2 * x\n"
# The second is not seen in outputs, so it is judged again by `linkern verify`.
CHECKS = ["value_on_integers", "inputs_untouched"]


class Payload:
    """What a pickle of it does where it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A bundle of a faulty kernel, moved away from the kernel."""
    author = tmp_path / "author"
    author.mkdir()
    (author / "kernel.py").write_text(KERNEL)
    (author / "helper.py").write_text(HELPER)
    monkeypatch.chdir(author)

    def write(attribute="kernel.py:doubled", *, source=True, **options):
        usual = {"profile": "quick", "checks": CHECKS, "dtypes": ("float32",)}
        report = verify(attribute, op="linear_attention", **usual | options)
        files = bundle.write(report, Path("bundle"), source=source)
        assert all(path.is_file() for path in files)
        elsewhere = tmp_path / "elsewhere"
        shutil.move("bundle", elsewhere)
        shutil.rmtree(author)
        author.mkdir()
        return elsewhere

    return write


def test_it_runs_elsewhere(written):
    folder = written()
    assert {x.outcome for x in bundle.check(folder)} == {"reproduced"}
    assert (folder / "kernel" / "helper.py").read_text() == HELPER


def test_a_mended_kernel_is_seen(written):
    folder = written()
    (folder / "kernel" / "helper.py").write_text(
        "from linkern import linear_attention\n\ndef twice(x):\n    return x\n"
    )
    outcomes = {x.check: x.outcome for x in bundle.check(folder)}
    assert outcomes["value_on_integers"] == "gone"


def test_no_path_of_this_machine_is_in_it(written, tmp_path):
    folder = written(str(tmp_path / "author" / "kernel.py:doubled"))
    texts = [
        path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".npz"
    ]
    for private in (str(tmp_path), str(Path.home()), f"/{getpass.getuser()}/"):
        assert not [text for text in texts if private in text]


def test_the_source_can_be_left_out(written):
    folder = written(source=False)
    assert not (folder / "kernel").exists()
    assert {x.outcome for x in bundle.check(folder)} == {"error"}
    (folder / "kernel").mkdir()
    (folder / "kernel" / "kernel.py").write_text(KERNEL)
    (folder / "kernel" / "helper.py").write_text(HELPER)
    assert {x.outcome for x in bundle.check(folder)} == {"reproduced"}


def report_of(folder, **changes):
    """Change the first failure that the report of a bundle lists."""
    path = folder / "report.json"
    report = json.loads(path.read_text())
    failure = next(c for c in report["checks"] if c["counterexample"] is not None)
    failure |= changes
    path.write_text(json.dumps(report))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "../../../author/evil"}, "unknown check"),
        ({"name": ["x"]}, "unknown check"),
        ({"again": 3}, "is not a bundle"),
        ({"again": "linkern verify 'unfinished"}, "is not a bundle"),
    ],
)
def test_a_crafted_report_is_refused(written, changes, words):
    folder = written()
    report_of(folder, **changes)
    with pytest.raises(UsageError, match=words):
        bundle.check(folder)


@pytest.mark.parametrize("text", ["[]", "{}", '{"checks": 3}', '{"checks": [3]}', "x"])
def test_what_is_no_report_is_refused(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(UsageError, match="is not a bundle"):
        bundle.check(tmp_path)


def test_a_script_outside_of_it_is_not_run(written, tmp_path):
    folder = written()
    (script,) = (folder / "reproducers").glob(f"*-{CHECKS[0]}.py")
    outside = tmp_path / f"outside-{CHECKS[0]}.py"
    outside.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    script.unlink()
    script.symlink_to(outside)
    with pytest.raises(UsageError, match="there is no reproducer"):
        bundle.check(folder)
    assert not (tmp_path / "ran").exists()


def test_pickled_arrays_are_not_loaded(written, tmp_path):
    """The script ends with an error, and nothing of the pickle has run."""
    folder = written()
    (arrays,) = (folder / "reproducers").glob(f"*-{CHECKS[0]}.npz")
    stored = dict(np.load(arrays))
    name = next(iter(stored))
    stored[name] = np.array([Payload(tmp_path / "ran")], dtype=object)
    np.savez(arrays, **stored)
    outcomes = {x.check: x for x in bundle.check(folder)}
    assert "allow_pickle=False" in outcomes[CHECKS[0]].said
    assert not (tmp_path / "ran").exists()


def test_its_readme_says_what_to_type(written):
    text = (written() / "README.md").read_text(encoding="utf-8")
    assert "# kernel/kernel.py:doubled: failed" in text
    assert "linkern check-bundle ." in text
    assert "linkern verify kernel/kernel.py:doubled --op linear_attention" in text


def test_a_script_and_its_kernel_can_be_moved_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kernel.py").write_text(KERNEL)
    (tmp_path / "old" / "helper.py").write_text(HELPER)
    program = "from linkern.cli import main; main()"
    words = ["verify", "old/kernel.py:doubled", "--op", "linear_attention"]
    words += ["--check", CHECKS[0], "--profile", "quick", "--repro", "old/repro"]
    words += ["--seed", "0"]
    subprocess.run([sys.executable, "-c", program, *words], check=False)
    shutil.move("old", "new")
    (script,) = Path("new/repro").glob("*.py")
    ran = subprocess.run([sys.executable, script], check=False, capture_output=True)
    assert ran.returncode == 1, ran.stderr


def commands(folder):
    """Return the words that judge each failure of a bundle again."""
    report = json.loads((folder / "report.json").read_text())
    failed = (c for c in report["checks"] if c["verdict"] == "failed")
    return {c["name"]: shlex.split(c["again"])[2:] for c in failed}


def test_commands_name_the_round_that_failed(written):
    folder = written(seconds=600.0, seed=7)
    for words in commands(folder).values():
        assert words[0] == "kernel/kernel.py:doubled"
        # It is the first round, which has few examples.
        assert words[words.index("--profile") + 1] == "smoke"
    assert {x.outcome for x in bundle.check(folder)} == {"reproduced"}


def test_inputs_of_the_user_are_in_it(written, tmp_path):
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(3, 1, 1, 5, 2)).astype("float32")
    stored = dict(zip(("query", "key", "value"), arrays, strict=True))
    path = tmp_path / "author" / "call.safetensors"
    save_file(stored, path)
    folder = written(inputs=str(path), checks=["value_on_reals"], fail_fast=True)
    assert (folder / "inputs" / path.name).is_file()
    words = commands(folder)["value_on_reals"]
    assert words[words.index("--inputs") + 1] == f"inputs/{path.name}"
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert f"--inputs inputs/{path.name}" in text
    assert {x.outcome for x in bundle.check(folder)} == {"reproduced"}


def test_what_failed_without_a_counterexample_is_judged_again(written):
    expected = {"shape_and_dtype": "it is said to be wrong"}
    folder = written(checks=["shape_and_dtype"], expect_failure=expected)
    (again,) = bundle.check(folder)
    assert (again.check, again.outcome) == ("shape_and_dtype", "reproduced")


def test_what_was_expected_to_fail_is_shown_again(written):
    folder = written(checks=CHECKS, expect_failure=dict.fromkeys(CHECKS[:1], "known"))
    shown = {x.check: x.outcome for x in bundle.check(folder)}
    assert shown[CHECKS[0]] == "reproduced"

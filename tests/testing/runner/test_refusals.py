"""A name that is unknown anywhere ends the command with 2, and the nearest name."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import linkern
from linkern import cli
from linkern.cli import verdicts
from linkern.testing import Plan, UsageError, verify
from linkern.testing.runner import remedies

KERNELS = Path(__file__).parents[1] / "targets.py"


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize(
    ("target", "words", "sentence"),
    [
        ("god", (), 'has no attribute "god"; did you mean "good"?'),
        ("layer.weigth", (), 'has no attribute "layer.weigth"; did you mean "weight"?'),
        ("good", ("--declare", "vjp=gradient_of_good"), 'mean "gradients_of_good"?'),
        ("good", ("--option", "keys=1"), 'of "{}:good" "keys"; did you mean "key"?'),
        ("good", ("--device", "cuda"), 'numpy has no device "cuda"; it has cpu.'),
    ],
)
def test_unknown_names(target, words, sentence, in_process, monkeypatch):
    monkeypatch.setattr(verdicts, "run_canaries", lambda seed: None)
    command = ["verify", f"{KERNELS}:{target}", "--op", "linear_attention", *words]
    where = ["--in-process"] if in_process else []
    result = CliRunner().invoke(cli.main, [*command, *where])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert sentence.format(KERNELS) in said


def test_devices_that_a_library_does_not_know(torch):
    target = f"{KERNELS}:good"
    command = ["verify", target, "--op", "linear_attention", "--framework", "torch"]
    result = CliRunner().invoke(cli.main, [*command, "--device", "cud", "--in-process"])
    assert result.exit_code == 2
    assert 'torch has no device "cud"' in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("raised ValueError: shapes do not fit (my_cuda.py:3)", "name another order"),
        ("raised ValueError: needs CUDA (mine.py:3)", "seems to need a GPU"),
        ("raised ValueError: (a triton kernel) (mine.py:3)", "seems to need a GPU"),
    ],
)
def test_names_of_files_are_no_hints(refusal, words):
    class Never:
        def runs(self, *_):
            return False

    plan = Plan("mine.py:kernel", "linear_attention", framework="numpy")
    assert words in remedies.remedy(plan, refusal, Never())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"op": 3}, 'unknown operator "3"; known: abc, '),
        ({"op": None}, 'unknown operator "None"; known: '),
        ({"profile": 3}, 'unknown profile "3"; known: '),
        ({"framework": 3}, 'unknown framework "3"; known: '),
        ({"target": None}, "`target` must be a function, or the name of one, .* NoneT"),
        ({"target": ["a.py:f"]}, "`target` must be a function, .* got list"),
        (
            {"checks": "causality"},
            r"`checks` must be a list, .* write \['causality'\]",
        ),
        ({"dtypes": 3}, r"`dtypes` must be a list, got 3; write \[3\]"),
        ({"ranks": 2}, r"`ranks` must be a list, got 2; write \[2\]"),
    ],
)
def test_what_no_option_of_verify_is(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        verify(**{"target": linkern.gla, "op": "gla", "profile": "smoke"} | options)

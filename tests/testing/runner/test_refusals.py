"""A name that is unknown anywhere ends the command with 2, and the nearest name."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from linkern import cli
from linkern.cli import verdicts

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

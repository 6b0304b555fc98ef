"""``linkern emulate``: our example passes, faults planted in it are found."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

import linkern
from linkern import cli
from tests.kernels.cuda.emulator.build import require_compiler
from tests.marks import every

KERNEL = Path(__file__).parents[2] / "examples" / "linear_attention.cu"
COMMAND = re.search(
    r"linkern (emulate.*?)\"\n//\n", KERNEL.read_text(encoding="utf-8"), re.DOTALL
)[1]
# The options of the command at the head of the example.
OPTIONS = shlex.split(re.sub(r"\\\n// +", "", COMMAND))[4:]

MAIN = "from linkern.cli import main; main()"


@pytest.fixture(autouse=True)
def compiler():
    require_compiler()


def inputs_of(seed, tokens=13, key_dim=4, value_dim=6):
    rng = np.random.default_rng(seed)
    dims = {"query": key_dim, "key": key_dim, "value": value_dim}
    return {
        name: rng.normal(size=(2, 3, tokens, dim)).astype(np.float32)
        for name, dim in dims.items()
    }


def emulate(folder, inputs, *words, source=KERNEL):
    save_file(inputs, folder / "inputs")
    command = ["emulate", str(source), str(folder / "inputs"), str(folder / "outputs")]
    return CliRunner().invoke(cli.main, [*command, *words])


def planted(folder, old, new):
    """Write the example with a fault."""
    text = KERNEL.read_text(encoding="utf-8")
    assert text.count(old) == 1
    (folder / "faulty.cu").write_text(text.replace(old, new), encoding="utf-8")
    return folder / "faulty.cu"


def close(outputs, result):
    pairs = [
        (outputs["output"], result.output),
        (outputs["memory"], result.state.memory),
        (outputs["normalizer"], result.state.normalizer),
    ]
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in pairs)


def test_the_example_computes_linear_attention_and_its_state(tmp_path):
    inputs = inputs_of(0)
    done = emulate(tmp_path, inputs, *OPTIONS)
    assert done.exit_code == 0, done.output
    outputs = load_file(tmp_path / "outputs")
    before = linkern.linear_attention(**inputs)
    assert close(outputs, before)
    further = inputs_of(1, tokens=5)
    state = {"initial_memory": outputs["memory"]}
    state["initial_normalizer"] = outputs["normalizer"]
    assert emulate(tmp_path, further | state, *OPTIONS).exit_code == 0
    after = linkern.linear_attention(**further, initial_state=before.state)
    assert close(load_file(tmp_path / "outputs"), after)


def test_a_wrong_index_gives_wrong_values(tmp_path):
    source = planted(tmp_path, "key[(head * T + start) * K", "key[head * T * K")
    inputs = inputs_of(0)
    assert emulate(tmp_path, inputs, *OPTIONS, source=source).exit_code == 0
    outputs = load_file(tmp_path / "outputs")
    assert not close(outputs, linkern.linear_attention(**inputs))


BARRIER = ("    __syncthreads();\n    float results", "    float results")
TAIL = ("min(kTile, T - start)", "kTile")


def test_a_missing_barrier_makes_results_depend_on_the_order(tmp_path):
    source = planted(tmp_path, *BARRIER)
    done = emulate(tmp_path, inputs_of(0), *OPTIONS, "--schedules", "4", source=source)
    assert done.exit_code == 1
    assert "`output` depends on the order of threads" in done.output
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "fault", "says"),
    [
        ("thread", BARRIER, r"data race: \w+ at faulty.cu:\d+ and \w+ at faulty.cu"),
        ("address", TAIL, r"faulty.cu:\d+: read of 4 bytes outside of an array"),
    ],
)
def test_sanitizers_name_the_lines_of_planted_faults(tmp_path, mode, fault, says):
    words = [*OPTIONS, "--sanitize", mode]
    assert emulate(tmp_path, inputs_of(0), *words).exit_code == 0
    source = planted(tmp_path, *fault)
    done = emulate(tmp_path, inputs_of(0), *words, source=source)
    assert done.exit_code == 1
    assert re.search(says, done.output), done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code"),
    # A fault is made smaller by calls that are programs of their own.
    every(2, [(None, 0), (("k[i] = feature(key", "k[i] = (key"), 1)], slow=0),
)
def test_a_kernel_is_judged_without_a_gpu(tmp_path, fault, code):
    source = KERNEL if fault is None else planted(tmp_path, *fault)
    words = [
        sys.executable,
        "-c",
        MAIN,
        "emulate",
        str(source),
        "{inputs}",
        "{outputs}",
        *OPTIONS,
    ]
    # Each call starts a program: a fault is seen in few.
    checks = ("value_on_integers", "causality", "state_split")[: 1 if code else None]
    judged = ["verify", "--command", shlex.join(words), "--op", "linear_attention"]
    judged += ["--declare", "takes_state=true", "--dtype", "float32"]
    judged += [word for check in checks for word in ("--check", check)]
    judged += ["--profile", "smoke", "--timeout", "120"]
    done = CliRunner().invoke(cli.main, judged)
    assert done.exit_code == code, done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--entry", "linear"], "its kernels are: `linear_attention`"),
        (["--block", ""], "must be arithmetic"),
        (["--read", "k=key"], "must name parameters of `linear_attention`"),
        (["--read", "key=key[B,H,K]"], "must have the axes [B, H, K]"),
        (["--read", "memory->x"], "must be PARAMETER=TENSOR[AXES]"),
        (["--write", "output"], "must say the axes"),
        (["--number", "T"], "must be NAME=VALUE"),
    ],
)
def test_bad_options_exit_with_2_and_a_sentence(tmp_path, words, says):
    done = emulate(tmp_path, inputs_of(0), *OPTIONS, *words)
    assert done.exit_code == 2
    assert says in done.output
    assert "Traceback" not in done.output


def test_what_is_left_out_is_asked_for(tmp_path):
    assert OPTIONS[2] == "--grid"
    done = emulate(tmp_path, inputs_of(0), *OPTIONS[:2], *OPTIONS[4:])
    assert "`--grid` and `--block` must say" in done.output
    done = emulate(tmp_path, inputs_of(0), *OPTIONS[:6])
    assert "the parameter `initial_memory` must have a value" in done.output


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["thread", "address"])
def test_a_sanitizer_without_addresses_says_what_to_do(tmp_path, mode):
    words = ["ulimit -d 4194304; exec", sys.executable, "-c", shlex.quote(MAIN)]
    save_file(inputs_of(0), tmp_path / "inputs")
    words += ["emulate", shlex.join([str(KERNEL), str(tmp_path / "inputs")])]
    words += [str(tmp_path / "outputs"), shlex.join([*OPTIONS, "--sanitize", mode])]
    done = subprocess.run(
        ["sh", "-c", " ".join(words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "`ulimit -d unlimited`" in done.stderr


def test_a_file_that_is_none_of_tensors_is_refused(tmp_path):
    save_file(inputs_of(0), tmp_path / "inputs")
    words = ["emulate", str(KERNEL), str(KERNEL), str(tmp_path / "out"), *OPTIONS]
    done = CliRunner().invoke(cli.main, words)
    assert done.exit_code == 2
    assert "must be a safetensors file" in done.output

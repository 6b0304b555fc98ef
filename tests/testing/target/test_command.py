"""Commands as targets: what goes in and out, and every way in which they can fail."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from linkern.testing import UsageError
from linkern.testing.errors import TargetDied, TargetRaised
from linkern.testing.target.command import CommandTarget
from linkern.testing.target.protocol import Call, TargetConfig
from tests.waiting import LONG, eventually

HERE = Path(__file__).parents[1]
EXAMPLE = HERE.parents[1] / "examples" / "command_kernel.py"
FILES = "{inputs} {outputs}"
LAYOUTS = ("bhtd", "bthd", "htd", "td")


def target(command, timeout=LONG, **options):
    of_target = {
        name: options.pop(name)
        for name in ("takes_state", "differentiable")
        if name in options
    }
    where = TargetConfig("", **options)
    return CommandTarget(command, where, timeout, **of_target)


def program(name, **options):
    words = [sys.executable, "-S", str(HERE / "commands.py"), name]
    return target(f"{shlex.join(words)} {FILES}", **options)


def shell(script, *words, **options):
    """Run a script whose `$0` and `$1` are the paths of the two files."""
    return target(f"sh -c {shlex.quote(script)} {FILES} {shlex.join(words)}", **options)


def example(**options):
    python, file = shlex.quote(sys.executable), shlex.quote(str(EXAMPLE))
    return target(f"{python} {file} {FILES}", takes_state=True, **options)


def random_call(length=5, dtype=np.float32, layout="bhtd", **options):
    rng = np.random.default_rng(0)
    lead = {"htd": (1, 3), "td": (1, 1)}.get(layout, (2, 3))
    query, key = rng.normal(size=(2, *lead, length, 4)).astype(dtype)
    return of(query, key, rng.normal(size=(*lead, length, 6)).astype(dtype), **options)


def of(query, key, value, **options):
    return Call({"query": query, "key": key, "value": value}, **options)


def dtype_named(name):
    if name == "bfloat16":
        return pytest.importorskip("ml_dtypes").bfloat16
    return np.dtype(name)


# -- what goes in and out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_numbers_come_back_bit_for_bit(name, layout):
    call = random_call(dtype=dtype_named(name), layout=layout)
    reply = program("copies", layout=layout).call(call)
    wide = np.float64 if name == "float64" else np.float32
    assert reply.dtype == name
    assert reply.output.dtype == wide
    assert reply.output.tobytes() == call.inputs["value"].astype(wide).tobytes()
    sizes = dict(zip("bhtd", call.inputs["value"].shape, strict=True))
    assert reply.shape == reply.expected_shape == tuple(sizes[a] for a in layout)
    assert not reply.changed
    assert not reply.aliased
    assert not reply.traces


def test_no_token_is_a_call_too():
    reply = program("copies").call(random_call(length=0))
    assert reply.output.shape == reply.shape == (2, 3, 0, 6)


@pytest.mark.parametrize(("declared", "scale"), [(0.25, "0.25"), ("K^-0.5", "0.5")])
def test_metadata_say_what_is_asked_for(declared, scale):
    asked = program("shows_metadata", layout="bthd", scale=declared)
    with pytest.raises(TargetRaised) as raised:
        asked.call(random_call(wants_state=True))
    assert json.loads(str(raised.value).partition("; it last wrote: ")[2]) == {
        "format": "linkern",
        "op": "linear_attention",
        "layout": "bthd",
        "dtype": "float32",
        "scale": scale,
        "wants_state": "true",
    }


def test_a_wrong_shape_and_a_wrong_dtype_are_reported():
    call = random_call()
    reply = program("copies_the_query").call(call)
    assert (reply.shape, reply.expected_shape) == ((2, 3, 5, 4), (2, 3, 5, 6))
    assert program("returns_integers").call(call).dtype == "int32"


def test_the_environment_of_the_referee_is_passed_on(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with pytest.raises(TargetRaised, match="it last wrote: threads 3"):
        shell('echo "threads $OMP_NUM_THREADS" >&2; exit 1').call(random_call())


def test_paths_can_be_parts_of_words():
    with pytest.raises(TargetRaised, match=r"--in=/.*/inputs\.safetensors,/.*/outputs"):
        target("sh -c 'echo \"$0\" >&2; exit 1' --in={inputs},{outputs},{inputs}").call(
            random_call()
        )


# -- states, gradients, threads


def test_states_are_handed_over_bit_for_bit():
    rng = np.random.default_rng(1)
    spans = rng.normal(size=(2, 1, 1, 3, 2)).astype(np.float32)
    value = np.concatenate(spans, axis=-2)
    reply = program("remembers", takes_state=True).call(
        of(value, value, value, cuts=(3,))
    )
    assert np.array_equal(reply.output, np.concatenate(spans[[0, 0]], axis=-2))
    # Its memory has a shape of its own: that is said, and not read as a state.
    assert reply.states is None
    assert reply.state_kind == "tensor `memory` of shape (1, 1, 3, 2)"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_states_come_back_in_the_order_of_the_judge(layout):
    call = random_call(layout=layout, wants_state=True)
    memory, normalizer = (
        program("hands_over_a_memory", layout=layout, takes_state=True)
        .call(call)
        .states
    )
    lead = call.inputs["query"].shape[:2]
    assert np.array_equal(memory, np.full((*lead, 4, 6), 3, np.float32))
    assert np.array_equal(normalizer, np.ones((*lead, 4), np.float32))


@pytest.mark.parametrize("layout", ["bhtd", "td"])
def test_the_example_goes_on_where_it_left_off(layout):
    kernel = example(layout=layout)
    whole = random_call(length=7, layout=layout)
    # With features of one and integer values, every sum is exact in every order.
    zeros = np.zeros_like(whole.inputs["query"])
    value = np.rint(whole.inputs["value"] * 4)
    one = kernel.call(of(zeros, zeros, value, wants_state=True))
    other = kernel.call(of(zeros, zeros, value, cuts=(0, 2, 6)))
    assert np.array_equal(one.output, other.output)
    sums = np.cumsum(value, -2)
    assert np.array_equal(one.output, sums / np.arange(1, 8, dtype="f4")[:, None])
    for reply in (one, other):
        memory, normalizer = reply.states
        assert np.array_equal(memory, np.repeat(sums[..., -1:, :], 4, axis=-2))
        assert (normalizer == 7).all()


def test_a_state_that_is_declared_must_be_written():
    stateless = program("copies", takes_state=True)
    for asked in ({"cuts": (2,)}, {"wants_state": True}):
        with pytest.raises(TargetRaised, match="no tensor `memory`"):
            stateless.call(random_call(**asked))
    assert program("copies").call(random_call(wants_state=True)).state_kind == ""


def test_a_span_of_the_wrong_shape_is_named():
    with pytest.raises(
        TargetRaised, match=r"for tokens 0 to 2 alone, .* \(2, 3, 2, 6\)"
    ):
        program("copies_the_query", takes_state=True).call(random_call(cuts=(2,)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["float64", "bfloat16"])
def test_gradients(name, layout):
    call = random_call(dtype=dtype_named(name), layout=layout)
    cotangent = call.inputs["value"][..., ::-1]
    call = of(*call.inputs.values(), cotangent=cotangent)
    reply = program("differentiates", layout=layout, differentiable=True).call(call)
    due = (call.inputs["query"], call.inputs["key"], call.cotangent)
    for got, exact in zip(reply.gradients, due, strict=True):
        assert np.array_equal(got, exact.astype(got.dtype))
    assert reply.gradient_dtypes == (name,) * 3
    assert reply.not_differentiable == ""


def test_gradients_that_there_are_none_of():
    call = random_call(cotangent=random_call().inputs["value"])
    assert "not declared" in program("copies").call(call).not_differentiable
    with pytest.raises(TargetRaised, match="no tensor `query_gradient`"):
        program("copies", differentiable=True).call(call)
    cotangent = random_call(length=4).inputs["value"]
    cut = random_call(length=4, cuts=(2,), cotangent=cotangent)
    reply = program("remembers", differentiable=True).call(cut)
    assert reply.gradients is None
    assert "whole sequences only" in reply.not_differentiable


def test_threads_are_processes_at_once(tmp_path):
    # Each waits for the other: one after the other, they would wait for ever.
    call = random_call(threads=2)
    script = (
        f"mkdir {shlex.quote(str(tmp_path))}/$$; "
        f"until [ $(ls {shlex.quote(str(tmp_path))} | wc -l) -ge 2 ]; do :; done; "
        f"{shlex.quote(sys.executable)} {shlex.quote(str(HERE / 'commands.py'))} "
        'copies "$0" "$1"'
    )
    reply = shell(script).call(call)
    assert len(reply.other_outputs) == 1
    assert np.array_equal(reply.other_outputs[0], call.inputs["value"])
    assert np.array_equal(reply.output, call.inputs["value"])


def test_a_crash_among_threads_is_a_crash():
    with pytest.raises(TargetDied, match="SIGKILL"):
        shell("kill -KILL $$").call(random_call(threads=3))


# -- every way to fail


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("exit 7", "exit code 7"),
        (
            "echo first >&2; echo '  no device ' >&2; exit 3",
            "exit code 3; it last wrote: no device",
        ),
        ("echo ignored", "nothing, but wrote no file to {outputs}"),
        ('mkdir "$1"', "nothing, but wrote no safetensors file ("),
        ('echo garbage, and more of it > "$1"', "no safetensors file ("),
        ('head -c 40 "$0" > "$1"', "no safetensors file"),
        (': > "$1"', "no safetensors file ("),
        ('cp "$0" "$1"', "no tensor `output` (there are: `key`, `query`, `value`)"),
    ],
)
def test_what_a_command_reports_is_raised(script, sentence):
    with pytest.raises(TargetRaised, match=re.escape(sentence)):
        shell(script).call(random_call())


def test_a_dtype_that_nobody_knows_is_named():
    with pytest.raises(TargetRaised, match="`output` of dtype F8_E4M3, which is none"):
        program("names_an_unknown_dtype").call(random_call())


def test_a_program_that_the_system_refuses_to_start(tmp_path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x00")
    broken.chmod(0o755)
    with pytest.raises(TargetRaised, match="Exec format error"):
        target(f"{shlex.quote(str(broken))} {FILES}").call(random_call())


@pytest.mark.parametrize("name", ["SEGV", "ABRT", "KILL", "FPE"])
def test_a_crash_is_named(name):
    with pytest.raises(TargetDied, match=f"crashed with SIG{name}; .*: mid") as died:
        shell(f"echo mid >&2; kill -{name} $$").call(random_call())
    assert not died.value.hung


def ended(reader):
    """Return True if nobody can write to a pipe any more."""
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize(
    ("end", "timeout", "outcome"),
    [
        ("wait", 0.5, "did not return within 0.5 s; it last wrote: busy"),
        ("exit 2", LONG, "exit code"),
    ],
)
def test_whatever_a_command_starts_ends_with_it(
    tmp_path, end, timeout, outcome, monkeypatch
):
    held, ready, busy = (tmp_path / name for name in ("held", "ready", "busy"))
    os.mkfifo(held)
    os.mkfifo(ready)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    # The one in the background says that it holds the pipe, and then never lets go.
    background = '(echo held; echo > "$2"; exec sleep 600) > "$1"'
    begin = f'shift; {background} & read -r _ < "$2"; echo busy >&2; echo > "$3"'
    command = shell(f"{begin}; {end}", *map(str, (held, ready, busy)), timeout=timeout)
    waited = subprocess.Popen.wait

    def wait_once_busy(process, timeout=None):
        assert eventually(busy.exists)
        return waited(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_once_busy)
    with pytest.raises((TargetDied, TargetRaised), match=outcome) as caught:
        command.call(random_call())
    assert getattr(caught.value, "hung", False) == (end == "wait")
    assert os.read(reader, 100) == b"held\n"
    assert eventually(lambda: ended(reader))
    os.close(reader)


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ('ln -s /etc/passwd "$1"', "no safetensors file ("),
        ('ln -s /dev/zero "$1"', "no safetensors file ("),
        ('mkfifo "$1"', "something else than a file to {outputs}"),
        ('truncate -s 3G "$1"', "3221225472 bytes, where "),
        ('truncate -s 60M "$1"', "no safetensors file ("),
        ('cp /bin/sh "$(dirname "$1")/inputs2"; mkfifo "$0.x"', "wrote no file"),
        (
            'printf "\\377\\377\\377\\377\\377\\377\\377\\177{}" > "$1"',
            "no safetensors file (",
        ),
    ],
)
def test_a_file_that_cannot_be_one_is_not_read(script, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tracemalloc.start()
    try:
        with pytest.raises(TargetRaised, match=re.escape(sentence)):
            shell(script).call(random_call())
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()
    assert not list(tmp_path.iterdir())


def test_no_folder_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for script in ('cp "$0" "$1"', "exit 1", "kill -SEGV $$"):
        with pytest.raises((TargetDied, TargetRaised)):
            shell(script).call(random_call())
    assert not list(tmp_path.iterdir())


def test_megabytes_of_chatter_are_not_kept():
    printed = 50_000_000
    noise = f'head -c {printed} /dev/zero | tr "\\0" x'
    tracemalloc.start()
    try:
        with pytest.raises(TargetRaised, match=r"it last wrote: x{200}$"):
            shell(f"{noise}; {noise} >&2; exit 1").call(random_call())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < printed / 10


# A command is limited once it runs; these two wait for that.
needs_limits = pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")


@needs_limits
def test_memory_is_limited():
    python = shlex.quote(sys.executable)
    greedy = f"{python} -c 'bytearray(2**28)' {FILES}"
    until = "from resource import *\nwhile getrlimit(RLIMIT_FSIZE)[0] < 0: pass\n"
    limited = greedy.replace("bytearray", f"{until}bytearray")
    with pytest.raises(TargetRaised, match="it last wrote: MemoryError"):
        target(limited, memory_limit=0.1).call(random_call())
    with pytest.raises(TargetRaised, match="wrote no file"):
        target(greedy, memory_limit=0.1, device="cuda").call(random_call())


@needs_limits
def test_files_are_limited():
    until = 'while [ "$(ulimit -f)" = unlimited ]; do :; done'
    script = f'{until}; exec head -c 1G /dev/zero > "$1"'
    with pytest.raises(TargetDied, match="crashed with SIGXFSZ"):
        shell(script, memory_limit=0.001).call(random_call())


# -- commands that cannot be used


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("cp {inputs} out", "add {outputs} where it takes the path of that file"),
        ("cp {input} {outputs}", "add {inputs} where"),
        ("", "add {inputs} and {outputs} where"),
        ("cp '{inputs} {outputs}", "as a shell reads them"),
        ("no-such-program-here {inputs} {outputs}", "is not there; give its path"),
        (f"{HERE}/commands.py {FILES}", "is not executable; give its path"),
        (f"{HERE} {FILES}", "is not there"),
        (FILES, 'but "{inputs}" is not there'),
    ],
)
def test_unusable_commands_are_refused(command, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        target(command)


def test_a_command_is_no_step():
    with pytest.raises(UsageError, match="a command gets whole sequences"):
        program("copies", interface="step")


# -- a kernel in C


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        if "cc" in os.environ.get("LINKERN_REQUIRE", "").split():
            pytest.fail("cc is required here and not installed")
        pytest.skip("cc is not installed: no kernel in C was judged")
    folder = tmp_path_factory.mktemp("compiled")

    def compile_kernel(name, *flags):
        source, built = HERE / "command_kernel.c", folder / name
        words = [compiler, "-O2", *flags, str(source), "-o", str(built), "-lm"]
        subprocess.run(words, check=True)
        return target(f"{shlex.quote(str(built))} {FILES}")

    return compile_kernel


def test_a_kernel_in_c_and_its_flaw(compiled):
    # With features of one, row i is the mean of 0 .. i: exact in float32.
    zeros = np.zeros((2, 2, 9, 3), np.float32)
    value = np.broadcast_to(np.arange(9, dtype=np.float32)[:, None], (2, 2, 9, 5))
    due = value / 2
    right = compiled("right").call(of(zeros, zeros, value))
    assert np.array_equal(right.output, due)
    wrong = compiled("wrong", "-DLOSE_LAST_KEY").call(of(zeros, zeros, value))
    assert np.array_equal(wrong.output[..., :-1, :], due[..., :-1, :])
    assert (wrong.output[..., -1, :] == 3.5).all()


def test_a_kernel_in_c_says_what_it_cannot_do(compiled):
    with pytest.raises(TargetRaised, match="only float32 is supported"):
        compiled("right").call(random_call(dtype=np.float64))

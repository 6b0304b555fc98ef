"""mypy knows that arrays of a library in give arrays of that library out."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import not_installed

ROOT = Path(__file__).parents[1]
ARRAYS = {
    "numpy": "NDArray[np.float64]",
    "torch": "torch.Tensor",
    "jax": "jax.Array",
}
IMPORTS = {
    "numpy": "import numpy as np\nfrom numpy.typing import NDArray\n",
    "torch": "import torch\n",
    "jax": "import jax\n",
}
CALLS = """
from typing import assert_type

import linkern
from linkern import AttentionResult, SpanMap, State


def calls(x: ARRAY, rows: list[ARRAY]) -> None:
    result = linkern.gla(x, x, x, scale=1.0)
    assert_type(result, AttentionResult[ARRAY])
    assert_type(result.output, ARRAY)
    assert_type(result.state, State[ARRAY])
    assert_type(result.state.memory, ARRAY)
    assert_type(result.state.normalizer, ARRAY | None)
    continued = linkern.gla(x, x, x, initial_state=result.state)
    assert_type(continued, AttentionResult[ARRAY])
    packed = linkern.gla(x, x, x, initial_state=x, cu_seqlens=[0, 2])
    assert_type(packed, AttentionResult[ARRAY])
    crosswise = linkern.linear_attention(x, x, x, causal=False)
    assert_type(crosswise, AttentionResult[ARRAY])
    decoded = linkern.linear_attention_step(None, x, x, x)
    assert_type(decoded, AttentionResult[ARRAY])
    one = linkern.step(linkern.gla, result.state, x, x, x)
    assert_type(one, AttentionResult[ARRAY])
    first = linkern.step(linkern.hgrn, None, x)
    assert_type(first, AttentionResult[ARRAY])
    listed, _ = linkern.vjp(linkern.kda, *rows, beta=x)
    assert_type(listed, AttentionResult[ARRAY])
    named, _ = linkern.vjp(linkern.kda, query=x, key=x, value=x)
    assert_type(named, AttentionResult[ARRAY])
    assert_type(State.zeros(2, 3, like=x), State[ARRAY])
    assert_type(result.state.combine(result.state), State[ARRAY])
    assert_type(linkern.span_map(linkern.gla, x, x, x), SpanMap[ARRAY])


def without_parameters(state: State, result: AttentionResult) -> State:
    return result.state


def takes_less(x: ARRAY) -> State:
    return without_parameters(linkern.hgrn(x).state, linkern.hgrn(x))
"""


# Each line is one mistake, with what mypy says of it.
MISTAKES = {
    "assert_type(linkern.gla(x, x, x).output, str)": 'not "str"',
    "y: list[float] = linkern.gla(x, x, x).output": "Incompatible types in assignment",
    "linkern.gla(x, x)": 'Missing positional argument "value"',
    "linkern.gla(x, x, x, g=x)": 'Unexpected keyword argument "g"',
    "linkern.gla([1.0], x, x)": 'cannot be "object"',
    "linkern.gla(x, x, x, initial_state=[1.0])": "has incompatible type",
}


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """Return what mypy prints about a program, line by line."""
    if find_spec("mypy") is None:
        not_installed("mypy")
    folder = tmp_path_factory.mktemp("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]

    def check(program):
        (folder / "program.py").write_text(program)
        done = subprocess.run(
            [*command, "program.py"],
            cwd=folder,
            env=os.environ | {"MYPYPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.splitlines()

    return check


def calls_with(library):
    return IMPORTS[library] + CALLS.replace("ARRAY", ARRAYS[library])


def test_arrays_of_numpy(mypy):
    """All is as it says, but for the mistakes that come after it."""
    program = calls_with("numpy") + "\nx: NDArray[np.float64]\n"
    printed = mypy(program + "\n".join(MISTAKES))[:-1]
    errors = [line for line in printed if ": note: " not in line]
    first = program.count("\n") + 1
    assert len(errors) == len(MISTAKES)
    for line, (error, sentence) in enumerate(
        zip(errors, MISTAKES.values(), strict=True), first
    ):
        assert error.startswith(f"program.py:{line}: error: ")
        assert sentence in error


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_arrays_of_other_libraries(mypy, name, request):
    """All is as it says, but for the last line."""
    request.getfixturevalue(name)
    mistake = f"x: {ARRAYS[name]}\ny: str = linkern.gla(x, x, x).output\n"
    error, _ = mypy(f"{calls_with(name)}\n{mistake}")
    kind = ARRAYS[name].rpartition(".")[2]
    assert f'expression has type "{kind}", variable has type "str"' in error

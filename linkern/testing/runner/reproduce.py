"""Counterexamples as files: inputs as `.npz`, and a script that needs only NumPy.

The scripts are `scripts.function`, `scripts.command` and, over ranks, `scripts.verdict`
with their constants filled in.
"""

import os
import re
import shlex
from dataclasses import replace
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.checks.registry import CHECKS
from linkern.testing.runner.plan import DEFAULT_DTYPES, Plan
from linkern.testing.runner.results import CheckResult, Counterexample
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import as_text
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.spec.raw_gates import PARAMETRIC_FORMS, gate_names
from linkern.testing.target.arguments import gate_arrays, state_buffer
from linkern.testing.target.command import metadata_of
from linkern.testing.target.loading import Interface
from linkern.testing.target.memory_layout import byte_offset, place
from linkern.testing.target.protocol import MEMORY_LIMIT, Call, TargetConfig, to_layout
from linkern.testing.target.segments import per_query, scale_of

__all__ = ["command", "keywords", "write", "wrong_entry"]

_HEADING = '''\
"""{target} breaks the law `{check}` of {op}.

{statement}.
Observed: {message}.
Input: {input}.
Judge again with:  {again}
"""
'''

_NATIVE = {
    "numpy": "def native(x):\n    return x{half}\n",
    "array_api_strict": "import array_api_strict\n\n\n"
    "def native(x):\n    return array_api_strict.asarray(x)\n",
    "torch": """import torch


def native(x):
    # With the memory around it, so that strides are the same on a device.
    held = x.base if getattr(x.base, "dtype", None) == x.dtype else x
    memory = torch.from_numpy(held){half}.to({device!r})
    first = (x.ctypes.data - held.ctypes.data) // x.itemsize
    return memory.as_strided(x.shape, [n // x.itemsize for n in x.strides], first)
""",
    "jax": "import jax\n\njax.config.update('jax_enable_x64', True)\n\n\n"
    "def native(x):\n    return jax.numpy.asarray(x){half}\n",
    "cupy": """import cupy


def native(x):
    held = x.base if getattr(x.base, "dtype", None) == x.dtype else x
    first = (x.ctypes.data - held.ctypes.data) // x.itemsize
    with cupy.cuda.Device({index}):
        memory = cupy.asarray(held.reshape(-1){half})[first:]
    strides = [n // x.itemsize * memory.itemsize for n in x.strides]
    return cupy.lib.stride_tricks.as_strided(memory, x.shape, strides)
""",
}
# bfloat16 is stored as float32, which holds it exactly.
_HALF = {
    "numpy": '.astype(__import__("ml_dtypes").bfloat16)',
    "torch": ".to(torch.bfloat16)",
    "jax": ".astype(jax.numpy.bfloat16)",
    "cupy": '.astype(__import__("ml_dtypes").bfloat16)',
    "array_api_strict": "",
}


def command(plan: Plan, *checks: str, expecting: bool = False) -> str:
    """Return the shell command that runs a plan, or some of its checks, again.

    A function that no module holds, as in a notebook, is judged again by a call.
    Checks that are named are judged as they are, or `expecting` them to fail as the
    plan does.
    """
    if checks and not expecting:
        plan = replace(plan, expect_failure={})
    place, _, attribute = plan.target.rpartition(":")
    if plan.function is not None and (place == "__main__" or "<" in attribute):
        return _verify_call(plan, attribute, checks)
    target = [plan.target] if plan.command is None else ["--command", plan.command]
    words = ["linkern", "verify", *target, "--op", plan.op]
    if plan.framework not in (None, "numpy"):
        words += ["--framework", plan.framework]
    if plan.device != "cpu":
        words += ["--device", plan.device]
    words += ["--interpret"] if plan.interpret else []
    words += ["--ranks", ",".join(map(str, plan.ranks))] if plan.ranks else []
    for dtype in plan.dtypes if plan.dtypes != DEFAULT_DTYPES else ():
        words += ["--dtype", dtype]
    for key, value in plan.contract.declared().items():
        words += ["--declare", f"{key}={as_text(value)}"]
    for key, value in plan.options.items():
        words += ["--option", f"{key}={value!r}"]
    if plan.inputs is not None:
        words += ["--inputs", plan.inputs]
    words += ["--sandbox"] if plan.sandbox else []
    words += ["--in-process"] if plan.in_process else []
    if plan.timeout is not None:
        words += ["--timeout", f"{plan.timeout:g}"]
    if plan.memory_limit != MEMORY_LIMIT:
        words += ["--memory", f"{plan.memory_limit:g}"]
    words += ["--profile", plan.profile, "--seed", str(plan.seed)]
    for check in checks:
        words += ["--check", check]
    for check, reason in _expected(plan, checks).items():
        words += ["--expect-failure", f"{check}={reason}"]
    return shlex.join(words)


def _verify_call(plan: Plan, attribute: str, checks: tuple[str, ...]) -> str:
    """Return the call of `linkern.testing.verify` that judges a function again."""
    name = attribute.rpartition(".")[2]
    options: dict[str, Any] = {"op": plan.op, "profile": plan.profile}
    options["seed"] = plan.seed
    default = Plan(plan.target, plan.op)
    for field in ("framework", "device", "timeout", "inputs"):
        if getattr(plan, field) != getattr(default, field):
            options[field] = getattr(plan, field)
    if plan.dtypes not in ((), DEFAULT_DTYPES):
        options["dtypes"] = [*plan.dtypes]
    if plan.options:
        options["options"] = dict(plan.options)
    if plan.contract.declared():
        options["contract"] = plan.contract.declared()
    if checks:
        options["checks"] = [*checks]
    expected = _expected(plan, checks)
    if expected:
        options["expect_failure"] = expected
    words = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return f"verify({name.strip('<>')}, {words})"


def _expected(plan: Plan, checks: tuple[str, ...]) -> dict[str, str]:
    """Return the failures that are expected of these checks, or of all."""
    expected = plan.expect_failure.items()
    return {name: why for name, why in expected if not checks or name in checks}


def _script_name(plan: Plan, check: str) -> str:
    """Return the file name of the script of one check."""
    if plan.command is not None:
        return f"{Path(shlex.split(plan.command)[0]).stem}-{check}.py"
    return f"{plan.target.rpartition(':')[2]}-{check}.py"


def write(
    plan: Plan,
    result: CheckResult,
    example: Counterexample,
    folder: Path,
    root: Path = Path(),
) -> Path:
    """Write the counterexample of a result, and return the path of its script.

    The path of a target is as seen from `root`, by default the working directory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / _script_name(plan, result.name)
    arrays, views = _arrays(plan, example)
    np.savez(script.with_suffix(".npz"), **arrays)
    again = result.again or command(plan, result.name)
    heading = _HEADING.format(
        target=plan.target,
        check=result.name,
        op=plan.op,
        statement=result.statement,
        message=result.message,
        input=example.input,
        again=again,
    )
    constants: dict[str, Any] = {
        "WRONG": wrong_entry(example, plan.contract.layout),
        "IN_OUTPUTS": CHECKS[result.name].in_outputs,
        "AGAIN": again,
    }
    if plan.ranks:  # no script of one process shows it
        text = _filled("verdict.py", heading, {"AGAIN": again}, "")
    elif plan.command is not None:
        constants |= _of_command(plan, example)
        text = _filled("command.py", heading, constants, "")
    else:
        constants |= _of_function(plan, example, views, folder, root)
        values = [call.inputs["value"] for call in example.calls]
        half = any(x.dtype.name == "bfloat16" for x in values)
        library = plan.framework or "numpy"
        native = _NATIVE[library].format(
            half=_HALF[library] if half else "",
            device=plan.device,
            index=plan.device.partition(":")[2] or 0,
        )
        text = _filled("function.py", heading, constants, native)
    script.write_text(text, encoding="utf-8")
    return script


def _filled(name: str, heading: str, constants: dict[str, Any], native: str) -> str:
    source = (
        resources.files("linkern.testing.runner.scripts").joinpath(name).read_text()
    )
    lines = [f"{key} = {value!r}" for key, value in constants.items()]
    block = "\n".join(lines) + ("\n\n\n" + native if native else "")
    source = source.removeprefix('"""HEADING"""\n')
    pattern = r"# <constants>\n.*?# </constants>"
    filled = re.sub(pattern, lambda _: block, source, flags=re.DOTALL)
    # The backslashes and quotes of a message would end or change the docstring.
    inside = heading[3:-4].replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{inside}"""\n{filled}'


def _arrays(plan: Plan, example: Counterexample) -> tuple[dict[str, Any], list[Any]]:
    """Return the arrays to store, and the view of each call into them."""
    arrays: dict[str, NDArray[Any]] = {}
    views = []
    layout, operator = plan.contract.layout, OPERATORS[plan.op]
    # A call that did not return, and every call after it, has no output.
    pairs = zip_longest(example.calls, example.outputs[: len(example.calls)])
    for i, (call, output) in enumerate(pairs):
        seen: dict[str, Any] = {}
        for name, array in call.inputs.items():
            x = to_layout(array, layout, operator.input(name).axes)
            if x.dtype.name == "bfloat16":
                x = x.astype(np.float32)
            stored, view = _in_memory(x, call)
            arrays[f"{name}_{i}"] = stored
            if view is not None:
                seen[f"{name}_{i}"] = view
        gates = gate_arrays(_environment(plan), call)
        arrays |= {f"{name}_{i}": x for name, x in gates.items()}
        if output is not None:
            arrays[f"output_{i}"] = to_layout(output.astype(np.float64), layout)
        views.append(seen)
    return arrays, views


def _in_memory(x: NDArray[Any], call: Call) -> tuple[NDArray[Any], Any]:
    """Return the memory that holds an input, and the view of the input into it."""
    if call.memory == "contiguous":
        return x, None
    placed = place(x, call.memory)
    view, base = placed.view, placed.base
    return base.ravel(order="K"), (view.shape, byte_offset(view, base), view.strides)


def _of_function(
    plan: Plan, example: Counterexample, views: Any, folder: Path, root: Path
) -> dict[str, Any]:
    place_, _, attribute = plan.target.rpartition(":")
    if place_.endswith(".py"):
        # As seen from the script, so that both can be moved together.
        place_ = os.path.relpath((root / place_).resolve(), folder.resolve())
    interface = example.interface
    return {
        "PLACE": place_,
        "ATTRIBUTE": attribute,
        "CALLS": [
            {
                "options": keywords(plan, interface, call),
                "cuts": call.cuts,
                "segments": call.segments,
                "views": seen,
                "state_shape": state_buffer(_environment(plan), call).shape,
                "dtype": _stored_dtype(call),
            }
            for call, seen in zip(example.calls, views, strict=True)
        ],
        "NAMES": OPERATORS[plan.op].names,
        "TIMES": _token_axes(plan),
        "INPUTS": interface.inputs,
        "STATE": interface.state,
        "NEEDS_STATE": bool({*interface.state} & interface.needed),
        "FINAL_STATE": interface.final_state,
        "PACKED": interface.cu_seqlens,
        "OFFSETS": plan.contract.cu_seqlens_dtype,
        "POSITION": interface.position,
        "OUTPUT": interface.output,
        "OUTPUT_STATE": interface.output_state,
        "GATES": _gate_names(plan.contract),
        "TIME": plan.contract.layout.index("t"),
        "STEPS": plan.contract.interface == "step",
    }


def keywords(plan: Plan, interface: Interface, call: Call) -> dict[str, Any]:
    """Return the keyword arguments of a call besides its inputs and states."""
    return {
        **_scale(interface, plan, call),
        **_micro_steps(interface, plan, call),
        **plan.options,
        **call.options,
    }


def _scale(interface: Interface, plan: Plan, call: Call) -> dict[str, float]:
    """Return the scale argument of a target that has one."""
    left_out = interface.scale is None or call.scale == "omitted"
    if left_out or not OPERATORS[plan.op].has_scale:
        return {}
    assert interface.scale is not None
    return {interface.scale: scale_of(_environment(plan), call)}


def _micro_steps(interface: Interface, plan: Plan, call: Call) -> dict[str, int]:
    """Return the number of keys of each query, for a target that takes it."""
    if interface.micro_steps is None:
        return {}
    sizes = OPERATORS[plan.op].sizes(call.inputs)
    return {interface.micro_steps: per_query(sizes) or 1}


def _environment(plan: Plan) -> TargetConfig:
    contract = plan.contract
    return TargetConfig(
        "",
        layout=contract.layout,
        scale=contract.scale,
        op=OPERATORS[plan.op].name,
        state_layout=contract.state_layout,
        decay_form=contract.decay_form,
        gate_parameters=contract.gate_parameters,
    )


def _gate_names(contract: Contract) -> tuple[str, ...]:
    """Return the parameters of raw gates that a target takes."""
    raw = contract.decay_form in PARAMETRIC_FORMS
    return gate_names(contract.gate_parameters) if raw else ()


def _stored_dtype(call: Call) -> str:
    """Return the dtype in which the inputs of a call are stored."""
    name = call.inputs["value"].dtype.name
    return "float32" if name == "bfloat16" else name


def _token_axes(plan: Plan) -> dict[str, int]:
    """Return the token axis of each input, in the layout of the target."""
    axis = plan.contract.layout.index("t")
    return {one.name: axis for one in OPERATORS[plan.op].inputs if one.per_token}


def _of_command(plan: Plan, example: Counterexample) -> dict[str, Any]:
    where = _environment(plan)
    return {
        "COMMAND": plan.command,
        "NAMES": OPERATORS[plan.op].names,
        "TIMES": _token_axes(plan),
        "CALLS": [
            {"metadata": metadata_of(call, where), "cuts": call.cuts}
            for call in example.calls
        ],
    }


def wrong_entry(
    example: Counterexample, layout: str
) -> tuple[tuple[int, ...], float, float] | None:
    """Return the wrong entry of the last output, and the least and greatest it may be.

    The index is in the target's order of axes; None if no output is wrong.
    """
    if example.allowed is None or example.index is None or len(example.index) != 4:
        return None
    named = dict(zip("bhtd", example.index, strict=True))
    return (tuple(named[axis] for axis in layout), *example.allowed)

"""Counterexamples as files: inputs as `.npz`, and a script that needs only NumPy."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from linkern.testing.contract import as_text
from linkern.testing.operators import INPUT_NAMES
from linkern.testing.plan import Plan
from linkern.testing.report import CheckResult, Counterexample
from linkern.testing.worker import to_layout

__all__ = ["command", "write"]

_SCRIPT = '''\
"""{target} breaks the law `{check}` of {op}.

{statement}.
Observed: {message}.
Input: {input}.
Judge again with:  {command}
"""

import importlib
import importlib.util
import shlex
from pathlib import Path
from typing import Any

import numpy as np

PLACE, ATTRIBUTE = {place!r}, {attribute!r}
CALLS = {options!r}
INDEX = {index!r}  # the first wrong entry of the output, in its own order of axes


def load():
    if PLACE.endswith(".py"):
        spec = importlib.util.spec_from_file_location("target", PLACE)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    else:
        found = importlib.import_module(PLACE)
    for name in ATTRIBUTE.split("."):
        found = getattr(found, name)
    return found


{convert}

target = load()
arrays = np.load(Path(__file__).with_suffix(".npz"))
for call, options in enumerate(CALLS):
    names = (f"query_{{call}}", f"key_{{call}}", f"value_{{call}}")
    inputs = [native(arrays[name]) for name in names]
    returned = target(*inputs, **options)
    output = returned[0] if isinstance(returned, tuple) else returned
    print(f"call {{call}}: shape {{tuple(output.shape)}}, dtype {{output.dtype}}")
    if INDEX is not None:
        print(f"  output{{list(INDEX)}} = {{output[INDEX]!r}}")
print({verdict!r})
'''

_CONVERT = {
    "numpy": "def native(x):\n    return x{half}\n",
    "array_api_strict": "import array_api_strict\n\n\n"
    "def native(x):\n    return array_api_strict.asarray(x)\n",
    "torch": "import torch\n\n\n"
    "def native(x):\n    return torch.from_numpy(x){half}.to({device!r})\n",
    "jax": "import jax\n\njax.config.update('jax_enable_x64', True)\n\n\n"
    "def native(x):\n    return jax.numpy.asarray(x){half}\n",
    "cupy": "import cupy\n\n\ndef native(x):\n    return cupy.asarray(x){half}\n",
}
# Half precision is stored as float32, which holds it exactly.
_HALF = {
    "numpy": '.astype(__import__("ml_dtypes").bfloat16)',
    "torch": ".to(torch.bfloat16)",
    "jax": ".astype(jax.numpy.bfloat16)",
    "cupy": "",
    "array_api_strict": "",
}


def command(plan: Plan, check: str) -> str:
    """Return the shell command that runs one check of a plan again."""
    words = ["linkern", "verify", plan.target, "--op", plan.op]
    if plan.framework != "numpy":
        words += ["--framework", plan.framework]
    if plan.device != "cpu":
        words += ["--device", plan.device]
    for dtype in plan.dtypes if plan.dtypes != ("float32", "float64") else ():
        words += ["--dtype", dtype]
    for key, value in plan.contract.declared().items():
        words += ["--declare", f"{key}={as_text(value)}"]
    words += ["--profile", plan.profile, "--seed", str(plan.seed), "--check", check]
    return shlex.join(words)


def write(
    plan: Plan, result: CheckResult, example: Counterexample, folder: Path
) -> Path:
    """Write the counterexample of a result, and return the path of its script."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {}
    half = ""
    for i, call in enumerate(example.calls):
        for name in INPUT_NAMES:
            x = to_layout(getattr(call, name), plan.contract.layout)
            if x.dtype.name == "bfloat16":
                x, half = x.astype(np.float32), _HALF[plan.framework]
            arrays[f"{name}_{i}"] = x
    place, _, attribute = plan.target.rpartition(":")
    if place.endswith(".py"):
        place = str(Path(place).resolve())
    script = folder / f"{attribute}-{result.name}.py"
    np.savez(script.with_suffix(".npz"), **arrays)
    verdict = result.message
    if example.got is not None:
        verdict += (
            f": got {example.got!r}, exact {example.exact!r}, "
            f"a correct kernel is within {example.bound!r}"
        )
    script.write_text(
        _SCRIPT.format(
            target=plan.target,
            check=result.name,
            op=plan.op,
            statement=result.statement,
            message=result.message,
            input=example.input,
            command=command(plan, result.name),
            place=place,
            attribute=attribute,
            options=[{**plan.options, **call.options} for call in example.calls],
            index=_in_layout(example.index, plan.contract.layout),
            convert=_CONVERT[plan.framework].format(half=half, device=plan.device),
            verdict=verdict,
        ),
        encoding="utf-8",
    )
    return script


def _in_layout(index: list[int] | None, layout: str) -> tuple[int, ...] | None:
    if index is None or len(index) != 4:
        return None
    named = dict(zip("bhtd", index, strict=True))
    return tuple(named[axis] for axis in layout)

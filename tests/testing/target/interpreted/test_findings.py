"""The scripts of `examples/triton_findings/` show their defects, without linkern."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[4] / "examples" / "triton_findings"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "on_cpu")
# All in one process, in which linkern cannot be imported.
PROGRAM = """
import contextlib, io, json, runpy, sys, warnings
sys.modules["linkern"] = None
warnings.simplefilter("ignore")
printed = {}
for name in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(f"{name}.py")
    printed[name] = out.getvalue()
print(json.dumps(printed))
"""
RESIDUE = r"[1-9]\S*e-0[567]"
SAID = {
    "dplr_causality": r"[1-9]\d* of 128 numbers differ",
    "hgrn_gradient": (
        r"chunk_hgrn \[2.0, 1.0\] None\s+fused_recurrent_hgrn \[3.0, 2.0\] tensor.+3"
    ),
    "infinite_decay": r"chunk_simple_gla -inf nan\s+fused_recurrent_simple_gla -inf 4",
    "lightning_state": r"chunk_lightning_attn \[65.0, nan\]\s+\S+ \[65.0, 1.0186",
    "oja_dimensions": r"128 values: a result\s+129 values: AssertionError\(\)",
    "packed_rows": r"\[True, True, True, True, False, False\]",
    "preconditioned_norm": (r"chunk_precond_kda 0.5\s+fused_recurrent_precond_kda 2.0"),
    "rwkv6_gradient": (
        rf"chunk_rwkv6 {RESIDUE}\s+fused_recurrent_rwkv6 {RESIDUE}\s+exact 0.0"
    ),
    "rwkv7_causality": r"chunk_rwkv7 [1-9]\d* of 128 \D+rwkv7 0 of 128",
}


def test_each_script_is_short_and_needs_fla_alone():
    assert [*SAID] == SCRIPTS
    for name in SCRIPTS:
        text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        imported = set(re.findall(r"^(?:from|import) (\w+)", text, flags=re.MULTILINE))
        assert imported == {"fla", "on_cpu", "torch"}
        lines = [line for line in text.split("\n") if line and '"""' not in line]
        assert len(lines) <= 15


@pytest.mark.slow
def test_the_scripts_print_what_the_page_says(fla):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *SCRIPTS],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    for name, words in SAID.items():
        assert re.search(words, printed[name]), printed[name]

"""Warp instructions of the loops of CUDA kernels, counted in their machine code.

    python -m pip install nvidia-cuda-nvdisasm networkx    # beside those of nvrtc.py
    python tools/kernel_instructions.py            # print
    python tools/kernel_instructions.py --write    # write `kernel_instructions.json`

No GPU is needed. NVRTC compiles the kernels of some calls for sm_90, and nvdisasm lists
their instructions. Counted is the longest way through each loop whose number of rounds
depends on the call: over chunks, panels or segments. Loops inside of it with a fixed
number of rounds count that often. A warp that takes another branch executes fewer, so
the numbers are the most that a warp executes.

`kernel_predictions.py` makes times of them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nvrtc
from kernel_budgets import digest, label
from kernel_calls import planned_calls

from linkern.kernels.cuda.sources import source

FILE = Path(__file__).with_suffix(".json")
TARGET = "sm_90"


class Loop(NamedTuple):
    """A loop whose number of rounds depends on the call, or a kernel.

    Parameters
    ----------
    instructions : int
        On the longest way through it, without such loops inside.
    inside : tuple of Loop
        Such loops inside, in the order of the code.
    """

    instructions: int
    inside: tuple[Any, ...]

    @property
    def all_instructions(self) -> int:
        """Instructions of a round in which loops inside have one round."""
        return self.instructions + sum(loop.all_instructions for loop in self.inside)


def listed(code: bytes) -> str:
    """Return machine code as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code)
        command = [_disassembler(), "--print-code", str(path)]
        return subprocess.check_output(command, text=True)


def _disassembler() -> str:
    from cuda.pathfinder import find_nvidia_binary_utility  # noqa: PLC0415

    path = find_nvidia_binary_utility("nvdisasm")
    if path is None:
        msg = "nvdisasm is not installed: python -m pip install nvidia-cuda-nvdisasm"
        raise SystemExit(msg)
    return path


def counted() -> Iterator[tuple[str, str, nvrtc.Needs, Loop]]:
    """Yield file, name, needs and loops of all kernels of the calls."""
    # It needs networkx, which readers of the record do not.
    from machine_loops import loops  # noqa: PLC0415

    launches = {(x.file, x.kernel) for call in planned_calls() for x in call.launches}
    for file, kernel in sorted(launches):
        code, needs = nvrtc.machine_code(source(file), TARGET, kernel)
        yield file, kernel, needs, loops(listed(code))


def as_lists(loop: Loop) -> list[Any]:
    """Return a loop as lists of lists."""
    return [loop.instructions, [as_lists(x) for x in loop.inside]]


def as_loop(lists: Any) -> Loop:
    """Return what `as_lists` was given."""
    instructions, inside = lists
    return Loop(instructions, tuple(map(as_loop, inside)))


def main() -> int:
    """Print or record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write a new record")
    options = parser.parse_args()
    lines, texts = [], {}
    for file, kernel, needs, loop in counted():
        entry = needs._asdict() | {"loops": as_lists(loop)}
        lines.append(f"  {json.dumps(label(file, kernel))}: {json.dumps(entry)}")
        texts[file] = digest(file)
        sys.stdout.write(f"{lines[-1].strip()}\n")
    if options.write:
        head = json.dumps({"compiler": nvrtc.version(), "texts": texts}, indent=1)
        head = head.removesuffix("\n}") + ',\n "kernels": {\n'
        text = head + ",\n".join(lines) + "\n }\n}\n"
        FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

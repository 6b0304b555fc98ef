"""Judge old and fixed versions of fla-core: the old one must fail, the fixed one pass.

    python tools/version_pairs.py FOLDER                # all pairs, within some minutes
    python tools/version_pairs.py FOLDER --only kda     # targets whose name contains it
    python tools/version_pairs.py FOLDER --seconds 240  # on a busy machine

Each version is installed from the registry into a folder of its own in FOLDER, without
its dependencies, and one law judges it by Triton's interpreter. The pairs are those of
`docs/findings-triton.md`. Exit code: 0 if every pair is as it must be, or else 1.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LINKERN = (sys.executable, "-c", "from linkern.cli import main; main()")
# Before this version block pointers were used, which Triton has until 3.8.
BLOCK_POINTERS, TRITON = (0, 5, 2), "triton<3.9"
SECONDS, CALL = 60, 300
# Exit codes of `linkern verify`.
PASSED, FAILED = 0, 1


@dataclass(frozen=True)
class Pair:
    """A fault of a published kernel, and the version that mended it.

    Parameters
    ----------
    old, fixed : str
        Versions of fla-core.
    law : str
        The law that the old one breaks.
    target, op : str
        As for ``linkern verify``.
    declare : tuple of str
        Declarations besides the layout.
    """

    old: str
    fixed: str
    law: str
    target: str
    op: str
    declare: tuple[str, ...] = ()

    def words(self, seconds: float = SECONDS) -> tuple[str, ...]:
        """Return the options of the command, as the page shows them."""
        declared = ("layout=bthd", "packing=full", *self.declare)
        return (
            *("verify", f"fla.ops.{self.target}", "--op", self.op),
            *("--framework", "torch", "--interpret"),
            *(word for text in declared for word in ("--declare", text)),
            *("--seed", "0", "--seconds", f"{seconds:g}", "--check", self.law),
        )


_NORMALISED = ("feature_map=identity", "scale=K^-0.5", "eps=1e-10")
_LINEAR = "linear_attn:chunk_linear_attn", "linear_attention", _NORMALISED
_IPLR = "generalized_delta_rule:fused_recurrent_iplr_delta_rule"
PAIRS = (
    Pair("0.5.2", "0.6.0", "no_access_out_of_bounds", "kda:fused_recurrent_kda", "kda"),
    Pair(
        "0.5.2", "0.6.0", "no_access_out_of_bounds", "gdn2:fused_recurrent_gdn2", "gdn2"
    ),
    Pair(
        *("0.5.2", "0.6.0", "packed_states", "kda:fused_recurrent_kda", "kda"),
        ("max_length=40",),
    ),
    Pair("0.5.2", "0.6.0", "packed_states", _IPLR, "iplr"),
    Pair(
        *("0.5.2", "0.6.0", "gradient_value", "simple_gla:chunk_simple_gla"),
        "simple_gla",
        ("decay_floor=-5",),
    ),
    Pair("0.5.0", "0.5.1", "gradient_value", *_LINEAR),
    Pair("0.4.2", "0.5.0", "state_split", *_LINEAR),
    Pair("0.3.2", "0.5.0", "value_on_reals", *_LINEAR),
)


def requirements(version: str) -> tuple[str, ...]:
    """Return what is installed for a version, without dependencies."""
    old = tuple(map(int, version.split("."))) < BLOCK_POINTERS
    return (f"fla-core=={version}", *(TRITON,) * old)


def installed(version: str, folder: Path) -> Path:
    """Install a version into a folder of its own, once; return that folder."""
    place = folder / version
    if not place.exists():
        draft = folder / f"{version}.part"
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
        words = ("--target", str(draft), *requirements(version))
        subprocess.run([*pip, *words], check=True)
        draft.rename(place)
    return place


def code_of(pair: Pair, place: Path, seconds: float) -> int:
    """Return the exit code of the command with the packages in a folder."""
    path = os.pathsep.join((str(place), os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [*LINKERN, *pair.words(seconds), "--jobs", "1", "--timeout", f"{CALL}"],
        cwd=place,
        env=os.environ | {"PYTHONPATH": path.rstrip(os.pathsep)},
        stdout=subprocess.DEVNULL,
        check=False,
    ).returncode


def main(words: Sequence[str] | None = None) -> int:
    """Judge all pairs, and write a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the versions; made if needed")
    parser.add_argument("--only", default="", help="targets whose name contains it")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of a run; default: {SECONDS}"
    )
    options = parser.parse_args(words)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for pair in PAIRS:
        if options.only not in pair.target:
            continue
        versions = (pair.old, FAILED), (pair.fixed, PASSED)
        codes = [
            (code_of(pair, installed(version, folder), options.seconds), required)
            for version, required in versions
        ]
        right = all(code == required for code, required in codes)
        wrong += not right
        told = f"{pair.old} exits with {codes[0][0]}, {pair.fixed} with {codes[1][0]}"
        mark = "as it must" if right else "WRONG"
        sys.stdout.write(f"{mark}: {pair.target} {pair.law}: {told}\n")
        sys.stdout.flush()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

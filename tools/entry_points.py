"""Write the table of kernels that need no adapter in `docs/published-kernels.md`.

python tools/entry_points.py                  # write the table
python tools/entry_points.py --check          # compare it with the code
python tools/entry_points.py --judge NAME     # judge kernels whose name contains it

`--judge` runs the Triton kernels that are installed one after the other, by Triton's
interpreter, with the declarations of the table and no other, and records what ran in
`entry_points_judged.json`.
"""

import argparse
import inspect
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pages import write_or_compare

from linkern.testing import OPERATORS, Contract
from linkern.testing.spec.declarations import as_text, keywords, pairs
from linkern.testing.spec.dialect import settled
from linkern.testing.spec.raw_gates import RAW_FORMS
from linkern.testing.target.loading import Interface, load

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "published-kernels.md"
RECORDS = Path(__file__).parent / "entry_points.toml"
JUDGED = RECORDS.with_name("entry_points_judged.json")
LINKERN = (sys.executable, "-c", "from linkern.cli import main; main()")
# The laws that catch most, and the seconds for them and for one call.
LAWS = (
    "no_access_out_of_bounds",
    "finite_output",
    "value_on_integers",
    "causality",
    "value_on_reals",
    "decoding",
)
SECONDS, CALL = 150, 140
# Around what is written; the rest of the page is kept.
BEGIN, END = "<!-- Written by tools/entry_points.py -->\n", "<!-- until here -->\n"


@dataclass(frozen=True)
class Kernel:
    """One published kernel, as `entry_points.toml` records it.

    Parameters
    ----------
    source : str
        Package and version, or repository and commit.
    name, op : str
        Its name for ``linkern verify``, and its operator.
    signature : str
        Its parameters with their defaults.
    options, declare : tuple of str
        The call, and what has to be declared.
    file : str
        Its path in the repository.
    dtype : str
        Dtype of the inputs, of kernels that refuse float32.
    """

    source: str
    name: str
    op: str
    signature: str
    options: tuple[str, ...] = ()
    declare: tuple[str, ...] = ()
    file: str = ""
    dtype: str = ""

    @property
    def called_with(self) -> tuple[str, ...]:
        """Options of a call, and its dtype if it refuses float32."""
        return (*self.options, *(f"--dtype {x}" for x in [self.dtype] if x))

    def stub(self) -> Callable[..., Any]:
        """Return a function with its signature that does nothing."""
        local: dict[str, Any] = {}
        exec(f"def kernel({self.signature}): ...", local)
        kernel: Callable[..., Any] = local["kernel"]
        return kernel

    def parameters(self) -> dict[str, Any]:
        """Return its parameters and their defaults."""
        return defaults_of(self.stub())

    def accepted(self, function: Any) -> tuple[Contract, Interface, tuple[str, ...]]:
        """Return contract, interface and notes with which a function is judged.

        Raises
        ------
        UsageError
            If the signature, an option or a declaration cannot be used.
        """
        contract = Contract.from_mapping(pairs("--declare", "K=V", self.declare))
        options, operator = keywords("--option", self.options), OPERATORS[self.op]
        interface = load(function, self.name, options=options, op=self.op).interface
        needed = interface.needed
        agreed = settled(contract, options, interface.switches, needed, operator)
        agreed.contract.require_of(operator)
        form = agreed.contract.decay_form
        load(function, self.name, options=agreed.options, op=self.op, decay_form=form)
        return agreed.contract, interface, agreed.notes


def defaults_of(function: Any) -> dict[str, Any]:
    """Return the parameters of a function and their defaults; ``...`` for none."""
    parameters = inspect.signature(function).parameters.values()
    return {x.name: ... if x.default is x.empty else x.default for x in parameters}


def kernels() -> list[Kernel]:
    """Return the recorded kernels."""
    records: list[Mapping[str, Any]] = tomllib.loads(RECORDS.read_text())["kernel"]
    return [
        Kernel(**{k: tuple(x) if isinstance(x, list) else x for k, x in one.items()})
        for one in records
    ]


def row(kernel: Kernel) -> str:
    """Return the row of one kernel."""
    contract, interface, _ = kernel.accepted(kernel.stub())
    named = zip(OPERATORS[kernel.op].names, interface.inputs, strict=True)
    names = [f"{own}={one}" for own, one in named if one not in {own, "q", "k", "v"}]
    others = (
        *(*interface.state, interface.final_state, interface.cu_seqlens),
        *(interface.micro_steps, interface.output, interface.output_state),
        *(x for x in interface.gates if contract.decay_form in RAW_FORMS),
    )
    known = [*names, *(x for x in others if x)]
    declared = {x.partition("=")[0] for x in kernel.declare}
    read = [
        f"{key}={as_text(value)}"
        for key, value in contract.declared().items()
        if key not in declared
    ]
    source = kernel.source.partition("@")[0]
    cells = (
        f"`{kernel.name.rpartition(':')[2]}`, {source}",
        kernel.op,
        _code(kernel.called_with),
        _code([*read, *known]),
        _code(kernel.declare),
        verdict(kernel),
    )
    return f"| {' | '.join(cells)} |"


def verdict(kernel: Kernel) -> str:
    """Return what is known of a kernel, in words."""
    told = recorded().get(kernel.name)
    if told is None or told["options"] != [*kernel.called_with]:
        return "signature only"
    if told["refused"]:
        return "raises on its first call"
    ran, failed = told["passed"] + told["failed"], told["failed"]
    if not ran:
        return "called, and no law was judged in the time"
    if failed:
        return f"{_code(failed)} fail{'s' * (len(failed) == 1)}, of {len(ran)} laws"
    return f"passes {_code(ran)}"


def recorded() -> dict[str, Any]:
    """Return what ran of each kernel that was judged, by its name."""
    text = JUDGED.read_text(encoding="utf-8") if JUDGED.exists() else "{}"
    read: dict[str, Any] = json.loads(text)
    return read


def judge(kernel: Kernel) -> dict[str, Any]:
    """Judge a kernel by a few laws, as the table calls it; return what ran."""
    words = ["--framework", "torch", "--interpret", "--jobs", "1", "--seed", "0"]
    words += [x for text in kernel.declare for x in ("--declare", text)]
    words += [x for text in kernel.options for x in ("--option", text)]
    words += ["--dtype", kernel.dtype] if kernel.dtype else []
    words += [x for law in LAWS for x in ("--check", law)]
    words += ["--seconds", f"{SECONDS}", "--timeout", f"{CALL}"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*LINKERN, "verify", kernel.name, "--op", kernel.op, *words]
        done = subprocess.run(
            [*command, "--json", str(report)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        checks, refused = [], ""
        if report.exists():
            checks = json.loads(report.read_text(encoding="utf-8"))["checks"]
        else:
            refused = " ".join(done.stderr.split())

    def with_verdict(*verdicts: str) -> list[str]:
        return [check["name"] for check in checks if check["verdict"] in verdicts]

    return {
        "options": [*kernel.called_with],
        "date": datetime.now(UTC).date().isoformat(),
        "refused": refused,
        "passed": with_verdict("passed"),
        "failed": with_verdict("failed", "error"),
        "first": next(
            (c["message"] for c in checks if c["verdict"] in ("failed", "error")), ""
        ),
    }


def judge_all(part: str) -> int:
    """Judge the kernels whose name contains a text, and record each as it ends."""
    for kernel in kernels():
        package = kernel.name.partition(".")[0].partition(":")[0]
        if part not in kernel.name or find_spec(package) is None:
            continue
        told = recorded() | {kernel.name: judge(kernel)}
        JUDGED.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        sys.stdout.write(f"{kernel.name}: {verdict(kernel)}\n")
    return 0


def _code(words: Any) -> str:
    return " ".join(f"`{x}`" for x in words) or "nothing"


def page() -> str:
    """Return the page with its table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    titles = ("kernel", "`--op`", "called with", "recognised by name", "to declare")
    head = f"| {' | '.join((*titles, 'judged'))} |"
    rows = (head, "|---|---|---|---|---|---|", *map(row, kernels()))
    return before + BEGIN + "\n".join(rows) + "\n" + END + after


def main() -> int:
    """Judge kernels, or write or compare the page."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--judge")
    part = parser.parse_known_args()[0].judge
    return write_or_compare(PAGE, page, __doc__) if part is None else judge_all(part)


if __name__ == "__main__":
    sys.exit(main())

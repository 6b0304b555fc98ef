"""Write the table of kernels that need no adapter in `docs/published-kernels.md`.

python tools/entry_points.py            # write the table
python tools/entry_points.py --check    # compare it with the code
"""

import inspect
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    """

    source: str
    name: str
    op: str
    signature: str
    options: tuple[str, ...] = ()
    declare: tuple[str, ...] = ()
    file: str = ""

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
        *(interface.state, interface.final_state, interface.cu_seqlens),
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
        _code(kernel.options),
        _code([*read, *known]),
        _code(kernel.declare),
    )
    return f"| {' | '.join(cells)} |"


def _code(words: Any) -> str:
    return " ".join(f"`{x}`" for x in words) or "nothing"


def page() -> str:
    """Return the page with its table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    titles = ("kernel", "`--op`", "called with", "recognised by name", "to declare")
    rows = (f"| {' | '.join(titles)} |", "|---|---|---|---|---|", *map(row, kernels()))
    return before + BEGIN + "\n".join(rows) + "\n" + END + after


if __name__ == "__main__":
    sys.exit(write_or_compare(PAGE, page, __doc__))

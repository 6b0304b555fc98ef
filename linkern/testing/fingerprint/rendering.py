"""A fingerprint for people: the precision sheet of a kernel."""

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.fingerprint.measurement import Fingerprint

__all__ = ["sheet"]

NOTHING = "nothing could be measured"


def sheet(fingerprint: Fingerprint) -> RenderableType:
    """Return a fingerprint as a table, with what it contradicts under it.

    Parameters
    ----------
    fingerprint : Fingerprint
        What was measured.

    Returns
    -------
    RenderableType
        For a console of rich.
    """
    if not fingerprint.bits:
        text = f"on inputs in {fingerprint.dtype}, {NOTHING}: {fingerprint.reason}"
        return Group(Text(text), *_distances(fingerprint))
    table = Table(title=f"on inputs in {fingerprint.dtype}", title_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("significand bits", justify="right")
    table.add_column("that is")
    for stage, bits in fingerprint.bits.items():
        capped = stage in fingerprint.capped
        meaning = "all that such inputs and outputs can show" if capped else ""
        table.add_row(stage, str(bits), meaning or _formats(bits))
    parts: list[RenderableType] = [table]
    parts.append(Text(f"epsilon     {_epsilon(fingerprint)}"))
    parts.append(Text(f"chunk size  {fingerprint.chunk_size or 'none that shows'}"))
    parts += _distances(fingerprint)
    if fingerprint.reason:
        parts.append(Text(fingerprint.reason))
    for sentence in fingerprint.contradicted:
        parts.append(Text.assemble(("contradicted", "bold red"), f" {sentence}"))
    return Group(*parts)


def _distances(fingerprint: Fingerprint) -> list[Text]:
    """Return a line for each pair of outputs that could have equal bits."""
    return [
        Text(f"{name}: {'bitwise' if x == 0 else f'{x:.3g} ulp'}")
        for name, x in fingerprint.distances.items()
    ]


def _formats(bits: int) -> str:
    """Return the formats with so many bits."""
    return ", ".join(name for name, width in SIGNIFICAND_BITS.items() if width == bits)


def _epsilon(fingerprint: Fingerprint) -> str:
    if fingerprint.eps is not None:
        return f"{fingerprint.eps:g} ({fingerprint.eps_mode})"
    if math.isinf(fingerprint.eps_resolution):
        return "not measured"
    return f"none above {fingerprint.eps_resolution:.2g}"

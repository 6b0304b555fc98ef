"""Goals: numbers that linkern sets out to reach. The numbers are data of each suite."""

from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["Goal", "shown"]


@dataclass(frozen=True)
class Goal:
    """One number to be reached.

    Parameters
    ----------
    task : str
        Name of the task.
    lengths : tuple of int
        The lengths it is set for; all that were measured if empty.
    quantity : {"speed", "peak", "copying", "seconds", "extra", "saving", "exponent"}
        Speed relative to others; the share of the GEMM peak, or of copying; seconds;
        bytes beside inputs and outputs; those of others relative to them; the power of
        the length that time grows with.
    least, most : float or None
        Bounds of the number.
    against : tuple of str
        The others: the best of these, or of all that compute the same.
    whom : str
        The others in words.
    """

    task: str
    lengths: tuple[int, ...]
    quantity: str
    least: float | None = None
    most: float | None = None
    against: tuple[str, ...] = ()
    whom: str = "the fastest peer"

    def text(self) -> str:
        """Return the goal in words."""
        bounds = [
            f"{word} {shown(x, self.quantity)}"
            for word, x in (("at least", self.least), ("at most", self.most))
            if x is not None
        ]
        subject = _WORDS[self.quantity].format(whom=self.whom)
        return f"{subject} {' and '.join(bounds)}"

    def met(self, x: float) -> bool:
        """Return True if a number is within the bounds."""
        low, high = self.least, self.most
        return (low is None or x >= low) and (high is None or x <= high)


_WORDS = MappingProxyType(
    {
        "speed": "times as fast as {whom}:",
        "peak": "share of the GEMM peak:",
        "copying": "share of copying:",
        "seconds": "time:",
        "extra": "memory beside inputs and outputs:",
        "saving": "times less memory than {whom}:",
        "exponent": "power of the length that time grows with:",
    }
)


def shown(x: float, quantity: str) -> str:
    """Return a number in the unit of its quantity."""
    if quantity in ("peak", "copying"):
        return f"{100 * x:.1f} %"
    if quantity == "seconds":
        return f"{1e6 * x:.4g} us"
    if quantity == "extra":
        return f"{x / 2**20:.1f} MiB"
    return f"{x:.2f}" + ("x" if quantity in ("speed", "saving") else "")

"""Three numbers for a piece of work: they add up, and multiply by how often."""

from dataclasses import dataclass

__all__ = ["Counts"]


@dataclass(frozen=True)
class Counts:
    """Arithmetic that is done once.

    Parameters
    ----------
    multiply_adds : int
        Products in matrix products.
    elementwise : int
        Additions, subtractions, multiplications, divisions and changes of sign outside
        of them.
    exponentials : int
        Values of exponential, logarithmic and trigonometric functions.
    """

    multiply_adds: int = 0
    elementwise: int = 0
    exponentials: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        """Return the counts of both, one after the other."""
        return Counts(
            self.multiply_adds + other.multiply_adds,
            self.elementwise + other.elementwise,
            self.exponentials + other.exponentials,
        )

    def __mul__(self, times: int) -> "Counts":
        """Return the counts of doing it several times."""
        return Counts(
            self.multiply_adds * times,
            self.elementwise * times,
            self.exponentials * times,
        )

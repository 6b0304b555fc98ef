"""Names of axes in error sentences, and hints for arrays that have them in disorder."""

from collections.abc import Iterable, Mapping

__all__ = ["AXES", "Size", "axis_names", "heads_last", "time_first"]


class Size(str):
    """Name of a size; sums, parts and powers of it are names again."""

    __slots__ = ()

    def __add__(self, other: object) -> "Size":
        return Size(f"{self} + {other}")

    def __radd__(self, other: object) -> "Size":
        return Size(f"{other} + {self}")

    def __floordiv__(self, other: object) -> "Size":
        return Size(f"{self} / {other}")

    def __pow__(self, exponent: int) -> "Size":
        return Size(f"{self}^{exponent}")


# Letters of a shape as error sentences spell them.
AXES: Mapping[str, Size] = {
    "t": Size("T"),
    "s": Size("n T"),
    "k": Size("K"),
    "v": Size("V"),
    "m": Size("M"),
    "l": Size("L"),
    "f": Size("F"),
    "p": Size("P"),
    "r": Size("R"),
}


def axis_names(names: Iterable[object]) -> str:
    """Return the last axes of a shape as text."""
    return f"(..., {', '.join(map(str, names))})"


def time_first(shape: tuple[int, ...], letters: str, length: int) -> str:
    """Return a hint if the axis before that of time has the length of the tokens.

    `letters` are those of the last axes of the array. Otherwise the hint is empty.
    """
    before = len(shape) - len(letters) - 1
    return _TIME_FIRST if before >= 0 and shape[before] == length else ""


def heads_last(
    lead: tuple[int, ...], batch: tuple[int, ...], length: int | None
) -> str:
    """Return a hint if the last leading axis is what other arrays have for time.

    `lead` are the leading axes of an array with heads, `batch` those of the queries,
    and `length` is the size of their axis of time.
    """
    crossed = lead[-1:] == (length,) and lead[-1:] != batch[-1:]
    return _TIME_FIRST if crossed else ""


_TIME_FIRST = (
    "; time is the last axis but one: arrays of (batch, time, heads, dim) need "
    "x.swapaxes(-3, -2), gates of (batch, time, heads) x.swapaxes(-2, -1)"
)

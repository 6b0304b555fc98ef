"""Sizes of an axis in few words, and the usual sizes of chunks."""

from collections.abc import Iterable

__all__ = ["CHUNKS", "in_words"]

# Tokens of the chunks that most kernels have.
CHUNKS = (16, 32, 64, 128)
MULTIPLES = (2, 4, 8, 16, 32, 64, 128)


def in_words(
    noun: str, chosen: Iterable[int], tried: Iterable[int]
) -> tuple[str, tuple[str, ...]]:
    """Return the fewest words for some of the sizes, and what declares the others.

    Examples
    --------
    >>> in_words("lengths", [1, 8, 17], [1, 8, 16, 17, 32])
    ('lengths that are no multiple of 16', ('length_multiple_of=16',))
    >>> in_words("lengths", [1], [1, 2, 3])
    ('one token', ('min_length=2',))
    >>> in_words("batch sizes", [2, 4], [1, 2, 3, 4])
    ('batch sizes that are multiples of 2', ())
    """
    chosen, tried = sorted(chosen), sorted(tried)
    others = [n for n in tried if n not in chosen]
    words, declared = f"{noun} of {', '.join(map(str, chosen))}", ""
    if not others:
        words = f"all {noun} that were tried"
    elif chosen[-1] < others[0]:
        words, declared = f"{noun} below {others[0]}", f"min_length={others[0]}"
        words = "one token" if (noun, chosen) == ("lengths", [1]) else words
    elif others[-1] < chosen[0]:
        words, declared = f"{noun} above {others[-1]}", f"max_length={others[-1]}"
    for step in MULTIPLES if others and not declared else ():
        if [n for n in tried if n % step] == chosen:
            words = f"{noun} that are no multiple of {step}"
            declared = f"length_multiple_of={step}"
            break
        if [n for n in tried if not n % step] == chosen:
            words = f"{noun} that are multiples of {step}"
            break
    return words, (declared,) * (noun == "lengths" and declared != "")

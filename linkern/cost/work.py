"""Recurrences of each operator, their lengths, and the arithmetic around them.

Sizes have the letters of `linkern.operators.definition.Definition`: ``t`` tokens,
``s`` steps, ``k v m l p r`` dimensions; and further ones for what follows from these.
Entries of `WORK` are data: a new operator is a new line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from linkern.cost.counts import Counts
from linkern.cost.recurrences import Recurrence
from linkern.operators.forms import DEFAULT_CHUNK_SIZE

__all__ = ["WORK", "Entry", "Given", "Pass", "Sizes", "elimination"]

Sizes = Mapping[str, int]
Given = frozenset[str]
Work = Callable[[Sizes], Counts]


def _no_work(_: Sizes) -> Counts:
    return Counts()


def _nothing_once(_: Sizes, __: Given) -> Counts:
    return Counts()


@dataclass(frozen=True)
class Pass:
    """One recurrence that an operator takes through all tokens.

    Parameters
    ----------
    rows, columns : str
        Letters of its memory.
    decays : str
        Letter of the log-decays for each token; none if empty.
    always : bool
        Whether there are log-decays even if none are given.
    steps : str
        Letter of its length.
    every : int or None
        How many tokens it takes at most before it is called again.
    switches : tuple of str
        Those of `Recurrence` that are on.
    constant : tuple of str
        Terms that no input changes.
    heads : str
        Letter of the heads that each head of the operator has in it.
    gates : tuple of str
        Inputs that its log-decays are made of.
    share : str
        Input by which one memory follows another.
    """

    rows: str
    columns: str
    decays: str = ""
    always: bool = False
    steps: str = "t"
    every: int | None = None
    switches: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    heads: str = "1"
    gates: tuple[str, ...] = ("log_decay", "log_decay_rate")
    share: str = ""

    def of(self, sizes: Sizes, given: Given) -> Recurrence:
        """Return the recurrence for these sizes and inputs."""
        there = self.decays and (self.always or not given.isdisjoint(self.gates))
        constant = {*self.constant}
        if self.share not in given:
            constant.add("follow")
        return Recurrence(
            sizes[self.rows],
            sizes[self.columns],
            sizes[self.decays] if there else 0,
            constant=frozenset(constant),
            **dict.fromkeys(self.switches, True),
        )


@dataclass(frozen=True)
class Entry:
    """An operator.

    Parameters
    ----------
    passes : tuple of Pass
        Its recurrences.
    around : callable
        What it computes for each head besides.
    by_input : mapping
        The same for inputs that may be missing.
    once : callable
        What it computes for all batches together.
    """

    passes: tuple[Pass, ...]
    around: Work = _no_work
    by_input: Mapping[str, Work] = field(default_factory=dict)
    once: Callable[[Sizes, Given], Counts] = _nothing_once

    def surroundings(self, sizes: Sizes, given: Given) -> Counts:
        """Count what is computed for each head outside of the recurrences."""
        counts = self.around(sizes)
        for name in given & self.by_input.keys():
            counts += self.by_input[name](sizes)
        return counts


def _entries(*letters: str, times: int = 1) -> Work:
    """Return one operation for each entry of an array with these axes."""

    def work(n: Sizes) -> Counts:
        size = times
        for letter in letters:
            size *= n[letter]
        return Counts(0, size)

    return work


def _both(*works: Work) -> Work:
    return lambda n: sum((work(n) for work in works), Counts())


def _running_sums(n: Sizes, letter: str) -> Counts:
    """Count `core.logspace.averaging` without forgetting: a scan over pairs."""
    size = n[letter]
    rows = n["t"] * size
    # The empty state and the last one get their infinity, the first sum and the logits
    # a bound; differences, their decays and their weights are three signs and one
    # subtraction each.
    return Counts(0, 3 * size + 5 * rows, 3 * rows + size * _sums_of_scan(n["t"]))


def _forgetting(n: Sizes) -> Counts:
    """Count what a decay for each channel adds: an addition a sum, and its powers."""
    sums, levels = _sums_of_scan(n["t"]), _levels_of_scan(n["t"])
    return Counts(0, n["v"] * (1 + sums + levels + n["t"]))


def _forgetting_by_token(n: Sizes) -> Counts:
    """Count what a decay for each token adds: an addition a sum, and of those two."""
    pairs, length = 0, n["t"]
    while length > 1:
        length //= 2
        pairs += length
    return Counts(0, 2 * n["t"] + _sums_of_scan(n["t"]) + pairs)


def _sums_of_scan(length: int) -> int:
    """Return how many sums of two weights the scan of all tokens makes."""
    sums = min(length, 1)  # of the state and the first token
    while length > 1:
        pairs, odd = divmod(length, 2)
        sums += 2 * pairs - 1 + odd
        length = pairs
    return sums


def _levels_of_scan(length: int) -> int:
    return max(length, 1).bit_length() - 1


def _softmax(n: Sizes) -> Counts:
    rows = n["t"] * n["m"]
    return Counts(0, 3 * rows - n["t"], rows)


def elimination(size: int) -> Counts:
    """Count the solution of one linear system with one right-hand side."""
    halves = size * (size - 1) // 2
    squares = size * (size - 1) * (2 * size - 1) // 6
    return Counts(squares + 2 * halves, halves + size)


def _spans(n: Sizes) -> int:
    return -(-n["t"] // DEFAULT_CHUNK_SIZE)


def _slopes(n: Sizes, _: Given) -> Counts:
    """Count the decays of all heads."""
    return Counts(0, 3 * n["h"])


def _retained(n: Sizes, given: Given) -> Counts:
    """Count the paper's decays of all heads, if there are no others."""
    return Counts() if "log_decay" in given else Counts(0, 3 * n["h"], 2 * n["h"])


_DIVISION = _entries("t", "v")
_BETA = _entries("t", "k+v")
_ERASE = ("erase",)
_LOW_RANK = Pass("k", "v", "k", steps="2t", switches=("erase", "early_erase"))
_CHANNELS = ("query", "value")
_SLOTS = (
    Pass("m", "k", "m", switches=("transpose_state",)),
    Pass("m", "v", "m"),
)
_BOUNDED = tuple(
    Pass(x.rows, x.columns, "m", always=True, switches=x.switches) for x in _SLOTS
)

_SUMS_OF_SQUARES = Pass(
    *("1", "k", "1"),
    constant=("query", "key"),
    gates=("preconditioner_log_decay",),
)


def _preconditioned(decays: str) -> Entry:
    """Return the work of a delta rule with preconditioned keys."""
    return Entry(
        (_SUMS_OF_SQUARES, Pass("k", "v", decays, switches=_ERASE)),
        # Squares and their weight, the distance, its squash, and the key times it.
        lambda n: Counts(0, 7 * n["t"] * n["k"], 2 * n["t"] * n["k"]),
        {"beta": _BETA, "preconditioner_beta": _entries("t", "k")},
    )


def _itself(n: Sizes) -> Counts:
    """Count what Mamba-3 reads of the token itself, and the last write, by hand."""
    each = n["k"] + 2 * n["r"] * (n["k"] + n["r"] * n["v"])
    return Counts(0, n["t"] * each + n["k"] * (1 + 2 * n["v"]))


def _unseen(n: Sizes) -> Counts:
    """Count what queries read of the keys that have a later row than they have."""
    if n["r"] == 1:
        return Counts()
    each = n["r"] * (2 * n["k"] - n["r"]) + 2 * n["r"] ** 2 * n["v"]
    return Counts(0, n["t"] * each)


_TRAPEZOIDAL: dict[str, Work] = {
    # Sums of angles, the last ones on the circle, cosines and sines, and the rotations.
    "angle": lambda n: Counts(
        0,
        n["t"] + ((3 + 12 * n["r"]) * n["t"] + 2) * n["p"],
        3 * n["t"] * n["p"],
    ),
    "log_decay": lambda n: Counts(0, n["t"], n["t"]),
    "trapezoid": _entries("t", times=4),
}
WORK: dict[str, Entry] = {
    "linear_attention": Entry(
        (Pass("k", "v+1"),),
        # elu(x) + 1: one addition and one exponential for each entry
        lambda n: Counts(0, n["t"] * (2 * n["k"] + n["v"]), 2 * n["t"] * n["k"]),
    ),
    "retention": Entry((Pass("k", "v", "1", always=True),), once=_retained),
    "lightning_attention": Entry((Pass("k", "v", "1", always=True),), once=_slopes),
    "simple_gla": Entry((Pass("k", "v", "1"),)),
    "gla": Entry((Pass("k", "v", "k"),)),
    "hgrn": Entry(
        (Pass("v", "1", "v", switches=("transpose_state",), constant=_CHANNELS),),
    ),
    "rwkv4": Entry(
        (
            Pass(
                "v",
                "1",
                "v",
                always=True,
                switches=("transpose_state",),
                constant=_CHANNELS,
            ),
        ),
        # Besides the running sums: two sigmoids, and what they weigh.
        lambda n: (
            _running_sums(n, "v") + Counts(0, 10 * n["t"] * n["v"], 4 * n["t"] * n["v"])
        ),
        {"log_decay": _forgetting, "bonus": _entries("t", "v")},
    ),
    "rwkv6": Entry(
        (Pass("k", "v", "k", switches=("early_read",)),),
        by_input={"bonus": lambda n: Counts(0, n["t"] * (3 * n["k"] - 1 + 2 * n["v"]))},
    ),
    "rwkv7": Entry(
        (_LOW_RANK,),
        _entries("t", "k", times=2),
        {"removal_rate": _entries("t", "k")},
    ),
    "dplr": Entry((_LOW_RANK,), _entries("t", "k")),
    "iplr": Entry((_LOW_RANK,), _entries("t", "k")),
    "delta_rule": Entry((Pass("k", "v", switches=_ERASE),), by_input={"beta": _BETA}),
    "gated_delta_rule": Entry(
        (Pass("k", "v", "1", switches=_ERASE),), by_input={"beta": _BETA}
    ),
    "kda": Entry((Pass("k", "v", "k", switches=_ERASE),), by_input={"beta": _BETA}),
    "preconditioned_gated_delta_rule": _preconditioned("1"),
    "preconditioned_kda": _preconditioned("k"),
    "momentum_delta_rule": Entry(
        (
            Pass(
                *("k", "v", "1"),
                switches=("erase", "early_erase", "follow"),
                gates=("log_decay", "momentum_log_decay"),
                share="beta",
            ),
        ),
        by_input={
            "log_decay": lambda n: Counts(0, n["t"] * n["k"], n["t"]),
            "momentum_beta": _entries("t", "k"),
        },
    ),
    "gdn2": Entry(
        (Pass("k", "v", "k", switches=_ERASE),),
        by_input={"erase_gate": _entries("t", "k"), "write_gate": _entries("t", "v")},
    ),
    "comba": Entry(
        (Pass("k", "v", "1", switches=("erase", "early_erase")),),
        by_input={"beta": _BETA},
    ),
    "gated_delta_product": Entry(
        (Pass("k", "v", "1", steps="s", switches=_ERASE),),
        by_input={"beta": _entries("s", "k+v")},
    ),
    "oja": Entry(
        (Pass("v", "k", "v", switches=("erase", "transpose_state")),),
        by_input={"beta": _BETA},
    ),
    "gsa": Entry(_SLOTS, _softmax),
    "abc": Entry(_BOUNDED, lambda n: _softmax(n) + _running_sums(n, "m")),
    "based": Entry(
        (Pass("1+k+kk", "v+1"),), _both(_entries("t", "kk", times=4), _DIVISION)
    ),
    "rebased": Entry(
        (Pass("kk", "v+1"),), _both(_entries("t", "kk", times=2), _DIVISION)
    ),
    "power_retention": Entry(
        (Pass("f", "v+1", "1"),),
        _both(_entries("t", "f", times=4), _DIVISION),
    ),
    "mesa": Entry(
        (
            Pass("1", "kk", "1", every=DEFAULT_CHUNK_SIZE, constant=("query", "key")),
            Pass("k", "v", "1"),
        ),
        # Outer products, the ridge added to them, and a system for each token.
        lambda n: _entries("t", "kk", times=2)(n) + elimination(n["k"]) * n["t"],
        {
            "beta": _entries("t", "k"),
            "ridge": lambda n: Counts(0, _spans(n) * n["kk"]),
        },
    ),
    "mlstm": Entry(
        (Pass("k", "v+1", "1", always=True),),
        # Besides the running sums: what is written, and the quotient with two
        # exponentials.
        lambda n: (
            _running_sums(n, "1")
            + Counts(0, n["t"] * (n["k"] + 2 * n["v"] + 2), 2 * n["t"])
        ),
        {"log_decay": _forgetting_by_token},
    ),
    "selective_scan": Entry(
        (Pass("k", "1", "k", heads="v"),),
        by_input={
            "dt": _entries("t", "v"),
            "log_decay_rate": _entries("t", "v", "k"),
            "skip": _entries("t", "v", times=2),
        },
    ),
    "mamba3": Entry((Pass("k", "v", "1"),), _itself, _TRAPEZOIDAL),
    "mamba3_mimo": Entry(
        (Pass("k/r", "v", "1", steps="s"),),
        _both(
            _itself, _unseen, lambda n: Counts(0, n["t"] * (4 * n["r"] - 1) * n["v"])
        ),
        _TRAPEZOIDAL,
    ),
    "log_linear_attention": Entry(()),
}

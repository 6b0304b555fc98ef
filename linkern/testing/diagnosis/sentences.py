"""Sentences of a diagnosis, from the place and the factor that were measured."""

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np

from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.factors.explain import numbers
from linkern.testing.diagnosis.factors.factor import Factor, tolerance
from linkern.testing.diagnosis.index_sets.describe import corner
from linkern.testing.diagnosis.index_sets.search import IndexSet
from linkern.testing.diagnosis.pictures import CELLS, picture
from linkern.testing.influence.maps import (
    FROM_THE_END,
    LAST_ROW,
    ORIGIN,
    PARTS_BACK,
    Flags,
    Index,
    InfluenceMap,
)
from linkern.testing.problems.context import Scope

__all__ = ["hint", "in_place", "localised", "name_of", "sentence"]

# The declaration of gradients that lack the term through the denominator.
CONSTANT = "constant_denominator=true"
# Sums over the tokens on the wrong side of the one that they belong to.
BACKWARDS = "a sum over rows before the source in place of rows after it"
# Factors that words say better: the name of the deviation, and the words in a place.
_VERBS = {
    "0": ("lost", "lacks {place}", "is 0"),
    "2": ("twice", "counts {place} twice", "is twice as large as it should be"),
    "-1": ("sign", "has the other sign in {place}", "has the other sign"),
}
# The least share of entries that is worth a percentage.
LEAST_SHARE = 0.005
# Words of how far weights of another sequence reach, where that is one token.
EDGES = {
    FROM_THE_END: "of its last token alone",
    LAST_ROW: "in the first row of the sequence alone",
}
# Words of the sequence that a weight comes from, by the places of weights and the
# number of the last one. Empty ones are left out beside that of the weight.
ORIGINS: dict[str, Callable[[Mapping[str, Index], int], Flags]] = {
    "sequence 0": lambda at, _: at[ORIGIN] == 0,
    "the last sequence": lambda at, last: at[ORIGIN] == last,
    "the sequence before": lambda at, _: (
        (at[ORIGIN] == at["sequence"] - 1) | (at[PARTS_BACK] == 1)
    ),
    "the next sequence": lambda at, _: (
        (at[ORIGIN] == at["sequence"] + 1) | (at[PARTS_BACK] == -1)
    ),
}
# Places that depend on how many tokens a call has: shorter calls have them, too.
_FROM_THE_END = re.compile(
    r"\b(tail|last chunk|before the end|lengths?)\b"
    r"|\blast (\d+ )?(rows?|sources?)\b(?! of every)"
)
_INVERSE = re.compile(r"1 / ([^*/]+)")
_EXPONENTIAL = re.compile(r"exp\(-([a-z][^()+*/-]*|sum of [^()+*/-]*)\)")
_KINDS = {
    "product": "scaled",
    "added": "added",
    "in the denominator": "eps",
    "clamp from above": "clamped",
    "clamp from below": "clamped",
    "instead": "other",
    "moved": "other",
    "replaced": "other",
    "partial": "other",
    "in a part": "other",
    "divided": "other",
}


def sentence(stage: str, where: str, by_what: str, kind: str = "product") -> str:
    """Return the deviation in one sentence.

    Parameters
    ----------
    stage : str
        The result: ``output``, ``gradient of key``, ...
    where : str
        Place of the wrong entries; empty if no description fits.
    by_what : str
        Measured entries as a multiple of the exact ones, or in their place.
    kind : str
        Kind of the factor.

    Examples
    --------
    >>> sentence("output", "sources 64 back or more", "0")
    'the output lacks sources 64 back or more'
    >>> sentence("output", "pairs inside chunks of 16", "exp(-log_decay[row])")
    'the output lacks the factor `exp(log_decay[row])` in pairs inside chunks of 16'
    >>> sentence("final state", "everywhere", "scale")
    'the final state is multiplied by `scale` everywhere'
    >>> sentence("gradient of key", "everywhere", "1 / x in its part y", "in a part")
    'the gradient of key lacks the factor `x` in its part y everywhere'
    """
    subject, place = f"the {stage}", where or "places that no short description covers"
    inside = in_place(place)
    if by_what in _VERBS and kind == "product":
        _, verb, as_a_whole = _VERBS[by_what]
        if where and inside.startswith("in "):
            return f"{subject} {verb.format(place=place)}"
        return f"{subject} {as_a_whole} {inside}"
    part = ""
    if kind == "in a part":
        by_what, _, part = by_what.rpartition(" in its part ")
        part = f" in its part {part}"
    missing = _missing(by_what) if kind in ("product", "in a part") else ""
    said = {
        "added": f"has `{by_what.removeprefix('plus ')}` added",
        "instead": f"is `{by_what.removesuffix(' in its place')}`",
        "moved": f"is {by_what}",
        "replaced": f"is as with `{by_what}`",
        "partial": f"lacks {by_what}",
        "divided": f"is divided by `{by_what}` in place of `max(|q . n|, 1)`",
    }.get(kind, f"is multiplied by `{by_what}`")
    if missing:
        said = f"lacks the factor `{missing}`"
    said += part
    return f"{subject} {said} {inside}" if by_what else f"{subject} is wrong {inside}"


def in_place(place: str) -> str:
    """Return the words of a place at the end of a sentence.

    Examples
    --------
    >>> in_place("rows from 16 on"), in_place("where beta[row] is 1")
    ('in rows from 16 on', 'where beta[row] is 1')
    """
    return place if place.startswith(("everywhere", "where ")) else f"in {place}"


def _missing(by_what: str) -> str:
    """Return the factor of which `by_what` is the inverse; empty if it is no inverse.

    Examples
    --------
    >>> _missing("1 / scale"), _missing("exp(-log_decay[row])"), _missing("beta[row]")
    ('scale', 'exp(log_decay[row])', '')
    """
    inverse = _INVERSE.fullmatch(by_what)
    if inverse is not None:
        return inverse[1]
    exponential = _EXPONENTIAL.fullmatch(by_what)
    return f"exp({exponential[1]})" if exponential else ""


def localised(
    maps: Sequence[InfluenceMap],
    place: IndexSet | None,
    factor: Factor | None,
    *,
    declaration: tuple[str, ...] = (),
) -> Diagnosis:
    """Return the diagnosis of a place and a factor.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        The maps of one tensor in which the deviation shows.
    place : IndexSet or None
        The wrong entries; None if no short description fits.
    factor : Factor or None
        What was measured in their place; None if no formula holds.
    declaration : tuple of str
        ``KEY=VALUE`` of the contract under which the target is right.
    """
    if place is None:
        chosen = [one.wrong for one in maps]
    else:
        chosen = [place.contains(one) & ~one.silent for one in maps]
    wrong = [one.wrong & flags for one, flags in zip(maps, chosen, strict=True)]
    told = _told(maps, wrong, place, factor, declaration)
    stage, where, by_what = told.stage, told.where, told.by_what or numbers(maps, wrong)
    shown = max(maps, key=lambda one: (_width(one), one.wrong.sum()))
    is_place = place is not None and where == place.text
    return Diagnosis(
        name_of(stage, by_what, told.kind),
        "; ".join(_words(maps, wrong, place, told, declaration)),
        _ratio(factor, maps, chosen),
        declaration,
        stage,
        where,
        by_what,
        place.alternatives if place and is_place and not told.explained else (),
        hint(stage, where, by_what),
        picture(shown, where, place.chunk if place else None),
        places=place.data if place and is_place else (),
        factor=factor.data if factor and by_what == factor.text else None,
    )


class _Told(NamedTuple):
    """Place and factor of a deviation, which a declaration may have explained."""

    stage: str
    where: str
    by_what: str
    kind: str
    explained: bool = False


def _told(
    maps: Sequence[InfluenceMap],
    wrong: Sequence[Flags],
    place: IndexSet | None,
    factor: Factor | None,
    declaration: tuple[str, ...],
) -> _Told:
    """Return the place and the factor, or those that follow from numbers alone."""
    stage, where = maps[0].tensor, place.text if place else ""
    epsilon = _epsilon(maps[0].problem.scope, declaration)
    if epsilon:
        return _Told("output", *epsilon, "in the denominator", True)
    if CONSTANT in declaration:
        constant = "a constant denominator"
        return _Told(stage, "everywhere", constant, "replaced", True)
    if factor is not None:
        return _Told(stage, factor.where or where, factor.text, factor.kind)
    if declaration:
        return _Told(stage, where, "", "", True)
    if place is not None and _is_zero(maps, wrong):
        return _Told(stage, where, "0", "product")
    if _runs_backwards(maps):
        return _Told(stage, "everywhere", BACKWARDS, "moved")
    return _Told(stage, where, "", "")


def _words(
    maps: Sequence[InfluenceMap],
    wrong: Sequence[Flags],
    place: IndexSet | None,
    told: _Told,
    declaration: tuple[str, ...],
) -> Iterator[str]:
    """Yield the parts of the sentence of a diagnosis."""
    stage, where, by_what, kind, explained = told
    spared = place.spared if place is not None else 0.0
    some_right = where == "everywhere" and not by_what and spared >= LEAST_SHARE
    yield sentence(stage, "most places" if some_right else where, by_what, kind)
    if not by_what and explained:
        yield f"right if `{' '.join(declaration)}` is declared"
    elif not by_what:
        yield numbers(maps, wrong)
    if not explained:
        yield from _origin(maps, wrong)
    if place is not None and not explained:
        shares = {
            "of what is wrong lies elsewhere": place.missed,
            "of all are right" if some_right else "of these places are right": spared,
        }
        yield from (f"{x:.0%} {what}" for what, x in shares.items() if x >= LEAST_SHARE)
    first = corner(maps)
    by_token = _FROM_THE_END.search(where) is None and stage not in _sparse(maps)
    if first is not None and first > 1 and by_token:
        yield f"seen first at T={first}"


def _sparse(maps: Sequence[InfluenceMap]) -> set[str]:
    """Return the gradients of gates, of which maps hold few pairs of tokens."""
    names = maps[0].problem.inputs
    return {f"gradient of {x}" for x in names if x not in ("query", "key", "value")}


def _is_zero(maps: Sequence[InfluenceMap], wrong: Sequence[Flags]) -> bool:
    """Return True if all is zero that is wrong at some entries."""
    measured = [one.measured[x] for one, x in zip(maps, wrong, strict=True)]
    return any(map(len, measured)) and not any(x.any() for x in measured)


def _runs_backwards(maps: Sequence[InfluenceMap]) -> bool:
    """Return True if weights are lost in later rows, and some are in earlier ones.

    A cumulative sum of a backward pass runs from the first token on, for example.
    """
    sides = {"later": False, "earlier": False}
    for one in maps:
        if not {"row", "source"} <= {*one.coordinates}:
            return False
        row, source = (one.coordinates[x] for x in ("row", "source"))
        lost, added = (one.wrong & flags for flags in (one.exact != 0, one.exact == 0))
        gone = abs(one.measured[lost]) <= one.bound[lost]
        if not (
            gone.all() and (row > source)[lost].all() and (row < source)[added].all()
        ):
            return False
        sides["later"] |= bool(lost.any())
        sides["earlier"] |= bool(added.any())
    return all(sides.values())


def _origin(maps: Sequence[InfluenceMap], wrong: Sequence[Flags]) -> list[str]:
    """Return where wrong weights of other sequences come from, if that is one place."""
    if not all(ORIGIN in one.coordinates for one in maps):
        return []
    edges = [name for name in EDGES if name in maps[0].coordinates]
    left = dict.fromkeys((*ORIGINS, *edges), True)
    for one, flags in zip(maps, wrong, strict=True):
        known = {name: x[flags] for name, x in one.coordinates.items()}
        last = one.problem.knobs.get("sequences", 0) - 1
        for words, fits in ORIGINS.items():
            left[words] &= bool(fits(known, last).all())
        for name in edges:
            left[name] &= not known[name].any()
    edges = [EDGES[name] for name in edges if left[name]]
    origins = [words for words in ORIGINS if left[words]]
    return [", ".join([f"from {words}", *edges]) for words in origins[:1]]


def _epsilon(scope: Scope, declaration: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the place and the factor of an epsilon that is declared."""
    declared = dict(text.split("=", 1) for text in declaration)
    eps = declared.get("eps", "0")
    if eps == "0" or scope.contract.eps:
        return None
    where, divisor = {
        "denominator": ("everywhere", f"(denominator + {eps})"),
        "normalizer": (
            "everywhere",
            f"(denominator + {eps} * sum of feature(query)[row])",
        ),
        "clamp": (f"where denominator is below {eps}", f"max(denominator, {eps})"),
    }[declared.get("eps_mode", "denominator")]
    return where, f"denominator / {divisor}"


def _width(one: InfluenceMap) -> int:
    """Return how many cells a picture of a map has along its axes, at least."""
    places = (one.coordinates.get(name) for name in ("row", "source"))
    counts = [np.unique(x[one.wrong]).size for x in places if x is not None]
    return min(CELLS, *counts) if counts else 0


def _ratio(
    factor: Factor | None,
    maps: Sequence[InfluenceMap],
    chosen: Sequence[Flags],
) -> float:
    """Return the largest distance from the prediction, in what rounding allows."""
    if factor is None:
        return math.nan
    worst = 0.0
    for one, flags in zip(maps, chosen, strict=True):
        predicted = factor.predict(one)
        with np.errstate(all="ignore"):
            ratio = abs(one.measured - predicted) / tolerance(one, predicted)
        known = flags & np.isfinite(ratio)
        worst = max(worst, float(ratio[known].max(initial=0.0)))
    return worst


def name_of(stage: str, by_what: str, kind: str = "product") -> str:
    """Return a short name for programs.

    Examples
    --------
    >>> name_of("gradient of key", "0"), name_of("output", "scale")
    ('gradient_of_key_lost', 'output_scaled')
    """
    ending = _VERBS[by_what][0] if by_what in _VERBS else _KINDS.get(kind, "wrong")
    if not by_what:
        ending = "wrong"
    return f"{stage}_{ending}".replace(" ", "_")


def hint(stage: str, where: str, by_what: str) -> str:
    """Return the usual line of code at fault; empty if no rule fits.

    Examples
    --------
    >>> hint("output", "pairs across edges of chunks of 16", "exp(-log_decay[row])")
    'the decay of a row from the start of its chunk, where it reads the carried state'
    """
    said = {"stage": stage, "where": where, "by_what": by_what}
    for rule in _rules():
        if all(re.search(rule[name], said[name]) for name in said if name in rule):
            return str(rule["line"])
    return ""


@cache
def _rules() -> tuple[dict[str, str], ...]:
    text = (resources.files(__package__) / "hints.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["rule"])

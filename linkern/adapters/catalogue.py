"""Catalogue: the targets of `linkern verify` without a target.

linkern's own operators on every array library, and published kernels with the laws that
each is known to break. An expected failure that no longer happens is a failure, or, if
a kernel is judged within a time, inconclusive: then the entry is out of date, and so
is `docs/findings.md` or `docs/findings-triton.md`.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from linkern.adapters.entry import Entry
from linkern.adapters.fla_entries import FLA
from linkern.adapters.fla_triton_entries import FLA_TRITON
from linkern.adapters.linear_attention_entries import LINEAR_ATTENTION
from linkern.adapters.transformers_entries import TRANSFORMERS
from linkern.testing import OPERATORS, UsageError
from linkern.testing.spec.contract import nearest
from linkern.testing.spec.operators import Operator

__all__ = ["OWN", "PUBLISHED", "Entry", "function_of", "installed", "judged"]

_FORMS = ("auto", "recurrent", "parallel")
# One operator for each way in which operators read, forget, erase and average.
_REPRESENTATIVES = (
    "simple_gla",
    "gla",
    "kda",
    "rwkv6",
    "rwkv7",
    "oja",
    "gated_delta_product",
    "abc",
    "based",
    "mesa",
    "log_linear_attention",
    "rwkv4",
)
# JAX compiles every shape anew, so a few have to stand for all.
_COMPILED = ("simple_gla", "gated_delta_rule", "rwkv4")
# Records of one function under several options.
_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear_attention_noncausal": ("linear_attention", {"causal": False}),
    "power_retention_4": ("power_retention", {"degree": 4}),
}
_OTHERS = tuple({one.name for one in OPERATORS.values() if not one.feature_map})


def function_of(op: str) -> tuple[str, dict[str, Any]]:
    """Return the name of our function of an operator, and the options that make it."""
    return _OPTIONS.get(op, (op, {}))


def _own() -> Iterator[Entry]:
    """Yield all our operators in every form on NumPy, one of each kind elsewhere."""
    linear = [one.name for one in OPERATORS.values() if one.feature_map]
    operators_of = {
        "numpy": sorted(_OTHERS, key=list(OPERATORS).index),
        "array_api_strict": _REPRESENTATIVES,
        "torch": _REPRESENTATIVES,
        "jax": _COMPILED,
    }
    for library, names in operators_of.items():
        for form in _FORMS:
            everywhere = form == "auto" or library == "numpy"
            for name in (*linear, *(names if everywhere else ())):
                yield _of(OPERATORS[name], library, form)


def _of(operator: Operator, library: str, form: str) -> Entry:
    options: dict[str, Any] = {}
    if form != "auto":
        # Fixed options are not varied: these forms have no chunks.
        options = {"form": form, "chunk_size": None}
    function, own = function_of(operator.name)
    options |= own
    return Entry(
        package=library,
        target=f"linkern:{function}",
        op=operator.name,
        framework=library,
        options=options,
    )


OWN = tuple(_own())
PUBLISHED = (*LINEAR_ATTENTION, *FLA, *FLA_TRITON, *TRANSFORMERS)


def judged(op: str) -> tuple[str, ...]:
    """Return the published implementations of an operator that were judged.

    Each is the package and the function in it that does the arithmetic, in the order
    of the catalogue; a function that is judged in several ways is named once.
    """
    return tuple(dict.fromkeys(one.name for one in PUBLISHED if one.op == _known(op)))


def installed(op: str | None = None) -> list[Entry]:
    """Return the entries whose packages are here, for one operator or for all."""
    name = None if op is None else _known(op)
    return [
        entry
        for entry in (*OWN, *PUBLISHED)
        if name in (None, entry.op) and all(map(find_spec, entry.needs))
    ]


def _known(op: str) -> str:
    """Return the name of an operator from its name or an alias."""
    if op not in OPERATORS:
        raise UsageError(nearest("operator", op, OPERATORS))
    return OPERATORS[op].name

"""Declarations: the values of each, when a kernel needs it, and an example."""

import ast
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from linkern.oracle import FEATURE_MAPS
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.errors import UsageError
from linkern.testing.spec.operators import INVERSE_ROOT_KEY_DIM
from linkern.testing.spec.values import (
    BOOLEAN,
    INPUTS,
    INTEGERS,
    NAME,
    NEGATIVE,
    NOT_NEGATIVE,
    SCALE,
    Values,
    integer,
    one_of,
)

__all__ = [
    "DECLARATIONS",
    "TOPICS",
    "Declaration",
    "as_text",
    "keywords",
    "nearest",
    "pairs",
]


@dataclass(frozen=True)
class Declaration:
    """One key of a contract.

    Parameters
    ----------
    values : Values
        Values that it may have.
    when : str
        The kernels that need it, as the end of a sentence that begins with "if".
    example : str
        A value, as it is written on the command line.
    """

    values: Values
    when: str
    example: str


_DTYPE = one_of(*SIGNIFICAND_BITS)
_MAP = one_of(*FEATURE_MAPS)

TOPICS = {
    "Equation": {
        "feature_map": Declaration(_MAP, "the feature map is not elu(x) + 1", "relu"),
        "key_feature_map": Declaration(
            _MAP, "keys have another feature map than queries", "exp"
        ),
        "normalize": Declaration(
            BOOLEAN, "the output is not divided by a normalizer", "false"
        ),
        "eps": Declaration(
            NOT_NEGATIVE, "an epsilon is added to the denominator", "1e-6"
        ),
        "eps_mode": Declaration(
            one_of("denominator", "normalizer", "clamp"),
            "the epsilon is added elsewhere, or is a lower clamp",
            "clamp",
        ),
        "constant_denominator": Declaration(
            BOOLEAN, "its gradients hold the denominator constant", "true"
        ),
        "feature_error": Declaration(
            one_of("absolute", "relative"),
            "elu(x) + 1 is promised without cancellation, which is stricter",
            "relative",
        ),
        "scale": Declaration(
            SCALE,
            "scores are multiplied by another factor than the operator's own",
            INVERSE_ROOT_KEY_DIM,
        ),
        "l2norm": Declaration(
            NOT_NEGATIVE, "it divides queries and keys by their norms itself", "1e-6"
        ),
    },
    "Arrays": {
        "layout": Declaration(
            one_of("bhtd", "bthd", "htd", "td"),
            "arrays are (batch, time, heads, dim), or have no batch or no heads",
            "bthd",
        ),
        "state_layout": Declaration(
            one_of("kv", "vk"), "its memory is (V, K) and not (K, V)", "vk"
        ),
        "output_dtype": Declaration(
            _DTYPE, "it returns another dtype than that of the query", "float32"
        ),
        "strides": Declaration(
            one_of("any", "contiguous"), "inputs must be contiguous", "contiguous"
        ),
        "cu_seqlens_dtype": Declaration(
            one_of("int64", "int32"), "offsets of packed sequences are int32", "int32"
        ),
        "mutates": Declaration(INPUTS, "it overwrites inputs on purpose", "query"),
    },
    "Decays": {
        "decay_log_base": Declaration(
            one_of("e", "2"), "log-decays are logarithms to base 2", "2"
        ),
        "decay_form": Declaration(
            one_of("log", "factor", "softplus", "sigmoid", "logsigmoid"),
            "it takes decays between 0 and 1, or raw gates of which it makes decays",
            "softplus",
        ),
        "decay_floor": Declaration(
            NEGATIVE, "strong decays overflow, and are never used", "-5"
        ),
        "gate_parameters": Declaration(
            one_of("both", "A_log", "dt_bias"),
            "of raw gates, it takes one of A_log and dt_bias alone",
            "dt_bias",
        ),
        "beta_form": Declaration(
            one_of("rate", "sigmoid", "twice_sigmoid"),
            "it takes logits of rates, and squashes them itself",
            "sigmoid",
        ),
    },
    "Precision": {
        "accumulator_dtype": Declaration(
            _DTYPE, "sums are narrower, or float64 inputs are summed in it", "float32"
        ),
        "operand_dtype": Declaration(
            _DTYPE, "operands of products are rounded, for tensor cores", "tfloat32"
        ),
        "score_dtype": Declaration(
            _DTYPE, "scores are stored before the second product", "bfloat16"
        ),
        "feature_dtype": Declaration(_DTYPE, "features are stored in it", "bfloat16"),
        "state_dtype": Declaration(
            _DTYPE, "the memory between chunks or calls is kept in it", "bfloat16"
        ),
        "normalizer_dtype": Declaration(
            _DTYPE, "the running normalizer is kept in it", "bfloat16"
        ),
        "rounding": Declaration(
            one_of("nearest", "truncation"),
            "the accumulator truncates, as those of tensor cores do",
            "truncation",
        ),
        "chunk_size": Declaration(
            integer(1), "its chunk size is known, which tightens the bound", "64"
        ),
    },
    "Shapes": {
        "min_length": Declaration(
            integer(0), "shorter sequences are not supported", "1"
        ),
        "max_length": Declaration(
            integer(0), "longer sequences are not supported", "4096"
        ),
        "length_multiple_of": Declaration(
            integer(1), "the length must be a multiple of a tile", "64"
        ),
        "key_dims": Declaration(INTEGERS, "only some K are supported", "64,128"),
        "value_dims": Declaration(INTEGERS, "only some V are supported", "64,128"),
        "equal_dims": Declaration(BOOLEAN, "K and V must be equal", "true"),
        "equal_lengths": Declaration(
            BOOLEAN, "not causal, and keys must be as many as queries", "true"
        ),
        "value_groups": Declaration(
            BOOLEAN, "values may have more heads than queries, or may not", "true"
        ),
        "packing": Declaration(
            one_of("any", "full"), "packed sequences must fill the arrays", "full"
        ),
    },
    "Interface": {
        "interface": Declaration(
            one_of("sequence", "step"), "one call is one token of a recurrence", "step"
        ),
        "takes_state": Declaration(
            BOOLEAN,
            "a program (`--command`) reads and writes states, or a function with a "
            "parameter for one takes none",
            "false",
        ),
        "returns_state": Declaration(
            BOOLEAN,
            "it takes no state, and what it returns after its output is none, "
            "although it has the shape of one",
            "false",
        ),
        "vjp": Declaration(NAME, "a function of its own gives the gradients", "my_vjp"),
        "gradients": Declaration(
            one_of("auto", "required", "none"),
            "missing gradients are a failure, or gradients are not to be judged",
            "required",
        ),
        "thread_safe": Declaration(
            BOOLEAN, "it may not be called from several threads at once", "false"
        ),
        "cuda_graphs": Declaration(
            BOOLEAN, "it promises that its calls can be captured as CUDA graphs", "true"
        ),
        "batch_invariant": Declaration(
            one_of("false", "rows", "true"),
            "it promises the same bits for a sequence in any batch, and in parts",
            "true",
        ),
        "validates": Declaration(
            BOOLEAN, "it promises to refuse shapes that do not fit", "true"
        ),
        "nan_policy": Declaration(
            one_of("propagate", "strict", "any"),
            "a NaN in a value may become anything, or must not reach the past",
            "any",
        ),
    },
    "Ranks": {
        "ranks_order": Declaration(
            one_of("contiguous", "zigzag"),
            "a rank has an early and a late piece, to balance a causal mask",
            "zigzag",
        ),
        "ranks_even": Declaration(BOOLEAN, "shards must be equal", "true"),
        "ranks_empty": Declaration(BOOLEAN, "every rank must have a token", "false"),
        "ranks_initial": Declaration(
            one_of("first", "every"), "every rank takes the initial state", "every"
        ),
        "ranks_final": Declaration(
            one_of("last", "every"), "every rank returns the final state", "every"
        ),
        "ranks_cu_seqlens": Declaration(
            one_of("whole", "shard"),
            "a rank takes the offsets of its shard, from 0",
            "shard",
        ),
    },
}
DECLARATIONS = {key: one for topic in TOPICS.values() for key, one in topic.items()}


def nearest(what: str, got: Any, known: Iterable[str]) -> str:
    """Return the sentence that refuses an unknown name and offers the nearest one."""
    known = sorted(known)
    close = difflib.get_close_matches(str(got), known, n=1, cutoff=0.5)
    hint = f'did you mean "{close[0]}"?' if close else f"known: {', '.join(known)}."
    return f'unknown {what} "{got}"; {hint}'


def pairs(option: str, form: str, texts: Iterable[str] | None) -> dict[str, str]:
    """Read ``KEY=VALUE`` texts as an option takes them."""
    declared = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            msg = f'{option} must have the form {form}, got "{text}".'
            raise UsageError(msg)
        declared[key.strip()] = value.strip()
    return declared


def keywords(option: str, texts: Iterable[str] | None) -> dict[str, Any]:
    """Read ``NAME=VALUE`` texts as keyword arguments: Python literals, or else text."""
    arguments: dict[str, Any] = {}
    for name, text in pairs(option, "NAME=VALUE", texts).items():
        if not name.isidentifier():
            msg = f'{option} must name a parameter, got "{name}".'
            raise UsageError(msg)
        try:
            arguments[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            arguments[name] = text
    return arguments


def as_text(value: Any) -> str:
    """Return a declared value as one writes it on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value).strip()

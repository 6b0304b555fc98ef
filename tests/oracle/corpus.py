"""A fixed corpus of calls of linear attention, and the bounds that the oracle proves.

`results` names every result of one call: outputs in both tiers and with shared
features, states, gradients in both tiers, and outputs with the sharp bound where sums
are exact. ``python -m tests.oracle.corpus`` records summaries of their bounds; those in
the file are of the closed forms that linear attention had before it was an operator of
the tape (commit 830c466).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from linkern.testing.target.frameworks import numpy_dtype

from linkern.oracle import Bounded
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS

RECORD = Path(__file__).with_name("corpus.npz")
SIZE = 480
CONFIDENCE = 3.0
LENGTHS = (1, 2, 3, 7, 16, 17, 33, 64, 65, 130, 300)
DIMS = (1, 2, 3, 4, 8, 16, 64)
KINDS = ("normal", "positive", "tiny", "vanishing", "cancelling", "large", "integers")
# So that problems of all lengths together take seconds.
_ENTRIES = 2500


@dataclass(frozen=True)
class Case:
    """One call: the operator, what is declared of it, and its arrays."""

    operator: str
    dtype: str
    declared: dict
    kind: str
    inputs: dict
    integers: tuple | None
    cotangent: np.ndarray


def _declared(rng, kind):
    """Draw declarations: maps, quotient, arithmetic and chunk size."""
    maps = {
        "cancelling": ["identity"],
        "integers": ["elu_plus_one", "relu", "identity", "exp"],
    }.get(kind, ["elu_plus_one", "relu", "exp", "identity", "softmax"])
    drawn = {"feature_map": rng.choice(maps)}
    wide = ["float64", "float32", "float16", "bfloat16"]
    narrow = ["float32", "tfloat32", "float16", "bfloat16"]
    choices = {
        "key_feature_map": (0.15, maps),
        "normalize": (0.2, [False]),
        "accumulator_dtype": (0.4, wide),
        "rounding": (0.15, ["truncation"]),
        "feature_error": (0.3, ["relative"]),
        "output_dtype": (0.2, ["float32", "bfloat16"]),
    }
    stages = ("feature", "operand", "score", "state", "normalizer")
    choices |= {f"{stage}_dtype": (0.12, narrow) for stage in stages}
    drawn |= {n: rng.choice(x) for n, (p, x) in choices.items() if rng.random() < p}
    declared = {n: x.item() if n == "normalize" else str(x) for n, x in drawn.items()}
    if rng.random() < 0.4:
        declared["scale"] = [0.25, 3.0, -2.0, "K^-0.5"][rng.integers(4)]
    if rng.random() < 0.3:
        declared["chunk_size"] = int(rng.choice([1, 16, 64]))
    if "normalize" not in declared and rng.random() < 0.5:
        declared["eps"] = float(rng.choice([1e-10, 1e-6, 1e-2, 2.0]))
        modes = ["denominator", "normalizer", "clamp"]
        declared["eps_mode"] = str(rng.choice(modes))
    return declared


def _arrays(rng, kind, shapes):
    """Draw query, key, value and cotangent of a kind."""
    q, k, v, g = (rng.normal(size=shape) for shape in shapes)
    if kind == "positive":
        q, k = abs(q) + 0.1, abs(k) + 0.1
    if kind == "tiny":
        q, k = q - 12, k - 12
    if kind == "vanishing":
        k = k - 80
        v[..., ::2, :] *= 2.0**-40
    if kind == "cancelling":
        q = np.ones_like(q)
        k[..., 1::2, :] = -k[..., : 2 * (k.shape[-2] // 2) : 2, :]
        k[..., 1::2, :] *= 1 - 2.0 ** -rng.integers(3, 14)
    if kind == "large":
        q, k, v = 6 * q, 6 * k, v * 2.0**8
    return q, k, v, g


def case(seed):
    """Return a case of the corpus."""
    rng = np.random.default_rng(seed)
    causal = bool(rng.random() < 0.65)
    kind = KINDS[seed % len(KINDS)]
    dtype = str(rng.choice(["float64", "float32", "float32", "float16", "bfloat16"]))
    declared = _declared(rng, kind)
    b, h = (int(rng.integers(1, 3)) for _ in range(2))
    t, s = (int(rng.choice(LENGTHS)) for _ in range(2))
    s = t if causal else s
    b, h = (b, h) if max(t, s) < 100 else (1, 1)
    dims = [d for d in DIMS if b * h * max(t, s) * d <= _ENTRIES]
    k, v = (int(rng.choice(dims)) for _ in range(2))
    shapes = ((b, h, t, k), (b, h, s, k), (b, h, s, v), (b, h, t, v))
    name = "linear_attention" if causal else "linear_attention_noncausal"
    integers = None
    arrays = _arrays(rng, kind, shapes)
    if kind == "integers":
        key_map = declared.get("key_feature_map", declared["feature_map"])
        most = [1 if m == "exp" else 3 for m in (declared["feature_map"], key_map)]
        a, key = (
            rng.integers(0, m, shape, endpoint=True)
            for m, shape in zip(most, shapes[:2], strict=True)
        )
        a[..., 0] = key[..., 0] = 1
        integers = a, key, rng.integers(-9, 10, shapes[2])
        scope = _scope(name, declared, dtype)
        maps = scope.query_map, scope.key_map
        features = (m.from_integers(x) for m, x in zip(maps, (a, key), strict=True))
        arrays = *features, integers[2], arrays[3]
    narrow = [x.astype(numpy_dtype(dtype)) for x in arrays]
    inputs = dict(zip(("query", "key", "value"), narrow[:3], strict=True))
    return Case(name, dtype, declared, kind, inputs, integers, narrow[3])


def _scope(name, declared, dtype):
    return Scope(OPERATORS[name], Contract(**declared), dtype)


def problem(of):
    """Return the problem of a case, of which nothing is known yet."""
    scope = _scope(of.operator, of.declared, of.dtype)
    return Problem(
        scope, of.kind, of.inputs, integers=of.integers, cotangent=of.cotangent
    )


def results(of):
    """Return every result of a case with its bound, by name."""
    asked = problem(of)
    found = {
        "output": asked.solve(),
        "output, probable": asked.solve(confidence=CONFIDENCE),
        "output, shared features": asked.solve(shared_features=True),
    }
    sharp = asked.solve().sharp
    if sharp is not None:
        found["output, sharp"] = Bounded(asked.solve().output, sharp)
    found |= zip(("memory", "normalizer"), asked.solve_state(), strict=True)
    for tier, confidence in (("", None), (", probable", CONFIDENCE)):
        gradients = asked.solve_gradients(confidence=confidence)
        found |= {f"d{name}{tier}": x for name, x in gradients.items()}
    return found


def summary(bound):
    """Return logarithms of what a bound is: entries, largest, sum, infinite ones."""
    flat = np.nan_to_num(np.ravel(bound), nan=np.inf, posinf=np.inf)
    finite = flat[np.isfinite(flat)]
    some = flat[np.linspace(0, flat.size - 1, 4).astype(int)]
    infinite = flat.size - finite.size
    several = [*some, finite.max(initial=0), finite.sum(), infinite]
    with np.errstate(divide="ignore"):
        return np.log2(several).astype(np.float32)


def summaries():
    """Return the summaries of all bounds of the corpus, by name."""
    rows = {}
    with np.errstate(all="ignore"):
        for seed in range(SIZE):
            for name, found in results(case(seed)).items():
                rows.setdefault(name, {})[seed] = summary(found.bound)
    nothing = np.full(7, np.nan, np.float32)
    return {
        name: np.stack([found.get(seed, nothing) for seed in range(SIZE)])
        for name, found in rows.items()
    }


if __name__ == "__main__":
    np.savez_compressed(RECORD, **summaries())

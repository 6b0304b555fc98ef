"""Small calls that tests of all kernels share, and the comparison of their results."""

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from linkern import feature_maps
from linkern.kernels.numpy import backend as numpy_backend
from tests.kernels.cuda.emulator.device import Way
from tests.kernels.numpy.backward_problems import Problem, problem

__all__ = [
    "BATCHES",
    "DTYPES",
    "WAYS",
    "Kind",
    "call",
    "cast_inputs",
    "close",
    "expected",
    "strided",
]

WAYS = (
    Way("forward", "at once"),
    Way("reverse", "when waited for"),
    Way("shuffled", "at random", seed=3, resident=2),
    Way("ahead", "when waited for", seed=5, resident=3),
    Way("ahead", "at once", seed=6, truncates=True),
)
# Leading axes: none, one, several, and those without a head.
BATCHES = ((), (1,), (3,), (2, 2), (2, 1, 3), (0,), (2, 0))
DTYPES: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# Bound relative to the largest entry of a result: sums have some hundred terms.
NEAR = {"float64": 2.0**-40, "float32": 2.0**-15}
# Half a unit in the last place, relative to the entry.
ROUNDED = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


class Kind(NamedTuple):
    """Kind of call; each is a kernel of its own, compiled once."""

    dtype: str
    map: str
    normalize: bool
    decays: bool

    def problem(self, seed: int = 0, **sizes: Any) -> Problem:
        """Return a call of this kind, with inputs that are exact in its dtype."""
        scale = None if self.normalize else 0.25
        choices = {"normalize": self.normalize, "decays": self.decays, "scale": scale}
        case = problem(np.random.default_rng(seed), map=self.map, **choices, **sizes)
        case.inputs = tuple(
            None if x is None else x.astype(DTYPES[dtype]).astype(np.float64)
            for x, dtype in zip(case.inputs, self.dtypes, strict=True)
        )
        return case

    @property
    def dtypes(self) -> list[str]:
        """Dtypes of queries, keys and values, and of log-decays and the state."""
        wide = "float64" if self.dtype == "float64" else "float32"
        return 3 * [self.dtype] + 3 * [wide]


def cast_inputs(kind: Kind, case: Problem) -> list[Any]:
    """Return the inputs of a call in the dtypes of its kind."""
    return [
        None if x is None else x.astype(DTYPES[dtype])
        for x, dtype in zip(case.inputs, kind.dtypes, strict=True)
    ]


def call(attend: Callable[..., Any], device: Any, kind: Kind, case: Problem) -> Any:
    """Return the output and the state that kernels compute."""
    feature_map = getattr(feature_maps, kind.map)
    arrays = cast_inputs(kind, case)
    return attend(device, *arrays, feature_map=feature_map, scale=case.scale)


def expected(case: Problem) -> Any:
    """Return the output and the state in float64."""
    feature_map = getattr(feature_maps, case.map)
    with np.errstate(invalid="ignore"):
        return numpy_backend.attend(
            *case.inputs, feature_map=feature_map, scale=case.scale
        )


def close(results: Any, exact: Any) -> None:
    """Assert that results are within the bound of their dtypes."""
    for x, y in zip(results, exact, strict=True):
        assert (x is None) == (y is None)
        if y is None:
            continue
        assert x.shape == y.shape
        name = x.dtype.name
        # Without a feature, rows are 0 / 0.
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
        size = np.nan_to_num(np.abs(y))
        error = np.nan_to_num(np.abs(x.astype(np.float64) - y), posinf=np.inf)
        near = NEAR.get(name, NEAR["float32"]) * size.max(initial=0)
        assert (error <= near + ROUNDED.get(name, 0) * size).all(), error.max()


def strided(x: Any, how: str) -> Any:
    """Return the same entries with other strides."""
    if x is None or how == "plain":
        return x
    if how == "tokens first":
        return np.moveaxis(np.moveaxis(x, -2, 0).copy(), 0, -2)
    if how == "backwards":
        return x[..., ::-1, :].copy()[..., ::-1, :]
    if how == "every other entry":
        return np.repeat(x, 2, axis=-1)[..., ::2]
    msg = f"no strides are called {how!r}"
    raise ValueError(msg)

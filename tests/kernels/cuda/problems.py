"""Small calls that tests of all kernels share, and how their results are judged."""

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
    "close",
    "due",
    "given_as",
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
# Of the largest number in a result: sums of these problems have some hundred terms.
NEAR = {"float64": 2.0**-40, "float32": 2.0**-15}
# Half a unit in the last place, relative to a number.
ROUNDED = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


class Kind(NamedTuple):
    """Which kernel is asked for; each kind is compiled once."""

    dtype: str
    map: str
    normalize: bool
    decays: bool

    def problem(self, seed: int = 0, **sizes: Any) -> Problem:
        """Return a call of this kind, with numbers that its dtype has."""
        scale = None if self.normalize else 0.25
        choices = {"normalize": self.normalize, "decays": self.decays, "scale": scale}
        made = problem(np.random.default_rng(seed), map=self.map, **choices, **sizes)
        made.inputs = tuple(
            None if x is None else x.astype(DTYPES[dtype]).astype(np.float64)
            for x, dtype in zip(made.inputs, self.dtypes, strict=True)
        )
        return made

    @property
    def dtypes(self) -> list[str]:
        """Of queries, keys, values; of log-decays and the state."""
        wide = "float64" if self.dtype == "float64" else "float32"
        return 3 * [self.dtype] + 3 * [wide]


def given_as(kind: Kind, made: Problem) -> list[Any]:
    """Return the inputs of a call in the dtypes that a kernel is to get."""
    return [
        None if x is None else x.astype(DTYPES[dtype])
        for x, dtype in zip(made.inputs, kind.dtypes, strict=True)
    ]


def call(attend: Callable[..., Any], device: Any, kind: Kind, made: Problem) -> Any:
    """Return the output and the state that kernels find."""
    feature_map = getattr(feature_maps, kind.map)
    arrays = given_as(kind, made)
    return attend(device, *arrays, feature_map=feature_map, scale=made.scale)


def due(made: Problem) -> Any:
    """Return what they are to find, in float64."""
    feature_map = getattr(feature_maps, made.map)
    with np.errstate(invalid="ignore"):
        return numpy_backend.attend(
            *made.inputs, feature_map=feature_map, scale=made.scale
        )


def close(found: Any, exact: Any) -> None:
    """Judge results by their dtypes."""
    for x, y in zip(found, exact, strict=True):
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
    """Return the same numbers with other strides."""
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

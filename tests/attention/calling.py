"""Helpers of the attention tests: other libraries, inputs, comparison, reference."""

import numpy as np

# Weights add up to one and values are of size one, so that an error is that of a few
# exponentials with scores below 30: about 30 epsilon, and sums of up to 40 terms.
CLOSE = 1e-12


def through(lib, function):
    """Return a function of NumPy arrays that runs `function` on another library."""

    def call(*arrays, **options):
        converted = {k: convert(x) for k, x in options.items()}
        return lib.numpy(function(*map(convert, arrays), **converted))

    def convert(x):
        return lib.array(x) if isinstance(x, np.ndarray) else x

    return call


def draw(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def close(result, expected, bound=CLOSE):
    result, expected = np.asarray(result), np.asarray(expected)
    assert result.shape == expected.shape
    assert np.array_equal(np.isnan(result), np.isnan(expected))
    assert np.nanmax(abs(result - expected), initial=0) <= bound


def softmax_rows(scores, visible, value):
    """Return softmax attention over the visible keys, row by row."""
    length = scores.shape[0]
    result = np.full((length, value.shape[-1]), np.nan)
    for i in range(length):
        keys = np.flatnonzero(visible[i])
        if len(keys):
            weights = np.exp(scores[i, keys] - scores[i, keys].max())
            result[i] = weights @ value[keys] / weights.sum()
    return result

"""Calling attention on the arrays of each library; laws that are asked of NumPy's."""

import numpy as np

# Weights add up to one and values are of size one, so that an error is that of a few
# exponentials with scores below 30: about 30 epsilon, and sums of up to 40 terms.
CLOSE = 1e-12


def through(lib, function):
    """Return the function between NumPy arrays that runs on another library."""

    def call(*arrays, **options):
        given = {k: of(x) for k, x in options.items()}
        return lib.numpy(function(*map(of, arrays), **given))

    def of(x):
        return lib.array(x) if isinstance(x, np.ndarray) else x

    return call


def draw(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def close(found, due, bound=CLOSE):
    found, due = np.asarray(found), np.asarray(due)
    assert found.shape == due.shape
    assert np.array_equal(np.isnan(found), np.isnan(due))
    assert np.nanmax(abs(found - due), initial=0) <= bound


def softmax_rows(scores, visible, value):
    """The sum of the definition, row by row: softmax over the visible keys."""
    length = scores.shape[0]
    found = np.full((length, value.shape[-1]), np.nan)
    for i in range(length):
        seen = np.flatnonzero(visible[i])
        if len(seen):
            weights = np.exp(scores[i, seen] - scores[i, seen].max())
            found[i] = weights @ value[seen] / weights.sum()
    return found

"""Problems on the road from the GRU to attention, and what several laws share."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from linkern.attention import softmax_attention

# Averages of at most a dozen numbers of the size of 1 in float64: a hundred roundings
# of 2^-53 at most, and as much for the reference.
BOUND = 1e-13
# Arrays are small, and the laws many.
FEW = settings(max_examples=25)
FORMS = ("recurrent", "chunkwise", "parallel")


def seeds():
    return st.integers(0, 2**16).map(np.random.default_rng)


def sizes():
    """Return leading axes, tokens, channels."""
    lead = st.sampled_from([(), (2,), (2, 1)])
    return st.tuples(lead, st.integers(1, 9), st.integers(1, 4))


def drawn(rng, lead, length, channels):
    """Return gates, some of them exactly 0 or 1, candidates and an initial state."""
    update = rng.uniform(size=(*lead, length, channels))
    kind = rng.integers(6, size=update.shape)
    update = np.where(kind < 2, kind.astype(float), update)
    candidate = rng.normal(size=update.shape)
    return update, candidate, rng.normal(size=(*lead, channels))


def loop(update, candidate, first):
    """The recurrence h = (1 - z) h + z c."""
    h, states = first, []
    for t in range(update.shape[-2]):
        z = update[..., t, :]
        h = (1 - z) * h + z * candidate[..., t, :]
        states.append(h)
    return np.stack(states, axis=-2)


def close(got, due, bound=BOUND):
    assert got.shape == due.shape
    assert np.all(abs(got - due) <= bound * (1 + abs(due)))


def on(lib, function):
    """One of our functions as a function of NumPy arrays."""
    return lambda *arrays, **options: lib.numpy(
        function(*(lib.array(x) for x in arrays), **options)
    )


def law_the_past_is_only_rescaled(weights, update):
    """All that a token can do to the earlier weights: one factor for all of them."""
    rows = weights(update)
    for t in range(1, update.shape[-2]):
        kept = 1 - update[..., t, :, None]
        close(rows[..., t, : t + 1], kept * rows[..., t - 1, : t + 1])


def free(rng, lead, length, heads, each=2):
    weights = rng.exponential(size=(*lead, heads, length, length + 1))
    return weights, rng.normal(size=(*lead, length + 1, heads * each))


def attending(lib, causal, width=4):
    rng = np.random.default_rng(1)
    q, k, v = (lib.array(w) for w in rng.normal(size=(3, width, width)))
    return lambda x: softmax_attention(x @ q, x @ k, x @ v, causal=causal)

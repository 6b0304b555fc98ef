"""A kernel whose first row is 0 / 0: its mask leaves the first query no key.

Judge it:

    linkern verify examples/first_row_undefined.py:attention --op linear_attention
"""

import numpy as np


def attention(query, key, value):
    """Sum over the keys before each query, then add the query's own key too late."""
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key))
    scores = np.tril(q @ k.swapaxes(-1, -2))
    before = np.tril(scores, -1).sum(-1, keepdims=True)
    own = np.einsum("...td,...td->...t", q, k)[..., None]
    with np.errstate(all="ignore"):
        # The quotient of both sums is 0 / 0 where there is no key before.
        corrected = before * (1 + own / before)
        return (scores @ value) / corrected

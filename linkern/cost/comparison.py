"""Softmax and linear attention beside each other: constants, and where they cross."""

from fractions import Fraction

from linkern import validate
from linkern.cost.linear import linear_cost
from linkern.cost.softmax import softmax_cost
from linkern.operators.forms import FORM_NAMES, form_named

__all__ = ["crossover", "linear_factor", "softmax_factor"]


def softmax_factor(key_dim: int, value_dim: int) -> Fraction:
    """Return the constant before ``N^2 max(D, M)`` in the multiply-adds of softmax.

    Parameters
    ----------
    key_dim, value_dim : int
        ``D`` and ``M``.

    Returns
    -------
    Fraction
        ``(D + M) / max(D, M)``: above 1 and at most 2, for every length.

    Raises
    ------
    TypeError, ValueError
        If a dimension is no positive integer.

    Notes
    -----
    Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3.1.

    Examples
    --------
    >>> from linkern.cost import softmax_factor
    >>> softmax_factor(64, 64), softmax_factor(64, 16)
    (Fraction(2, 1), Fraction(5, 4))
    """
    keys = validate.positive_integer("key_dim", key_dim)
    values = validate.positive_integer("value_dim", value_dim)
    return Fraction(keys + values, max(keys, values))


def linear_factor(
    features: int,
    value_dim: int,
    *,
    form: str = "auto",
    chunk_size: int | None = None,
    normalize: bool = True,
) -> Fraction:
    """Return the constant before ``N C M`` in the multiply-adds of linear attention.

    Parameters
    ----------
    features, value_dim : int
        ``C`` and ``M``.
    form : {"auto", "recurrent", "chunkwise"}
        As in `linear_attention`; the parallel form has none.
    chunk_size, normalize
        As in `linear_attention`.

    Returns
    -------
    Fraction
        For every length of whole chunks.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    ``2 (1 + 1 / M)`` if it is recurrent and normalised; chunks of ``B`` tokens add ``B
    (C + M + 1) / (C M)``. Source: Katharopoulos et al. 2020, "Transformers are RNNs",
    section 3.2.

    Examples
    --------
    >>> from linkern.cost import linear_factor
    >>> linear_factor(64, 64, form="recurrent", normalize=False)
    Fraction(2, 1)
    >>> linear_factor(64, 64, normalize=False)
    Fraction(4, 1)
    """
    features = validate.positive_integer("features", features)
    value_dim = validate.positive_integer("value_dim", value_dim)
    form = validate.form(form, ("auto", "recurrent", "chunkwise"))
    size = form_named(form, validate.chunk_size(chunk_size, form)).size
    assert size is not None
    cost = linear_cost(
        size,
        features=features,
        value_dim=value_dim,
        form=form,
        chunk_size=chunk_size,
        normalize=normalize,
    )
    return Fraction(cost.multiply_adds, size * features * value_dim)


def crossover(
    *,
    key_dim: int,
    value_dim: int,
    features: int | None = None,
    form: str = "auto",
    chunk_size: int | None = None,
    causal: bool = True,
    normalize: bool = True,
    padded: bool = True,
    masked: bool = True,
) -> int | None:
    r"""Return the length from which on linear attention takes fewer multiply-adds.

    Parameters
    ----------
    key_dim, value_dim : int
        ``K`` and ``V``.
    features : int, optional
        Features of a query or key, ``F``. Default: ``K``.
    form, chunk_size, causal, normalize, padded
        As in `linear_cost`.
    masked : bool
        Whether causal softmax computes the scores that it masks, as
        `softmax_attention` does. False: only the pairs that are seen, the least that
        any implementation can do.

    Returns
    -------
    int or None
        The least ``N`` such that every ``T >= N`` takes fewer than softmax attention;
        None if there is none.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    With ``W`` columns, ``V + 1`` if `normalize`: softmax takes ``T^2 (K + V)``,
    linear attention ``2 T F W`` and so wins from the first

    .. math:: N > \frac{2 F W}{K + V}

    on; chunks of ``C`` tokens add ``C (F + W)`` to the numerator where ``T`` is a
    multiple of ``C``, and in between, the one chunk in question is counted out.

    Examples
    --------
    >>> from linkern.cost import crossover
    >>> crossover(key_dim=64, value_dim=64, form="recurrent")
    66
    >>> crossover(key_dim=64, value_dim=64, padded=False)
    130
    """
    keys = validate.positive_integer("key_dim", key_dim)
    values = validate.positive_integer("value_dim", value_dim)
    wide = keys if features is None else features
    wide = validate.positive_integer("features", wide)
    order = form_named(
        validate.form(form, FORM_NAMES), validate.chunk_size(chunk_size, form)
    )
    causal = validate.flag("causal", causal)
    seen_only = causal and not validate.flag("masked", masked)
    columns = values + validate.flag("normalize", normalize)
    each = 2 * wide * columns  # multiply-adds for a token, once written and read
    # Twice the multiply-adds of softmax are pair (2 T^2), or pair (T^2 + T).
    pair = keys + values
    if order.size is None or order.together == 1 or not causal:
        square = wide + columns if order.size is None else 0
        slope = (1 if seen_only else 2) * pair - 2 * square
        if slope <= 0:
            return None
        return max((2 * each - pair * seen_only) // slope + 1, 1)

    def fewer(length: int) -> bool:
        linear = linear_cost(
            length,
            features=wide,
            value_dim=values,
            form=form,
            chunk_size=chunk_size,
            normalize=normalize,
            padded=padded,
        ).multiply_adds
        softmax = softmax_cost(length, key_dim=keys, value_dim=values)
        scores = softmax.pairs if seen_only else softmax.scores
        return scores * pair > linear

    # Whole chunks take `most` for a token, and padding is less than a chunk: beyond
    # this length softmax takes more; at whole chunks a chunk or two below, less.
    most = each + order.size * (wide + columns)
    length = (2 if seen_only else 1) * most // pair + order.size + 1
    while length > 1 and fewer(length - 1):
        length -= 1
    return length

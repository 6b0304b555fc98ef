"""Cost of linear attention with a feature map, after that map."""

from linkern import validate
from linkern.cost.products import forward
from linkern.cost.recurrences import Recurrence, spans_of
from linkern.cost.softmax import Cost, sizes_of
from linkern.operators.forms import FORM_NAMES, form_named

__all__ = ["linear_cost"]


def linear_cost(
    length: int,
    *,
    features: int,
    value_dim: int,
    form: str = "auto",
    chunk_size: int | None = None,
    causal: bool = True,
    normalize: bool = True,
    padded: bool = True,
) -> Cost:
    """Count what `linkern.linear_attention` does after its feature map.

    Parameters
    ----------
    length : int
        Tokens, ``T``.
    features : int
        Features of a query or key, ``F``.
    value_dim : int
        ``V``.
    form, chunk_size, causal, normalize
        As in `linear_attention`.
    padded : bool
        Whether a last chunk that is not whole is filled up, as the array API forms do;
        on NumPy it is as short as it is.

    Returns
    -------
    Cost
        `pairs` is that of the equation; `scores` those that the form computes, none for
        "recurrent"; `state` does not depend on the length.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    With ``W = V + 1`` columns if `normalize`, otherwise ``V``: a token is written and
    read with ``F W`` multiply-adds each, ``2 T F W`` in all, and chunks of ``C`` tokens
    add ``C (F + W)`` for each token.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3.2.

    Examples
    --------
    >>> from linkern.cost import linear_cost
    >>> linear_cost(1000, features=2, value_dim=3, form="recurrent").multiply_adds
    16000
    """
    length, _ = sizes_of(length, features, value_dim, first="features")
    order = form_named(
        validate.form(form, FORM_NAMES), validate.chunk_size(chunk_size, form)
    )
    causal = validate.flag("causal", causal)
    columns = value_dim + validate.flag("normalize", normalize)
    padded = validate.flag("padded", padded)
    scores = 0
    if order.size is None:
        scores = length * length
    elif causal and order.together > 1:
        cut = spans_of(length, order, padded=padded)
        scores = sum(x.times * x.chunks * x.size * x.size for x in cut)
    if causal:
        memory = Recurrence(features, columns)
        products = forward(memory, length, order, padded=padded).multiply_adds
    else:
        products = 2 * length * features * columns + scores * (features + columns)
    return Cost(
        length * (length + 1) // 2 if causal else length * length,
        scores,
        products,
        features * columns,
    )

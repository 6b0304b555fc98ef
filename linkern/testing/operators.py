"""The operators a target can claim to be, as the referee understands them."""

from dataclasses import dataclass

__all__ = ["INPUT_NAMES", "OPERATORS", "Operator"]

# What every operator here is called with, in this order.
INPUT_NAMES = ("query", "key", "value")


@dataclass(frozen=True)
class Operator:
    """One operator, called as ``f(query, key, value)``.

    Parameters
    ----------
    name : str
        What ``--op`` calls it.
    causal : bool
        Whether row i sums over keys 0..i only.
    summary : str
        Its equation in one line.
    """

    name: str
    causal: bool
    summary: str


OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        Operator(
            "linear_attention",
            causal=True,
            summary="o_i = phi(q_i)^T sum_{j<=i} phi(k_j) v_j^T / "
            "phi(q_i)^T sum_{j<=i} phi(k_j), phi = elu + 1",
        ),
        Operator(
            "linear_attention_noncausal",
            causal=False,
            summary="o_i = phi(q_i)^T sum_j phi(k_j) v_j^T / "
            "phi(q_i)^T sum_j phi(k_j), phi = elu + 1",
        ),
    )
}

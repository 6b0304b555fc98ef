r"""From the GRU to attention: one average of candidates, freed step by step.

A GRU's hidden state is a weighted average of the candidates so far (`gru_weights`,
`unrolled`). Attention is what remains when

1. the weights are free, and shared by as many channels as one likes
   (`weighted_candidates`);
2. gates and candidates are functions of the token alone (`without_feedback`,
   `gated_average`), so that no loop over the tokens is needed;
3. the weights are similarities of queries and keys (`similarity_weights`); where they
   do not depend on the query, that is a GRU again (`shares`);
4. positions are added, since nothing else tells the order (`order_gap`);
5. the non-linear function comes after the average (`mixed_then_transformed`).

The equalities between these steps are tested, and told one after the other in
``docs/from-the-gru-to-linear-attention.md``.
"""

from linkern.transformer.road.averages import (
    gru_weights,
    similarity_weights,
    unrolled,
    weighted_candidates,
)
from linkern.transformer.road.gates import gated_average, shares, without_feedback
from linkern.transformer.road.layer import mixed_then_transformed, order_gap

__all__ = [
    "gated_average",
    "gru_weights",
    "mixed_then_transformed",
    "order_gap",
    "shares",
    "similarity_weights",
    "unrolled",
    "weighted_candidates",
    "without_feedback",
]

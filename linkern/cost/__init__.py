"""Cost of attention in exact counts: pairs, arithmetic, bytes, numbers kept.

The counts of `softmax_cost`, `sparse_cost`, `lsh_cost` and `linear_cost` are for one
head and one sequence; a multiply-add is one product in a matrix product, and
exponentials, divisions, masks, feature maps and the comparisons of sorting are not
counted. `operator_cost` counts all arithmetic of an operator, and
`gradient_cost` the products of its gradient. All of it is about the algorithms of this
package, and the tests compare it with what these execute.
"""

from linkern.cost.comparison import crossover, linear_factor, softmax_factor
from linkern.cost.linear import linear_cost
from linkern.cost.lsh import lsh_cost
from linkern.cost.operators import OperatorCost, gradient_cost, operator_cost
from linkern.cost.products import Gradient
from linkern.cost.softmax import Cost, softmax_cost
from linkern.cost.sparse import sparse_cost

__all__ = [
    "Cost",
    "Gradient",
    "OperatorCost",
    "crossover",
    "gradient_cost",
    "linear_cost",
    "linear_factor",
    "lsh_cost",
    "operator_cost",
    "softmax_cost",
    "softmax_factor",
    "sparse_cost",
]

"""Maps of the oracle with changed inputs or outputs, as if a target had made them."""

import numpy as np

from linkern.testing.influence.readings import output_maps
from linkern.testing.influence.scenes import dense_scene, product_scene
from linkern.testing.problems.context import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.protocol import Reply

__all__ = ["dense", "map_of", "product"]

SIZES = (1, 2, 40, 4, 44)


def product(op, seed=1):
    """Return a problem with keys of one channel each."""
    scope = Scope(OPERATORS[op], Contract(), "float32")
    return product_scene(scope, SIZES, np.random.default_rng(seed))


def dense(op, seed=1):
    """Return a problem with keys in all channels."""
    scope = Scope(OPERATORS[op], Contract(), "float32")
    return dense_scene(scope, SIZES, np.random.default_rng(seed))


def map_of(problem, finish=lambda o: o, **inputs):
    """Return the map of the oracle with some inputs replaced."""
    call = problem.oracle_call
    operator = problem.scope.operator
    output = operator.evaluate({**call.meant, **inputs}, call.scale).output
    output = finish(np.array(output)).astype(np.float32)
    reply = Reply(output, "float32", "numpy", output.shape, output.shape)
    return next(output_maps(problem, reply))

"""Hypothesis strategies for the inputs of kernels, for tests of one's own."""

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from linkern.testing.errors import UsageError
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import nearest
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["KINDS", "Problem", "problems"]

# Each kind of problem by what it reaches.
KINDS: Mapping[str, Callable[[Scope], st.SearchStrategy[Problem]]] = {
    "reals": draws.real_problems,
    "integers": draws.integer_problems,
    "random": draws.random_problems,
    "short": draws.short_problems,
    "long": draws.long_problems,
    "dimensions": draws.tile_problems,
    "extremes": draws.extreme_problems,
    "gradients": draws.gradient_problems,
}


def problems(
    op: str,
    *,
    kind: str = "reals",
    dtype: str = "float32",
    contract: Mapping[str, Any] | Contract | None = None,
) -> st.SearchStrategy[Problem]:
    """Problems of an operator, as the checks of `linkern verify` draw them.

    Lengths gather around the edges of tiles and chunks, key and value dimensions
    differ, and a failing problem shrinks to the few tokens that matter.

    Parameters
    ----------
    op : str
        The operator, a key of `linkern.testing.OPERATORS`.
    kind : str
        ``reals``: inputs that round, among them tiny and huge ones; ``integers``: all
        sums are exact in any order, so every lost or doubled key shows; ``random``:
        independent draws, for ``assert_within_bound(..., random_inputs=True)``;
        ``short``: no token or one; ``long``: thousands of tokens; ``dimensions``: key
        and value dimensions beyond one tile; ``extremes``: ends of the range of the
        dtype; ``gradients``: with a cotangent of the output.
    dtype : str
        Dtype of the inputs.
    contract : Contract or mapping, optional
        Declarations of the kernel: what lengths and dimensions it accepts, its feature
        map, its scale.

    Returns
    -------
    SearchStrategy of Problem
        Each with ``inputs``, NumPy arrays ``(B, H, T, .)`` by name in the order of the
        operator, and ``cotangent`` where gradients are judged.

    Raises
    ------
    UsageError
        If the operator, the kind, the dtype or a declaration is unknown or does not
        fit.

    Examples
    --------
    >>> import linkern
    >>> from hypothesis import given, settings
    >>> from linkern.testing import assert_within_bound, strategies
    >>> @settings(max_examples=5)
    ... @given(strategies.problems("simple_gla"))
    ... def test_my_kernel(problem):
    ...     output, state = linkern.simple_gla(**problem.inputs)
    ...     assert_within_bound(output, "simple_gla", **problem.inputs)
    >>> test_my_kernel()
    """
    if op not in OPERATORS:
        raise UsageError(nearest("operator", op, OPERATORS))
    if kind not in KINDS:
        raise UsageError(nearest("kind", kind, KINDS))
    numpy_dtype(dtype)
    if not isinstance(contract, Contract):
        contract = Contract.from_mapping(contract or {})
    contract.require_of(OPERATORS[op])
    scope = Scope(OPERATORS[op], contract, dtype)
    if kind == "integers" and (why := draws.no_integers(scope)):
        msg = f'`kind="integers"` does not exist for {op}: {why}.'
        raise UsageError(msg)
    return KINDS[kind](scope)

"""Checks: each is one law, a strategy that can reach its violations, and a body.

A check is data in a registry. Its body gets a checked target and a problem, calls the
target as often as the law needs, and raises a `Violation`. Names are public. Checks run
and are reported in `ORDER`.
"""

from linkern.testing.checks import (
    calls,
    configurations,
    extremes,
    gates,
    gradients,
    interpreted,
    invariance,
    launches,
    lengths,
    memory,
    order,
    packed,
    scaling,
    states,
    values,
)
from linkern.testing.checks.registry import CHECKS, Check

__all__ = [
    "CHECKS",
    "INTERPRETED",
    "OF_LAUNCHES",
    "ON_CUDA",
    "ORDER",
    "SMOKE",
    "Check",
]

# The laws that catch the most mutants in the least time come first, so that a faulty
# kernel fails within seconds.
ORDER = (
    # The line of an interpreted kernel, before its consequences.
    "no_access_out_of_bounds",
    "no_uninitialised_memory",
    # All others take the form of the output for granted.
    "shape_and_dtype",
    # What it reports, the others do not repeat.
    "finite_output",
    # The deadliest laws of outputs.
    "value_on_integers",
    "causality",
    "row_normalisation",
    "value_on_reals",
    "every_configuration",
    "dimensions",
    "ranges",
    # The deadliest of states, gradients and packed sequences.
    "decoding",
    "state_split",
    "gradient_value",
    "gradient_of_state",
    "packed_equals_separate",
    "packed_states",
    "packed_gradients",
    # Other views of the same sums, for defects that few inputs reach.
    "short_sequences",
    "prefix",
    "heads_independent",
    "permutations",
    "additivity_of_values",
    "scaling_of_values",
    "scaling_of_keys",
    "parallel_equals_recurrent",
    "chunk_invariance",
    "nan_policy",
    "option_neutrality",
    "decay_extremes",
    "reduction",
    "state_value",
    "state_merge",
    "state_linearity",
    "shard_law",
    "gradient_identities",
    "gradient_causality",
    "time_reversal_adjoint",
    "finite_differences",
    # Finer bounds, for what the proved ones are too wide to see.
    "value_on_random_reals",
    "gradient_on_random_reals",
    # Memory and side effects, which few mutants touch.
    "strides",
    "broadcast_inputs",
    "nothing_leaks_from_padding",
    "inputs_untouched",
    "freshness",
    "determinism",
    "current_stream",
    "graph_replay",
    "batch_invariance",
    "split_invariance",
    "leaves_no_trace",
    "bad_input",
    # Long sequences and threads take the longest for each example.
    "long_sequences",
    "state_drift",
    "long_prefill",
    "very_long_sequences",
    "thread_safety",
)

# The laws of the profile "smoke": the deadliest of outputs, states and gradients.
SMOKE = ORDER[: ORDER.index("short_sequences")]

_registered = {name: CHECKS.pop(name) for name in ORDER}
assert not CHECKS, f"no place in ORDER: {', '.join(CHECKS)}"
CHECKS.update(_registered)

# The laws of launches: those that an interpreted kernel can be judged by, and those of
# a kernel on a CUDA device.
INTERPRETED, ON_CUDA = (
    tuple(name for name, check in CHECKS.items() if mode in check.shown_by)
    for mode in ("interpreted", "cuda")
)
OF_LAUNCHES = tuple(name for name, check in CHECKS.items() if check.shown_by)

del calls, configurations, extremes, gates, gradients, interpreted, invariance, launches
del lengths, memory, order, packed, scaling, states, values

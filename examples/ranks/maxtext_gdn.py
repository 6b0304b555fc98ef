"""MaxText's context-parallel gated delta rule, from its wheel, without its packages.

MaxText needs Python 3.12, Flax and more; the kernel needs JAX. So two of its functions
are executed from the source of its wheel, which is unpacked but not installed:

    python -m pip download --no-deps --python-version 3.12 maxtext==0.2.5
    python -m zipfile -e maxtext-0.2.5-py3-none-any.whl maxtext-wheel
    export MAXTEXT=maxtext-wheel
    linkern verify examples/ranks/maxtext_gdn.py:gated_delta_rule \
        --op gated_delta_rule --framework jax --ranks 2,4 --profile smoke \
        --dtype float32 --declare layout=bthd
"""

import ast
import os
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp

WHEEL = Path(os.environ["MAXTEXT"]) / "maxtext"
CHUNK = int(os.environ.get("CHUNK", "16"))


def gated_delta_rule(
    query, key, value, log_decay, beta, initial_state=None, axis_name="ranks"
):
    """Apply `jax_chunk_gated_delta_rule` to the shard of this rank, in float32."""
    heads = key.shape[0], key.shape[2], key.shape[3], value.shape[3]
    state = jnp.zeros(heads) if initial_state is None else initial_state
    return kernel(
        *(query, key, value, log_decay, beta),
        chunk_size=CHUNK,
        initial_state=state,
        cp_axis=axis_name,
        compute_dtype=jnp.float32,
    )


def executed(path, names=None):
    """Return what a file defines: everything, or the functions of these names."""
    tree = ast.parse((WHEEL / path).read_text(encoding="utf-8"))
    if names is not None:
        tree.body = [x for x in tree.body if getattr(x, "name", "") in names]
    defined = {"jax": jax, "jnp": jnp, "lax": jax.lax, "Array": jax.Array}
    defined["gdn_cp"] = names and executed("kernels/attention/gdn_cp.py")
    exec(compile(tree, path, "exec"), defined)
    return SimpleNamespace(**defined)


kernel = executed(
    "models/qwen3.py", {"jax_chunk_gated_delta_rule"}
).jax_chunk_gated_delta_rule

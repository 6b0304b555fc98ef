"""A kernel as a program: it reads one safetensors file and writes another.

Any language will do; this one is NumPy. Judge it:

    linkern verify --command "python examples/command_kernel.py {inputs} {outputs}" \
        --op linear_attention --profile quick

The file it reads holds `query`, `key` and `value`, each (batch, heads, time, dim), and
the state that it wrote for the tokens before, if there were any.
"""

import sys

import numpy as np
from safetensors.numpy import load_file, save_file


def attention(query, key, value, memory, normalizer):
    """Causal linear attention with elu(x) + 1, going on from a state."""
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key))
    scores = np.tril(q @ k.swapaxes(-1, -2))
    numerator = q @ memory + scores @ value
    denominator = q @ normalizer[..., None] + scores.sum(-1, keepdims=True)
    memory = memory + k.swapaxes(-1, -2) @ value
    return numerator / denominator, memory, normalizer + k.sum(-2)


def main(inputs, outputs):
    given = load_file(inputs)
    dtype = given["query"].dtype
    # Half precision is accumulated in float32, and so is its state.
    wide = {name: x.astype(np.result_type(x, np.float32)) for name, x in given.items()}
    *lead, _, key_dim = wide["key"].shape
    empty = np.zeros((*lead, key_dim, wide["value"].shape[-1]), wide["key"].dtype)
    memory = wide.get("initial_memory", empty)
    normalizer = wide.get("initial_normalizer", empty.sum(-1))
    output, memory, normalizer = attention(
        wide["query"], wide["key"], wide["value"], memory, normalizer
    )
    written = {
        "output": output.astype(dtype),
        "memory": memory,
        "normalizer": normalizer,
    }
    save_file(written, outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])

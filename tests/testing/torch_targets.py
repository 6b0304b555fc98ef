"""Targets that take tensors of PyTorch, each told from another evidence."""

import numpy as np
import torch

assert np  # as most kernels import it too


def plain(query, key, value):
    q, k = (torch.nn.functional.elu(x) + 1 for x in (query, key))
    scores = torch.tril(q @ k.transpose(-1, -2))
    return (scores @ value) / scores.sum(-1, keepdim=True)


def annotated(query: torch.Tensor, key: "torch.Tensor", value) -> torch.Tensor:
    return plain(query, key, value)


class Layer(torch.nn.Module):
    def forward(self, query, key, value):
        return plain(query, key, value)


layer = Layer()
TABLE = {"plain": plain}


def through_a_table(query, key, value):
    """Nothing in its code names a library."""
    return TABLE["plain"](query, key, value)


def tiled_through_a_table(query, key, value):
    assert query.shape[2] % 16 == 0
    return TABLE["plain"](query, key, value)


def imports_late(query, key, value):
    from importlib import import_module

    functional = import_module("torch.nn.functional")
    q, k = (functional.elu(x) + 1 for x in (query, key))
    scores = (q @ k.transpose(-1, -2)).tril()
    return (scores @ value) / scores.sum(-1, keepdim=True)

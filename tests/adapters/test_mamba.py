"""mamba-ssm's kernels are imported without their packages, and called as retention."""

import sys

import numpy as np

import linkern
from linkern.adapters import mamba
from linkern.adapters.calling import published

KERNELS = '''
import torch

def mamba_chunk_scan_combined(
    x, dt, A, B, C, chunk_size, initial_states=None, return_final_states=False
):
    """The recurrence itself, of (batch, tokens, heads, dim)."""
    S = x.new_zeros(*x.shape[::2], x.shape[3], B.shape[3])
    S = S if initial_states is None else initial_states
    rows = []
    for t in range(x.shape[1]):
        step = dt[:, t, :, None, None]
        S = torch.exp(step * A[:, None, None]) * S
        S = S + step * x[:, t, ..., None] * B[:, t, :, None]
        rows.append((S * C[:, t, :, None]).sum(-1))
    return torch.stack(rows, 1), S
'''


def test_ssd_is_retention(tmp_path, monkeypatch, torch):
    folder = tmp_path / "mamba_ssm" / "ops" / "triton"
    folder.mkdir(parents=True)
    (tmp_path / "mamba_ssm" / "utils").mkdir()
    for place in (tmp_path / "mamba_ssm", folder.parent, folder.parents[1] / "utils"):
        (place / "__init__.py").write_text("raise ImportError('no CUDA extension')")
    (folder / "__init__.py").write_text("")
    (folder / "ssd_combined.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("mamba_ssm")]:
        monkeypatch.delitem(sys.modules, name)
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 2, 3, 9, 4))
    v, first = rng.standard_normal((2, 3, 9, 5)), rng.standard_normal((2, 3, 4, 5))
    try:
        output, memory = mamba.ssd(*map(torch.asarray, (q, k, v, first)))
    finally:
        mamba._combined.cache_clear()
        published.cache_clear()
        for name in [name for name in sys.modules if name.startswith("mamba_ssm")]:
            del sys.modules[name]
    expected = linkern.retention(q, k, v, scale=1.0, initial_state=first)
    np.testing.assert_allclose(output, expected.output, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(memory, expected.state.memory, rtol=1e-5, atol=1e-5)

"""mamba-ssm's kernels are imported without their packages, and called by operator."""

import sys

import numpy as np
import pytest

import linkern
from linkern.adapters import mamba
from linkern.adapters.calling import published

COMBINED = '''
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
SISO = '''
import torch

class _Mamba3Function:
    @staticmethod
    def apply(
        Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D, Z,
        angle, S, k, v, cu_seqlens, chunk_size, return_final_states,
    ):
        """The recurrence itself, of (batch, tokens, heads, dim)."""
        assert D is None and Z is None and cu_seqlens is None and return_final_states
        assert all(x.is_contiguous() for x in (Q, K, V, Angles))
        Q, K = Q + Q_bias, K + K_bias
        if S is None:
            S = V.new_zeros(V.shape[0], V.shape[2], V.shape[3], K.shape[3])
            angle, k, v = torch.zeros_like(Angles[:, 0]), 0 * K[:, 0], 0 * V[:, 0]
        rows = []
        for t in range(V.shape[1]):
            step, share = DT[:, :, t, None], torch.sigmoid(Trap[:, :, t, None])
            angle = angle + torch.pi * torch.tanh(Angles[:, t]) * step
            decay = torch.exp(ADT[:, :, t, None])
            before = (1 - share) * step * v
            S = decay[..., None] * (S + before[..., None] * k[:, :, None])
            k, v = turned(K[:, t], angle), V[:, t]
            S = S + (share * step * v)[..., None] * k[:, :, None]
            rows.append((S * turned(Q[:, t], angle)[:, :, None]).sum(-1))
        return torch.stack(rows, 1), angle % (2 * torch.pi), S, k, v


def turned(x, angle):
    x, turns = x.clone(), 2 * angle.shape[-1]
    a, b = x[..., 0:turns:2].clone(), x[..., 1:turns:2].clone()
    x[..., 0:turns:2] = a * angle.cos() - b * angle.sin()
    x[..., 1:turns:2] = a * angle.sin() + b * angle.cos()
    return x
'''


@pytest.fixture
def kernels(tmp_path, monkeypatch, torch):
    """Kernels with the names of mamba-ssm's, in packages that cannot be imported."""
    folder = tmp_path / "mamba_ssm" / "ops" / "triton"
    (folder / "mamba3").mkdir(parents=True)
    (tmp_path / "mamba_ssm" / "utils").mkdir()
    for place in (tmp_path / "mamba_ssm", folder.parent, folder.parents[1] / "utils"):
        (place / "__init__.py").write_text("raise ImportError('no CUDA extension')")
    for place in (folder, folder / "mamba3"):
        (place / "__init__.py").write_text("")
    (folder / "ssd_combined.py").write_text(COMBINED)
    (folder / "mamba3" / "mamba3_siso_combined.py").write_text(SISO)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("mamba_ssm")]:
        monkeypatch.delitem(sys.modules, name)
    yield
    mamba._kernel.cache_clear()
    published.cache_clear()
    for name in [name for name in sys.modules if name.startswith("mamba_ssm")]:
        del sys.modules[name]


@pytest.mark.usefixtures("kernels")
def test_ssd_is_retention(torch):
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 2, 3, 9, 4))
    v, first = rng.standard_normal((2, 3, 9, 5)), rng.standard_normal((2, 3, 4, 5))
    output, memory = mamba.ssd(*map(torch.asarray, (q, k, v, first)))
    expected = linkern.retention(q, k, v, scale=1.0, initial_state=first)
    np.testing.assert_allclose(output, expected.output, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(memory, expected.state.memory, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("kernels")
def test_mamba3_goes_on_from_its_state(torch):
    rng = np.random.default_rng(1)
    draws = {"query": 6, "key": 6, "value": 5, "angle": 2}
    inputs = {name: rng.standard_normal((2, 3, 9, n)) for name, n in draws.items()}
    inputs["dt"] = rng.uniform(0, 1, (2, 3, 9))
    inputs["log_decay"] = -rng.uniform(0, 1, (2, 3, 9))
    inputs["trapezoid"] = rng.uniform(0.1, 0.9, (2, 3, 9))
    expected = linkern.mamba3(**inputs)
    halves = (
        [torch.asarray(x[:, :, span], dtype=torch.float32) for x in inputs.values()]
        for span in (slice(4), slice(4, 9))
    )
    state, outputs = None, []
    for half in halves:
        output, state = mamba.mamba3(*half, state)
        outputs.append(output)
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(torch.cat(outputs, 2), expected.output, **close)
    np.testing.assert_allclose(state[0], expected.state.memory, **close)
    np.testing.assert_allclose(state[1], expected.state.normalizer, **close)

"""The evaluator inside FlashInfer-Bench, on solutions that are right and wrong."""

from itertools import pairwise

import pytest

from tests.conftest import need_for_module

need_for_module("torch", "flashinfer_bench")

import torch
from flashinfer_bench import BenchmarkConfig, Definition, EvaluationStatus
from flashinfer_bench.bench.evaluators import resolve_evaluator
from flashinfer_bench.compile import BuilderRegistry, Runnable
from flashinfer_bench.compile.runnable import RunnableMetadata

from linkern.testing.errors import UsageError
from linkern.testing.integrations import flashinfer_bench as integration

pytestmark = pytest.mark.library
H, HV, K = 2, 4, 8


def gdn(stage="prefill"):
    """Return a definition with the names and shapes of the published ones, small."""
    lead = ["total_seq_len"] if stage == "prefill" else ["batch_size", "seq_len"]
    rows = "num_seqs" if stage == "prefill" else "batch_size"
    state = [rows, "num_v_heads", "head_size", "head_size"]
    inputs = {
        "q": [*lead, "num_q_heads", "head_size"],
        "k": [*lead, "num_q_heads", "head_size"],
        "v": [*lead, "num_v_heads", "head_size"],
        "state": state,
        "A_log": ["num_v_heads"],
        "a": [*lead, "num_v_heads"],
        "dt_bias": ["num_v_heads"],
        "b": [*lead, "num_v_heads"],
        **({"cu_seqlens": ["len_cu_seqlens"]} if stage == "prefill" else {}),
        "scale": None,
    }
    wide = {"state", "A_log", "dt_bias", "scale"}
    dtypes = {n: "float32" if n in wide else "bfloat16" for n in inputs}
    dtypes["cu_seqlens"] = "int64"
    names = {a for shape in inputs.values() for a in shape or ()}
    sizes = {"num_q_heads": H, "num_v_heads": HV, "head_size": K}
    return Definition(
        name=f"gdn_{stage}_qk{H}_v{HV}_d{K}_k_last",
        op_type="gdn",
        axes={
            a: {"type": "const", "value": sizes[a]} if a in sizes else {"type": "var"}
            for a in names
        },
        inputs={n: {"shape": s, "dtype": dtypes[n]} for n, s in inputs.items()},
        outputs={
            "output": {
                "shape": [*lead, "num_v_heads", "head_size"],
                "dtype": "bfloat16",
            },
            "new_state": {"shape": state, "dtype": "float32"},
        },
        reference="def run(*inputs):\n    raise NotImplementedError\n",
    )


def workload(stage="prefill", seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=generator).to(dtype)

    lead = (70,) if stage == "prefill" else (3, 1)
    rows = 3
    key = torch.nn.functional.normalize(
        normal(*lead, H, K, dtype=torch.float32), dim=-1
    )
    inputs = [
        normal(*lead, H, K),
        key.to(torch.bfloat16),
        normal(*lead, HV, K),
        normal(rows, HV, K, K, dtype=torch.float32),
        normal(HV, dtype=torch.float32),
        normal(*lead, HV),
        normal(HV, dtype=torch.float32),
        normal(*lead, HV),
    ]
    if stage == "prefill":
        inputs.append(torch.tensor([0, 33, 33, 70]))
    return [*inputs, K**-0.5]


def correct(q, k, v, state, a_log, a, dt_bias, b, *rest):
    """Gated delta rule, token by token in float32, as the definition has it."""
    *packed, scale = rest
    if not packed:
        edges = list(range(len(q) + 1))
        q, k, v, a, b = (x[:, 0] for x in (q, k, v, a, b))
    else:
        edges = packed[0].tolist()
    gate = torch.exp(-a_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias))
    beta = torch.sigmoid(b.float())
    q, k = (x.float().repeat_interleave(HV // H, dim=1) for x in (q, k))
    outputs, states = [], []
    for i, (first, last) in enumerate(pairwise(edges)):
        memory = state[i].swapaxes(-1, -2).clone()
        for t in range(first, last):
            memory = gate[t][:, None, None] * memory
            seen = (k[t][:, None] @ memory)[:, 0]
            written = beta[t][:, None] * (v[t].float() - seen)
            memory = memory + k[t][:, :, None] * written[:, None]
            outputs.append(scale * (q[t][:, None] @ memory)[:, 0])
        states.append(memory.swapaxes(-1, -2))
    output = torch.stack(outputs).to(torch.bfloat16)
    return (output if packed else output[:, None]), torch.stack(states)


def history_cut(q, k, v, state, *rest):
    return correct(q, k, v, torch.zeros_like(state), *rest)


def narrow_state(*inputs):
    output, state = correct(*inputs)
    return output, state.to(torch.bfloat16).float()


def zeros(*inputs):
    return tuple(torch.zeros_like(x) for x in correct(*inputs))


def transposed_state(*inputs):
    output, state = correct(*inputs)
    return output, state.swapaxes(-1, -2).contiguous()


def one_head_short(*inputs):
    output, state = correct(*inputs)
    return output[..., 1:, :].contiguous(), state


def wide_output(*inputs):
    output, state = correct(*inputs)
    return output.float(), state


def raises(*inputs):
    msg = "no kernel image"
    raise RuntimeError(msg)


class Remembers:
    """Return the first result for every call of the same tensors."""

    def __init__(self):
        self.results = {}

    def __call__(self, *inputs):
        where = inputs[2].data_ptr()
        if where not in self.results:
            self.results[where] = correct(*inputs)
        return self.results[where]


def evaluate(solution, definition=None, inputs=None):
    definition = definition or gdn()
    metadata = RunnableMetadata(
        build_type="python",
        definition_name=definition.name,
        solution_name="solution",
        destination_passing_style=False,
    )
    return integration.LinkernEvaluator.check_correctness(
        definition=definition,
        sol_runnable=Runnable(solution, metadata),
        inputs=[inputs or workload()],
        ref_outputs=[],
        cfg=BenchmarkConfig(),
        log_path="",
        device="cpu",
    )


@pytest.mark.parametrize("stage", ["prefill", "decode"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_correct_solution_passes(stage, seed):
    correctness, evaluation = evaluate(correct, gdn(stage), workload(stage, seed))
    assert evaluation is None
    assert 0 < correctness.extra["worst_error_over_bound"] <= 1


@pytest.mark.parametrize(
    "solution",
    [history_cut, narrow_state, zeros, transposed_state, Remembers()],
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
def test_a_wrong_solution_does_not(solution):
    correctness, evaluation = evaluate(solution)
    assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
    assert correctness.extra["worst_error_over_bound"] > 1


@pytest.mark.parametrize(
    ("solution", "status"),
    [
        (one_head_short, EvaluationStatus.INCORRECT_SHAPE),
        (wide_output, EvaluationStatus.INCORRECT_DTYPE),
        (raises, EvaluationStatus.RUNTIME_ERROR),
    ],
)
def test_a_misfit_gets_the_status_of_the_benchmark(solution, status):
    assert evaluate(solution)[1].status is status


def test_the_benchmark_chooses_the_evaluator_once_registered(monkeypatch):
    from flashinfer_bench.bench.evaluators import registry

    monkeypatch.setattr(registry, "_EVALUATORS", list(registry._EVALUATORS))
    assert resolve_evaluator(gdn()) is not integration.LinkernEvaluator
    integration.register()
    integration.register()
    assert resolve_evaluator(gdn()) is integration.LinkernEvaluator


@pytest.mark.parametrize("op", ["gated_delta_rule", "gla", "retention", "rwkv6"])
def test_a_definition_of_ours_has_a_reference_that_passes(op):
    definition = integration.definition(op, heads=2, k=8, v=8, dtype="float32")
    again = Definition.model_validate_json(definition.model_dump_json())
    assert integration.LinkernEvaluator.can_evaluate(again)
    generator = torch.Generator().manual_seed(0)
    inputs = []
    for name, spec in definition.inputs.items():
        shape = [{"b": 2, "t": 20, "h": 2, "g": 2}.get(a, 8) for a in spec.shape]
        x = torch.randn(shape, generator=generator)
        scale = {"log_decay": lambda x: -abs(x), "beta": torch.sigmoid}.get(name, abs)
        inputs.append(scale(x) / (4 if name == "key" else 1))
    reference = BuilderRegistry.get_instance().build_reference(again)
    correctness, evaluation = evaluate(reference, again, inputs)
    assert evaluation is None, correctness


def test_an_unknown_operator_has_no_definition():
    with pytest.raises(UsageError, match="unknown operator"):
        integration.definition("gatd_delta_rule")

"""Every public name is listed, exists, is documented, and nothing else is public."""

import importlib
import inspect
from pathlib import Path

import pytest

import linkern
from tests.conftest import modules

MODULES = [
    "linkern",
    *(name for name in modules() if not name.startswith("linkern._")),
]

OPERATORS = {
    "abc",
    "based",
    "comba",
    "delta_rule",
    "dplr",
    "gated_delta_product",
    "gated_delta_rule",
    "gdn2",
    "gla",
    "gsa",
    "hgrn",
    "iplr",
    "kda",
    "lightning_attention",
    "linear_attention",
    "linear_attention_step",
    "log_linear_attention",
    "mamba3",
    "mamba3_mimo",
    "mesa",
    "mlstm",
    "momentum_delta_rule",
    "oja",
    "power_retention",
    "preconditioned_gated_delta_rule",
    "preconditioned_kda",
    "rebased",
    "retention",
    "rwkv4",
    "rwkv6",
    "rwkv7",
    "selective_scan",
    "simple_gla",
    "ssd",
}
ANCESTORS = {
    "kernel_attention",
    "lsh_attention",
    "softmax_attention",
    "sparse_attention",
}
PUBLIC = (
    OPERATORS
    | ANCESTORS
    | {
        "AttentionResult",
        "Decoder",
        "SpanMap",
        "State",
        "__version__",
        "approximation_curve",
        "approximation_error",
        "attention_weights",
        "cost",
        "elu_plus_one",
        "exp",
        "feature_maps",
        "identity",
        "relu",
        "similarity",
        "span_map",
        "step",
        "transformer",
        "vjp",
    }
)


def test_the_public_names_are_these():
    assert set(linkern.__all__) == PUBLIC
    assert linkern.__all__ == sorted(linkern.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_all_is_true(name):
    module = importlib.import_module(name)
    if not hasattr(module, "__all__"):
        # Packages of nothing but modules, and programs that stand alone.
        only_modules = hasattr(module, "__path__") and all(
            inspect.ismodule(value)
            for attribute, value in vars(module).items()
            if not attribute.startswith(("__", "@"))
        )
        alone = "linkern.testing.runner.scripts"
        assert only_modules or name.startswith(alone)
        return
    for public in module.__all__:
        assert hasattr(module, public), public
    # A function or class that came from a module below is there to be used.
    own = {
        attribute
        for attribute, value in vars(module).items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__.startswith(name)
        and not attribute.startswith("_")
    }
    if name in ("linkern.feature_maps", "linkern.attention"):
        assert own == set(module.__all__)
    if name == "linkern.operators":
        assert set(module.__all__) == OPERATORS


@pytest.mark.parametrize("name", sorted(OPERATORS | ANCESTORS))
def test_every_operator_documents_shapes_errors_source_and_an_example(name):
    documentation = inspect.getdoc(getattr(linkern, name))
    for section in ("Parameters", "Returns", "Raises", "Notes", "Examples"):
        assert f"\n{section}\n---" in documentation
    assert "et al." in documentation or "Source: " in documentation


@pytest.mark.parametrize("name", sorted(OPERATORS - {"linear_attention_step"}))
def test_every_operator_says_where_time_is(name):
    documentation = inspect.getdoc(getattr(linkern, name))
    assert documentation.count("Time is the last axis but one") == 1
    assert "``x.swapaxes(-3, -2)``" in documentation


def test_the_package_is_typed():
    assert (Path(linkern.__file__).parent / "py.typed").exists()

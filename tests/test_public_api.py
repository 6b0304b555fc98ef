"""Every public name is listed, exists, is documented, and nothing else is public."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import linkern

MODULES = [
    "linkern",
    *(
        module.name
        for module in pkgutil.walk_packages(linkern.__path__, "linkern.")
        if not module.name.startswith("linkern._")
    ),
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
    "mesa",
    "oja",
    "rebased",
    "retention",
    "rwkv4",
    "rwkv6",
    "rwkv7",
    "simple_gla",
    "ssd",
}
PUBLIC = OPERATORS | {
    "AttentionResult",
    "SpanMap",
    "State",
    "__version__",
    "elu_plus_one",
    "exp",
    "feature_maps",
    "identity",
    "relu",
    "span_map",
    "step",
    "vjp",
}


def test_the_public_names_are_these():
    assert set(linkern.__all__) == PUBLIC
    assert linkern.__all__ == sorted(linkern.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_all_is_true(name):
    module = importlib.import_module(name)
    if not hasattr(module, "__all__"):
        # Packages of nothing but modules, and programs that stand alone.
        packages = ("linkern.adapters", "linkern.testing.deviations")
        assert name in packages or name.startswith("linkern.testing.scripts")
        return
    for public in module.__all__:
        assert hasattr(module, public), public
    functions = {
        attribute
        for attribute, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == name
        and not attribute.startswith("_")
    }
    if name == "linkern.feature_maps":
        assert functions == set(module.__all__)
    if name == "linkern.operators":
        assert set(module.__all__) == OPERATORS


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_operator_documents_shapes_errors_source_and_an_example(name):
    documentation = inspect.getdoc(getattr(linkern, name))
    for section in ("Parameters", "Returns", "Raises", "Notes", "Examples"):
        assert f"\n{section}\n---" in documentation
    assert "et al." in documentation or "Source: the " in documentation


def test_the_package_is_typed():
    assert (Path(linkern.__file__).parent / "py.typed").exists()

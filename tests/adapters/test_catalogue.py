"""What the catalogue says is well formed, and true of the packages that are here."""

import importlib
import inspect
from importlib.util import find_spec

import pytest

from linkern.adapters import catalogue, fla, fla_triton, transformers
from linkern.adapters.entry import Entry
from linkern.testing import CHECKS, OPERATORS, UsageError
from linkern.testing.api import plan_of, reports
from linkern.testing.spec.contract import Contract
from linkern.testing.target.loading import load, resolve
from tests.marks import slow_unless

OTHERS = {one.name for one in OPERATORS.values() if not one.feature_map}
ENTRIES = (*catalogue.OWN, *catalogue.PUBLISHED)


def named(entry):
    return f"{entry.op}-{entry.target.rpartition(':')[2]}"


def verdict(entry, *checks):
    expected = {k: v for k, v in entry.expect_failure.items() if k in checks}
    plan = plan_of(
        entry.target,
        op=entry.op,
        contract=dict(entry.declare),
        framework=entry.framework,
        dtypes=entry.dtypes[:1],
        checks=checks,
        expect_failure=expected,
        options=dict(entry.options),
        profile="quick",
        diagnose=False,
        interpret=entry.interpret,
        shrink=not entry.interpret,
    )
    *_, (_, report) = reports(plan)
    return report.exit_code


@pytest.mark.parametrize("entry", catalogue.PUBLISHED, ids=named)
def test_entries_say_what_the_referee_understands(entry):
    contract = Contract.from_mapping(entry.declare)
    contract.require_of(OPERATORS[entry.op])
    assert set(entry.expect_failure) <= set(CHECKS)
    assert all(entry.expect_failure.values())
    assert set(entry.dtypes) <= {"float32", "float64", "bfloat16"}
    assert {*entry.checks, *entry.require} <= set(CHECKS)
    if entry.checks:
        assert {*entry.require, *entry.expect_failure} <= {*entry.checks}
    assert entry.interpret == bool(entry.seconds and entry.require)


def test_entries_are_told_apart():
    said = [
        (e.target, e.op, e.framework, str(e.options), str(e.declare), e.checks)
        for e in ENTRIES
    ]
    assert len(set(said)) == len(said)


def test_every_operator_of_ours_is_judged_in_every_form():
    forms = {}
    for one in catalogue.OWN:
        key = (one.package, one.op)
        forms.setdefault(key, []).append(one.options.get("form", "auto"))
    for (library, op), found in forms.items():
        every = library == "numpy" or op not in OTHERS
        assert found == ["auto", "recurrent", "parallel"][: 3 if every else 1]
    assert {op for library, op in forms if library == "numpy"} == {
        *OTHERS,
        "linear_attention",
        "linear_attention_noncausal",
    }
    for library in ("array_api_strict", "torch"):
        assert len([op for lib, op in forms if lib == library and op in OTHERS]) == 12


def test_our_own_targets_can_be_called_as_the_entries_say():
    for one in catalogue.OWN:
        if one.package == "numpy":
            found = resolve(one.target)
            loaded = load(found, one.target, options=one.options, op=one.op)
            assert loaded.interface.takes_state
            assert set(one.options) <= loaded.interface.keywords


@pytest.mark.parametrize(
    "op",
    slow_unless(
        lambda x: x == "hgrn", ["hgrn", "gated_delta_product", "log_linear_attention"]
    ),
)
def test_our_own_entries_hold(op):
    for one in catalogue.OWN:
        if one.package == "numpy" and one.op == op:
            assert verdict(one, "value_on_integers") == 0, named(one)


def test_every_adapter_is_judged():
    targets = {one.target for one in catalogue.PUBLISHED}
    for module in (fla, fla_triton, transformers):
        for name in module.__all__:
            function = getattr(module, name)
            assert inspect.isfunction(function)
            assert f"{module.__name__}:{name}" in targets, name


def test_an_adapter_names_what_it_stands_for():
    for one in catalogue.PUBLISHED:
        if one.target.startswith(("linkern.adapters.fla", "linkern.adapters.trans")):
            assert one.name.split(".")[0] == one.package
            assert one.name != one.target


def test_judged_lists_the_functions_of_an_operator_once():
    for op in OPERATORS:
        names = catalogue.judged(op)
        assert len(set(names)) == len(names)
        assert all(":" in name for name in names)
    kda = catalogue.judged("kda")
    assert "fla.ops.kda.naive:naive_chunk_kda" in kda
    assert any(name.startswith("transformers.models.kimi_linear") for name in kda)
    assert catalogue.judged("ssd") == catalogue.judged("simple_gla") != ()
    assert all("gated_oja_rule" in name for name in catalogue.judged("oja"))


def test_unknown_operators_are_refused():
    for ask in (catalogue.judged, catalogue.installed):
        with pytest.raises(UsageError, match='did you mean "retention"'):
            ask("retentoin")


def test_installed_leaves_out_what_is_not_here(monkeypatch):
    absent = Entry("no_such_package_anywhere", "a:b", "kda")
    monkeypatch.setattr(catalogue, "PUBLISHED", (absent,))
    found = catalogue.installed("kda")
    assert absent not in found
    assert {one.op for one in found} == {"kda"}
    assert [one.framework for one in found].count("numpy") == 3


@pytest.mark.parametrize("op", ["hgrn", "gsa", "iplr", "comba", "rwkv4"])
def test_what_is_installed_is_as_the_catalogue_says(op):
    """A few, for each way in which states are translated; `linkern verify` has all."""
    found = [one for one in catalogue.PUBLISHED if one.op == op and not one.interpret]
    here = [one for one in found if find_spec(one.package) is not None]
    if not here:
        pytest.skip(f"no published {op} is installed")
    for one in here:
        assert verdict(one, "value_on_reals", "state_value") in (0, 3), named(one)


# Kernels of which a run of `linkern verify` takes a minute: a law each, and one right.
FEW = {
    "chunk_lightning_attn": "decoding",
    "hgrn_chunkwise": "gradient_of_state",
    "chunk_rwkv6": "gradient_value",
    "chunk_simple_gla": "value_on_integers",
    "fused_recurrent_simple_gla": "value_on_integers",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_interpreted_entries_fail_and_pass_as_the_catalogue_says(name, fla):
    law = FEW[name]
    one = next(
        one
        for one in catalogue.PUBLISHED
        if one.interpret
        and one.target.endswith(f":{name}")
        and (law in one.expect_failure) == (name != "fused_recurrent_simple_gla")
    )
    assert verdict(one, law) == 0


@pytest.mark.parametrize("there", [("fla",), ("fla", "triton")])
def test_an_interpreted_entry_needs_triton(there, monkeypatch):
    one = next(one for one in catalogue.PUBLISHED if one.interpret)
    monkeypatch.setattr(catalogue, "PUBLISHED", (one,))
    monkeypatch.setattr(catalogue, "find_spec", lambda name: name in there or None)
    assert catalogue.installed(one.op) == [one] * ("triton" in there)


def test_minimax_is_retention_with_the_slopes_of_alibi(torch):
    pytest.importorskip("transformers")
    import linkern

    heads, layer, layers = 4, 2, 8
    factor = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    slopes = [-(2.0 ** (-8 * (h + 1) / heads)) * factor for h in range(heads)]
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, heads, 40, 4, generator=generator)
    module = importlib.import_module("linkern.adapters.minimax")
    output = module.minimax(q, k, v, layer=layer, layers=layers)[0]
    due = linkern.retention(
        *(x.double() for x in (q, k, v)),
        log_decay=torch.tensor(slopes, dtype=torch.float64),
        scale=1.0,
    ).output
    torch.testing.assert_close(
        output.double(), due, rtol=0, atol=2e-6 * float(due.abs().max())
    )

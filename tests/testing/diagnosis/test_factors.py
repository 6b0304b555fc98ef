"""Formulas are recovered from planted ones, and never read into noise."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from linkern.testing.diagnosis.factors.explain import explain, numbers
from linkern.testing.diagnosis.factors.factor import holds
from linkern.testing.diagnosis.factors.quantities import signed_quantities
from linkern.testing.diagnosis.factors.spelling import spell, text_of
from linkern.testing.influence.maps import Flags, InfluenceMap, Real
from linkern.testing.influence.readings import output_map
from linkern.testing.influence.scenes import product_scene
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.problems.context import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig
from tests.marks import every
from tests.testing.diagnosis.of_oracle import map_of, product

CHUNK = 16
LENGTHS = (70, 45)


@cache
def _maps(
    name: str, seed: int = 0, lengths: tuple[int, ...] = LENGTHS
) -> list[InfluenceMap]:
    """Return the maps of a correct kernel: all that is wrong is planted."""
    kernel = CORRECT[name]
    contract = Contract(**kernel.contract)
    config = TargetConfig("test", op=kernel.op, scale=contract.scale)
    target = InProcess(config, kernel.kernel)
    scope = Scope(OPERATORS[kernel.op], contract, "float32", interface=target.interface)
    rng = np.random.default_rng(seed)
    sizes = [(1, 2, n, 4 + i, n) for i, n in enumerate(lengths)]
    return [output_map(target, product_scene(scope, size, rng)) for size in sizes]


def _with(one: InfluenceMap, measured: Real) -> InfluenceMap:
    return replace(one, measured=measured)


def _inside(one: InfluenceMap) -> Flags:
    rows, sources = (one.coordinates[name] for name in ("row", "source"))
    return (sources >= 0) & (sources <= rows)


def _across(one: InfluenceMap) -> Flags:
    rows, sources = (one.coordinates[name] for name in ("row", "source"))
    return _inside(one) & (rows // CHUNK > sources // CHUNK)


def _kernel(op: str) -> str:
    return next(name for name, kernel in CORRECT.items() if kernel.op == op)


PLANTED: dict[str, tuple[str, dict[str, float]]] = {
    "exp(-log_decay[first of the chunk])": (
        "kda",
        {"log_decay[first of the chunk]": -1},
    ),
    "exp(log_decay[row] - log_decay[source])": (
        "gla",
        {"log_decay[row]": 1, "log_decay[source]": -1},
    ),
    "1 / beta[source]": ("kda", {"beta[source]": -1}),
    "beta[source]^0.5": ("delta_rule", {"beta[source]": 0.5}),
    "scale": ("simple_gla", {"scale": 1}),
    "beta[row] / beta[source]": ("delta_rule", {"beta[row]": 1, "beta[source]": -1}),
    "exp(-sum of log_decay over the chunk up to the row)": (
        "gla",
        {"sum of log_decay over the chunk up to the row": -1},
    ),
    "exp(sum of log_decay over the chunk before)": (
        "simple_gla",
        {"sum of log_decay over the chunk before": 1},
    ),
    "1 / product of (1 - beta key^2) over (source, row]": (
        "kda",
        {"product of (1 - beta key^2) over (source, row]": -1},
    ),
    "(row + 1) / (row + 2)": ("linear_attention", {"(row + 1)": 1, "(row + 2)": -1}),
    "exp(-0.5 * (row - source))": ("gated_delta_rule", {"e^(row - source)": -0.5}),
    "exp(-sum of log_decay over (source, row])": (
        "gsa",
        {"sum of log_decay over (source, row]": -1},
    ),
    "((exp(log decay) - 1) / log decay)[source]": (
        "selective_scan",
        {"((exp(log decay) - 1) / log decay)[source]": 1},
    ),
    "exp(-log_decay[source])": ("selective_scan", {"log_decay[source]": -1}),
    "(1 - exp(log decay))[source]": ("gla", {"(1 - exp(log decay))[source]": 1}),
    "level_scales[first of the chunk] / level_scales[row]": (
        "log_linear_attention",
        {"level_scales[first of the chunk]": 1, "level_scales[row]": -1},
    ),
    "query[row - 1] * exp(log_decay[row]) / query[row]": (
        "gla",
        {"query[row - 1]": 1, "query[row]": -1, "log_decay[row]": 1},
    ),
}


def _planted(one: InfluenceMap, powers: dict[str, float]) -> Real:
    table = signed_quantities(one, CHUNK)
    factor = np.ones(one.exact.shape)
    for name, x in powers.items():
        factor = factor * np.exp(x * table[name].log)
        factor = factor * table[name].sign ** (x % 2)
    return factor


@pytest.mark.parametrize("text", every(2, PLANTED, slow=0.5))
def test_a_planted_product_is_recovered(text: str) -> None:
    op, powers = PLANTED[text]
    maps = _maps(_kernel(op))
    factors = [_planted(one, powers) for one in maps]
    flags = [_across(x) & np.isfinite(y) for x, y in zip(maps, factors, strict=True)]
    changed = [
        _with(one, np.where(chosen, one.measured * factor, one.measured))
        for one, chosen, factor in zip(maps, flags, factors, strict=True)
    ]
    factor = explain(changed, flags, CHUNK)
    assert factor is not None
    assert factor.text == text
    # It holds on fresh inputs, and does not where nothing was planted.
    (fresh,) = _maps(_kernel(op), seed=1, lengths=(60,))
    chosen = _across(fresh) & np.isfinite(_planted(fresh, powers)) & ~fresh.silent
    planted = _with(fresh, fresh.measured * _planted(fresh, powers))
    assert holds(factor, planted, chosen)
    assert not holds(factor, fresh, chosen)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0.0),
        ("2", 2.0),
        ("-1", -1.0),
        ("1/2", 0.5),
        ("2/3", 2 / 3),
        ("0.93", 0.93),
    ],
)
def test_a_constant_is_named(text: str, number: float) -> None:
    maps = _maps(_kernel("simple_gla"))
    flags = [_inside(one) for one in maps]
    changed = [_with(one, number * one.measured) for one in maps]
    factor = explain(changed, flags, None)
    assert factor is not None
    assert factor.text == text


@pytest.mark.parametrize(
    ("op", "epsilon"),
    [("linear_attention", "0.03"), ("based", "0.03"), ("rebased", "1e-5")],
)
def test_a_constant_in_the_denominator_is_named(op: str, epsilon: str) -> None:
    maps = _maps(_kernel(op))
    changed = []
    for one in maps:
        below = np.exp(signed_quantities(one, None)["denominator"].log)
        changed.append(_with(one, one.measured * below / (below + float(epsilon))))
    wrong = [_inside(one) & one.wrong for one in changed]
    factor = explain(changed, wrong, None)
    assert factor is not None
    assert factor.text == f"denominator / (denominator + {epsilon})"


def test_a_constant_is_told_from_errors_of_a_few_roundings() -> None:
    rng = np.random.default_rng(3)
    changed = []
    for one in _maps(_kernel("simple_gla")):
        noise = 1 + 2.0**-9 * rng.uniform(-1, 1, one.exact.shape)
        coarse = replace(one, bound=abs(one.exact) / 27)
        changed.append(_with(coarse, 0.9 * noise * one.exact))
    factor = explain(changed, [_inside(one) for one in changed], None)
    assert factor is not None
    assert factor.text == "0.9"


def test_a_scale_by_default_is_named() -> None:
    constants = [
        {"scale": float(np.log(share / size**0.5)), "K": float(np.log(size))}
        for size, share in ((6, 0.5), (6, 3.0), (11, 3.0))
    ]
    levels = [-x["scale"] - x["K"] / 2 for x in constants]
    first, *_ = spell(levels, constants, 1e-6, natural=False)
    assert first.exponents == {"scale": -1.0, "K": -0.5}
    assert text_of("product", 1.0, first, {}) == "K^-0.5 / scale"


def test_a_power_of_two_is_none_of_a_size_that_is_one_by_chance() -> None:
    def first(number: Callable[[int], float], *sizes: int) -> str:
        constants = [{"padded K": float(np.log(size))} for size in sizes]
        levels = [float(np.log(number(size))) for size in sizes]
        named, *_ = spell(levels, constants, 1e-6, natural=False)
        return text_of("product", 1.0, named, {})

    assert first(lambda _: 32.0, 8) == "32"
    assert first(lambda _: 1 / 64, 8) == "1/64"
    assert first(lambda size: size**2 / 2, 8, 16) == "padded K^2 / 2"


def test_a_fraction_that_rounding_allows_by_chance_is_not_named() -> None:
    def named(number: float, spread: float) -> list[str]:
        return [x.text for x in spell([np.log(number)], [{}], spread, natural=False)]

    assert named(4 / 7, 1e-6)[0] == "4/7"
    assert "4/7" not in named(4 / 7, 0.02)
    assert named(1 / 2, 0.02)[0] == "1/2"


def test_a_clamp_is_told_from_a_constant() -> None:
    maps = _maps(_kernel("gla"))
    changed, flags = [], []
    for one in maps:
        decay = signed_quantities(one, None)["log_decay[row]"].log
        clamped = one.measured * np.exp(np.maximum(decay, -0.05) - decay)
        changed.append(_with(one, clamped))
        flags.append((decay < -0.05) & _inside(one) & (one.coordinates["row"] > 0))
    factor = explain(changed, flags, None)
    assert factor is not None
    assert factor.kind == "clamp from below"
    assert factor.text == "exp(-0.05 - log_decay[row])"
    assert all(holds(factor, one, ~one.silent) for one in changed)


def test_another_head_in_its_place_is_named() -> None:
    maps = _maps(_kernel("gated_delta_rule"))
    changed, flags = [], []
    for one in maps:
        places = {n: one.coordinates[n] for n in ("batch", "row", "value channel")}
        heads, key = one.coordinates["head"], np.zeros(len(one.exact), np.int64)
        for x in places.values():
            key = key * 1000 + x
        first = dict(zip(key[heads == 0], one.exact[heads == 0], strict=True))
        changed.append(_with(one, np.array([first[k] for k in key])))
        flags.append((heads == 1) & _inside(one))
    factor = explain(changed, flags, None)
    assert factor is not None
    assert factor.text == "that of head 0"


@pytest.mark.parametrize("op", ["linear_attention", "kda"])
@pytest.mark.parametrize("size", [2.0**-9, 0.3])
def test_nothing_is_said_of_noise(op: str, size: float) -> None:
    rng = np.random.default_rng(7)
    maps = _maps(_kernel(op))
    for noise in (
        lambda n: np.exp(size * rng.uniform(-1, 1, n)),
        lambda n: 1 + size * rng.random(n),
        lambda n: rng.choice([1 - size / 8, 1 + size], n),
    ):
        changed = [_with(one, one.exact * noise(len(one.exact))) for one in maps]
        flags = [one.wrong & _inside(one) for one in changed]
        assert explain(changed, flags, CHUNK) is None
        assert numbers(changed, flags).startswith(
            "unlike any product that was tried: ratios"
        )


def test_a_power_of_e_is_a_constant_of_operators_with_decays():
    planted = [_with(one, one.measured * np.exp(5.0)) for one in _maps("gla by chunks")]
    assert explain(planted, [_inside(one) for one in planted], None).text == "exp(5)"
    planted = [_with(one, one.measured * np.exp(5.0)) for one in _maps("every_key")]
    factor = explain(planted, [_inside(one) for one in planted], None)
    assert factor is None or "exp" not in factor.text


def test_numbers_are_not_compared_with_what_may_be_zero() -> None:
    """Ratios to what is rounding alone are as large as one likes."""
    (one, *_) = _maps("gla by chunks")
    rounding = np.where(np.arange(len(one.exact)) % 2, 1e-20, -1e-19)
    nothing = replace(one, exact=rounding, measured=np.full(len(rounding), 3.0))
    nothing = replace(nothing, bound=np.full(len(rounding), 1e-9))
    said = numbers([nothing], [np.ones(len(rounding), np.bool_)])
    assert said == "unlike any product that was tried: 3 to 3 in place of 0"


@pytest.mark.parametrize("decays", [True, False])
def test_the_second_write_of_a_trapezoid_is_told(decays: bool) -> None:
    """At the edges of chunks it is left out, or not decayed."""
    drawn = product("mamba3")
    problem = drawn.with_inputs(angle=0 * drawn.inputs["angle"])
    dt, share, log_decay = (
        np.array(problem.oracle_call.meant[name])
        for name in ("dt", "trapezoid", "log_decay")
    )
    own, again = dt * share, dt * (1 - share)
    edge = (np.arange(dt.shape[-1]) % CHUNK == 0) & (np.arange(dt.shape[-1]) > 0)
    again = np.where(edge, 0 * again if decays else again * np.exp(-log_decay), again)
    one = map_of(problem, dt=own + again, trapezoid=own / (own + again))
    factor = explain([one], [one.wrong], CHUNK)
    assert factor is not None
    once, more = "dt trapezoid", "the next token's dt (1 - trapezoid)"
    written = once if decays else f"({once} + {more} exp(-log decay))"
    assert factor.text == f"{written}[source] / ({once} + {more})[source]"

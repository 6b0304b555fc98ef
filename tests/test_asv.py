"""The benchmarks run: each once, on its smallest parameters, and on a bare library."""

import importlib
import importlib.util
import inspect
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "asv_bench" / "benchmarks"
# What benchmarks let one vary, and a test need not wait for.
SMALL = {
    "length": 256,
    "lengths": (256, 512),
    "rounds": 1,
    "checks": ["value_on_integers"],
}
SENTENCE = r"this commit has no linkern|is not installed here|finds no CUDA device"
KINDS = ("time_", "timeraw_", "peakmem_", "track_")


def package():
    """Import the folder as asv does: as a package of its own."""
    spec = importlib.util.spec_from_file_location(
        "benchmarks", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    sys.modules["benchmarks"] = importlib.util.module_from_spec(spec)
    return [
        importlib.import_module(f"benchmarks.{path.stem}")
        for path in sorted(FOLDER.glob("[a-z]*.py"))
    ]


MODULES = package()


def suites():
    """Yield every class of benchmarks."""
    for module in MODULES:
        for value in vars(module).values():
            if hasattr(value, "setup") and value.__module__ == module.__name__:
                yield value


def benchmarks():
    for suite in suites():
        for method in vars(suite):
            if method.startswith(KINDS):
                of = "-".join(map(str, smallest(suite)))
                name = f"{suite.__name__}.{method}-{of}".rstrip("-")
                yield pytest.param(suite, method, id=name)


def smallest(suite):
    """Return the first of each parameter."""
    params = getattr(suite, "params", [])
    nested = params and isinstance(params[0], list)
    return [p[0] for p in params] if nested else list(params[:1])


@pytest.mark.parametrize(("suite", "method"), list(benchmarks()))
def test_each_benchmark_runs(suite, method):
    parameters = smallest(suite)
    instance = suite()
    for name, value in SMALL.items():
        if hasattr(suite, name):
            setattr(instance, name, value)
    try:
        instance.setup(*parameters)
    except NotImplementedError as reason:  # how asv is told that something is missing
        pytest.skip(str(reason))
    measured = getattr(instance, method)(*parameters)
    if method.startswith("track_"):
        assert np.isfinite(measured)
        # The exponent of a time may be anything on a busy machine.
        assert measured > 0 or method == "track_exponent"
    if method.endswith("_over_bound"):
        assert measured <= 1


def test_there_is_one_of_each_kind():
    methods = [name for suite in suites() for name in vars(suite)]
    functions = [name for module in MODULES for name in vars(module)]
    for kind in KINDS:
        assert any(name.startswith(kind) for name in (*methods, *functions)), kind


def test_programs_for_importing_run():
    for module in MODULES:
        for name, function in vars(module).items():
            if name.startswith("timeraw_"):
                exec(textwrap.dedent(function()), {})


@pytest.mark.parametrize("suite", list(suites()), ids=lambda s: s.__name__)
def test_a_commit_without_a_name_skips_with_a_sentence(suite, monkeypatch):
    """An old commit: a library in which nothing is."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "linkern"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "linkern", ModuleType("linkern"))
    with pytest.raises(NotImplementedError, match=SENTENCE):
        suite().setup(*smallest(suite))


def test_no_file_imports_the_library_when_it_is_read():
    for path in FOLDER.glob("*.py"):
        lines = path.read_text().splitlines()
        assert not [
            x for x in lines if x.startswith(("import linkern", "from linkern"))
        ]


def test_what_is_not_installed_is_named(monkeypatch):
    ground = sys.modules["benchmarks.ground"]
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NotImplementedError, match="torch is not installed here"):
        ground.backend("torch")


def test_every_operator_is_measured():
    """The list is written down, for it must not depend on the commit."""
    import linkern.operators

    inputs = sys.modules["benchmarks.inputs"]
    others = {"linear_attention", "linear_attention_step", "ssd"}
    assert set(inputs.OPERATORS) == set(linkern.operators.__all__) - others
    assert set(inputs.KINDS) <= set(inputs.OPERATORS)


@pytest.mark.parametrize("name", ["linear_attention", "simple_gla", "kda", "oja"])
def test_inputs_are_what_an_operator_takes(name):
    import linkern

    inputs = sys.modules["benchmarks.inputs"]
    function = getattr(linkern, name)
    given = inputs.inputs_of(function, 5)
    assert set(given) <= set(inspect.signature(function).parameters)
    assert function(**given).output.dtype == "float32"


class Event:
    """A mark on a device that is far behind: its time is read only once it is there."""

    def __init__(self, **_):
        self.there = False

    def record(self):
        pass

    def synchronize(self):
        self.there = True


def fake_elapsed(start, stop):
    assert stop.there, "the time was read before the device was done"
    return 2.5


def fake_torch():
    Event.elapsed_time = fake_elapsed
    held = {"before": 2**20, "most": 5 * 2**20}
    cuda = SimpleNamespace(
        is_available=lambda: True,
        Event=Event,
        synchronize=lambda: None,
        reset_peak_memory_stats=lambda: None,
        memory_allocated=lambda: held["before"],
        max_memory_allocated=lambda: held["most"],
    )
    return SimpleNamespace(cuda=cuda, asarray=lambda x, device: x)


def fake_cupy():
    sizes = iter([2**20, 5 * 2**20])
    pool = SimpleNamespace(
        free_all_blocks=lambda: None, total_bytes=lambda: next(sizes)
    )
    cuda = SimpleNamespace(
        is_available=lambda: True,
        Event=Event,
        get_elapsed_time=fake_elapsed,
        Device=lambda: SimpleNamespace(synchronize=lambda: None),
    )
    return SimpleNamespace(
        cuda=cuda, asarray=lambda x: x, get_default_memory_pool=lambda: pool
    )


def law_the_device_is_measured(suite, monkeypatch, name):
    """With a device that answers as real ones do, times and bytes are what it says."""
    fake = {"torch": fake_torch, "cupy": fake_cupy}[name]()
    monkeypatch.setitem(sys.modules, name, fake)
    instance = suite()
    instance.length = 64
    instance.setup(name, "linear_attention")
    assert instance.track_gpu_time(name, "linear_attention") == 2.5
    assert instance.track_pool(name, "linear_attention") == 4
    return instance.call()


@pytest.mark.parametrize("name", ["torch", "cupy"])
@pytest.mark.parametrize(
    ("suite", "dtype"), [("Device", "float32"), ("Half", "float16")]
)
def test_a_device_is_measured_by_its_own_clock_and_books(
    name, suite, dtype, monkeypatch
):
    suite = getattr(sys.modules["benchmarks.devices"], suite)
    result = law_the_device_is_measured(suite, monkeypatch, name)
    assert result.output.dtype == dtype


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_a_clock_read_too_early_is_noticed(name, monkeypatch):
    monkeypatch.setattr(Event, "synchronize", lambda self: None)
    suite = sys.modules["benchmarks.devices"].Device
    with pytest.raises(AssertionError, match="before the device was done"):
        law_the_device_is_measured(suite, monkeypatch, name)

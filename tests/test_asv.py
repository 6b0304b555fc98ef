"""The benchmarks run: each once, on its smallest parameters."""

import importlib.util
import inspect
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "asv_bench" / "benchmarks"


def benchmarks():
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, value in vars(module).items():
            if inspect.isclass(value):
                for method in vars(value):
                    if method.startswith(("time_", "peakmem_", "track_")):
                        yield pytest.param(value, method, id=f"{name}.{method}")


@pytest.mark.parametrize(("suite", "method"), list(benchmarks()))
def test_each_benchmark_runs(suite, method):
    nested = isinstance(suite.params[0], list)
    parameters = [p[0] for p in suite.params] if nested else [suite.params[0]]
    instance = suite()
    try:
        if hasattr(instance, "setup"):
            instance.setup(*parameters)
    except NotImplementedError as reason:  # how asv is told that a peer is missing
        pytest.skip(str(reason))
    if hasattr(instance, "lengths"):
        instance.lengths = instance.lengths[:2]
    measured = getattr(instance, method)(*parameters)
    if method.startswith("track_"):
        assert measured > 0
    if method.endswith("_over_bound"):
        assert measured <= 1

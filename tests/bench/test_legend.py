"""Every column of every table has its line in the legend."""

import pytest

from linkern.bench import legend, tables
from linkern.bench.cpu import CPU
from linkern.bench.cuda import CUDA
from linkern.bench.generation import generation_suite


@pytest.mark.parametrize(
    "suite", [CPU, CUDA, generation_suite(depth=1)], ids=lambda x: x.name
)
def test_each_column_is_explained(suite, monkeypatch):
    def missing():
        lines = legend.legend(suite)
        columns = ("tokens", "contestant", *tables._COLUMNS[suite.name])
        return [x for x in columns if not any(y.startswith(f"{x}: ") for y in lines)]

    assert missing() == []
    monkeypatch.setattr(legend, "_LINES", {suite.name: {"tokens": "length"}})
    assert "contestant" in missing()

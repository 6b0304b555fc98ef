"""CUDA C++ becomes C++ whose lines have the same numbers."""

import re

import pytest

from linkern.testing.emulator.source import rewritten
from linkern.testing.errors import UsageError


def rewriting(folder, text):
    (folder / "a.cu").write_text(text, encoding="utf-8")
    return rewritten(folder / "a.cu")


@pytest.mark.parametrize(
    ("declaration", "parts"),
    [
        ("__shared__ float a[N], b;", ["float a[N], b; }", "auto& a =", "auto& b ="]),
        ("__shared__ Pair<T, 2> p[4];", ["Pair<T, 2> p[4]; }", "auto& p ="]),
        ("static __shared__ int n;", ["{ int n; }", "auto& n ="]),
        ("extern __shared__ T raw[];", ["{ T raw[1]; }", "auto* raw ="]),
        ("__shared__ extern T raw[][4];", ["{ T raw[1][4]; }", "auto* raw ="]),
        ("// __shared__ float a;", ["// __shared__ float a;"]),
        ('f("__shared__ float a;");', ['f("__shared__ float a;")']),
    ],
)
def test_shared_variables_refer_to_memory_of_the_block(tmp_path, declaration, parts):
    text = rewriting(tmp_path, f"void f() {{\n  {declaration}\n  last;\n}}\n")
    for part in parts:
        assert part in text
    assert text.splitlines()[3] == "  last;"


@pytest.mark.parametrize(
    ("launch", "called"),
    [
        ("f<<<1, 2>>>(x, g(y));", "Launch(1, 2) = [=]() { f(x, g(y)); });"),
        ("n::f<T, 4><<<a, b, c>>>(x);", "Launch(a, b, c) = [=]() { n::f<T, 4>(x); });"),
        ("f <<< dim3(1, 2), g(3) >>> ();", "= [=]() { f (); });"),
        ("f<<<a >> 1, 2>>>(x);", "Launch(a >> 1, 2) = [=]() { f(x); });"),
    ],
)
def test_a_launch_is_a_call_of_the_scheduler(tmp_path, launch, called):
    text = rewriting(tmp_path, f"void h() {{\n  {launch}\n}}\n")
    assert called in text
    assert "<<<" not in text


def test_local_headers_keep_their_names_and_lines(tmp_path):
    (tmp_path / "b.cuh").write_text("#pragma once\n__shared_of_b__\n", encoding="utf-8")
    lines = ['#include "b.cuh"', "one", '#include "b.cuh"', "<vector>", "two"]
    text = rewriting(tmp_path, "\n".join(lines))
    assert text.count("__shared_of_b__") == 1
    seen = {}
    number, name = 0, ""
    for line in text.splitlines():
        mark = re.match(r'#line (\d+) "(.*)"', line)
        if mark:
            number, name = int(mark[1]) - 1, mark[2]
        else:
            number += 1
            seen[line] = (name, number)
    assert seen["__shared_of_b__"] == ("b.cuh", 2)
    assert seen["one"] == ("a.cu", 2)
    assert seen["two"] == ("a.cu", 5)


def test_headers_of_cuda_and_torch_are_replaced_and_others_kept(tmp_path):
    text = rewriting(
        tmp_path,
        "#include <cuda_runtime.h>\n#include <torch/extension.h>\n"
        '#include "ATen/ATen.h"\n#include <vector>\n#include <cub/cub.cuh>\n',
    )
    assert re.findall("<.*>", text) == ["<vector>", "<cub/cub.cuh>"]
    assert "ATen" not in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("__shared__ float a[3];", "a.cu:1: `__shared__` must be inside of a function"),
        ("namespace n {\n__shared__ float a;\n}", "a.cu:2: `__shared__` must be"),
        ("void f() { g<<<1, 2>>>; }", "line 1 must be `kernel<<<...>>>"),
        ("void f() { __shared__ float a", "has no end"),
        ("void f() { g<<<1, 2>>>(x; }", "never closed"),
    ],
)
def test_what_cannot_be_rewritten_is_refused(tmp_path, text, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        rewriting(tmp_path, text)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "a.cu").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="must be a file of CUDA C"):
        rewritten(tmp_path / "a.cu")

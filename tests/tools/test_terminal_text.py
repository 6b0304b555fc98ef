"""Printed text of commands in pages: written, and compared."""

import pytest
import terminal_text as tool

PAGE = """\
Before.

```text
$ linkern verify a.py:f \\
    --op kda
failed: 2 of 3 checks
bound 4.65e-06
```

```text
no command
```

```text
$ linkern list checks
causality...
...
prefix
```
"""
PRINTED = {
    "verify a.py:f --op kda": "failed: 2 of 3 checks\nbound 4.66e-06\n",
    "list checks": "checks\ncausality  no output depends\nmore\nprefix  the first n\n",
}


def run(words):
    return PRINTED[" ".join(words)]


def test_commands_are_read_with_what_they_print():
    first, second = tool.blocks(PAGE)
    assert first.words == ["verify", "a.py:f", "--op", "kda"]
    assert first.shown == "failed: 2 of 3 checks\nbound 4.65e-06\n"
    assert not first.is_excerpt
    assert second.is_excerpt


def test_a_page_that_is_true_is_left_alone_but_for_digits():
    assert not tool.differences(PAGE, run)
    written = tool.rewritten(PAGE, run)
    assert written == PAGE.replace("4.65", "4.66")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 of 3", "3 of 3"),
        ("failed", "passed"),
        ("bound 4.65e-06\n", ""),
        ("4.65e-06\n", "4.65e-06\nmore\n"),
        ("prefix", "permutations"),
        ("causality...", "causalities..."),
    ],
)
def test_each_kind_of_difference_is_seen(old, new):
    (sentence,) = tool.differences(PAGE.replace(old, new), run)
    assert "does not print" in sentence


def test_lines_of_an_excerpt_in_another_order_are_seen():
    swapped = PAGE.replace("causality...\n...\nprefix", "prefix\n...\ncausality...")
    assert tool.differences(swapped, run)


def test_writing_a_stale_page_makes_it_true():
    stale = PAGE.replace("2 of 3", "3 of 3").replace("bound 4.65e-06\n", "")
    assert tool.rewritten(stale, run) == tool.rewritten(PAGE, run)


def test_commands_run_with_a_copy_of_the_package(tmp_path):
    assert tool.printed_by(["list", "check"], tmp_path) == (
        'linkern: unknown list "check"; did you mean "checks"?\n'
    )
    assert (tmp_path / "site-packages" / "linkern").is_dir()


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (
            "tried: 438 examples; declared: eps=1",
            "tried: 4 examples; declared: eps=1",
            1,
        ),
        ("tried: 4 examples; nothing declared", "tried: 4 inputs; nothing declared", 0),
        ("  smallest  B=1 T=97 K=4 float32", "  smallest  B=2 T=17 K=1 float32", 1),
        ("  smallest  B=1 T=97 float32", "  smallest  B=1 T=97 float64", 0),
        ("  entry     [0, 1, 96, 0] of", "  entry     [0, 0, 1, 0] of", 1),
        ("  x = np.array([1, -2]).reshape(2, 1)", "  x = np.array([3]).reshape(1)", 1),
        ("  name        4.22  words", "  name     2.8e+05  words", 1),
        ("failed: 8 of 25 checks", "failed: 9 of 25 checks", 0),
        ("cause: chunk of 16", "cause: chunk of 64", 0),
    ],
)
def test_what_is_drawn_is_not_compared(one, other, alike):
    page = f"```text\n$ linkern verify\n{one}\n```\n"
    assert bool(tool.differences(page, lambda words: other + "\n")) != alike

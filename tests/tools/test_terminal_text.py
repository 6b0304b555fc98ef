"""What pages say that commands print: written, and compared."""

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

"""Candidates of a folder: one kernel of each file, or one sentence."""

import pytest

from linkern.testing import UsageError
from linkern.testing.campaign.candidates import candidates, files_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {
        "b.py": "from _shared import phi\nfrom numpy import exp\n\ndef kernel(): ...\n",
        "a.py": "def _inner(): ...\nclass Cache: ...\ndef kernel(): ...\n",
        "_shared.py": "import deeper\ndef phi(): ...\n",
        "deeper.py": "kernel = None\n",
        "notes.txt": "def kernel(): ...",
    }
    (tmp_path / "some").mkdir()
    for name, text in files.items():
        (tmp_path / "some" / name).write_text(text)
    return tmp_path / "some"


def test_a_name_is_looked_for_in_every_file(folder):
    names = ["some/a.py:kernel", "some/b.py:kernel", "some/deeper.py:kernel"]
    assert candidates("some:kernel") == names
    assert candidates("some:Cache") == ["some/a.py:Cache"]


def test_without_a_name_each_file_has_one_public_function(folder):
    (folder / "deeper.py").unlink()
    assert candidates("some") == ["some/a.py:kernel", "some/b.py:kernel"]


@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        ("kernel = 1", "some", "must define one public function, and defines none"),
        (
            "def f(): ...\ndef g(): ...",
            "some",
            r'defines several \(f, g\); name the kernel, "some:attribute"',
        ),
        ("", "some:nothing", r"no file some/\*.py defines nothing"),
        ("", "nowhere", 'takes a folder, .*, got "nowhere"'),
        ("", "some/a.py:kernel", 'takes a folder, .*, got "some/a.py:kernel"'),
        ("", ":kernel", 'takes a folder, .*, got ":kernel"'),
    ],
)
def test_what_names_no_kernels_is_refused(folder, text, place, sentence):
    (folder / "deeper.py").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        candidates(place)


def test_the_files_of_a_candidate(folder):
    assert set(files_of("some/b.py:kernel")) == {"b.py", "_shared.py", "deeper.py"}
    assert files_of("some/deeper.py:kernel") == {"deeper.py": "kernel = None\n"}
    (folder / "deeper.py").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"some/deeper.py .* must be text in UTF-8"):
        files_of("some/deeper.py:kernel")

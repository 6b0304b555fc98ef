"""Sphinx configuration."""

import sys
from importlib.util import find_spec
from pathlib import Path

import linkern.typing

# At run time an array is `Any`; signatures show it by the name of its protocol.
linkern.typing.Array = type("Array", (), {"__module__": "linkern.typing"})

import linkern.testing
import linkern.transformer

HERE = Path(__file__).parent
sys.path += [str(HERE / "_extensions"), str(HERE.parent / "tools")]

project = "linkern"
author = copyright = "The linkern developers"
release = linkern.__version__

extensions = [
    "myst_nb",  # Markdown, and notebooks, which run when the site is built
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "generated_pages",
    "references",
]
exclude_patterns = ["_build"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nitpicky = True
nitpick_ignore = [
    ("py:class", "hypothesis.strategies.SearchStrategy"),
    ("py:class", "_pytest.mark.structures.MarkDecorator"),
    ("py:class", "numpy.random._generator.Generator"),
]

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3

# MathJax is one file of the site, so that a page needs no other server.
mathjax_path = "tex-svg.js"
_MATHJAX = Path(*find_spec("sphinx-mathjax-offline").submodule_search_locations)
html_static_path = ["_static", str(_MATHJAX / "static" / "mathjax" / mathjax_path)]
html_css_files = ["site.css"]

# The names that the docstrings use, so that building needs no network either.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "inventories/python.txt"),
    "numpy": ("https://numpy.org/doc/stable", "inventories/numpy.txt"),
}

autosummary_generate = False
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
maximum_signature_line_length = 80
numpydoc_xref_aliases = {
    **{
        name: f"{module.__name__}.{name}"
        for module in (linkern, linkern.testing, linkern.transformer)
        for name in module.__all__
        if isinstance(getattr(module, name), type)
    },
    "array": "linkern.typing.Array",
    "bool": ":class:`python:bool`",
    "callable": "collections.abc.Callable",
    "iterable": "collections.abc.Iterable",
    "mapping": "collections.abc.Mapping",
    "sequence": "collections.abc.Sequence",
}

html_theme = "furo"
html_title = "linkern"

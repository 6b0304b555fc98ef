"""Sphinx configuration."""

import linkern

project = "linkern"
author = "The linkern developers"
release = linkern.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
]
myst_heading_anchors = 2
# README links to files, which are pages here.
suppress_warnings = ["myst.xref_missing"]
numpydoc_show_class_members = False
html_theme = "furo"
html_title = "linkern"
exclude_patterns = ["_build"]

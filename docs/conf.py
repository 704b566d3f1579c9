"""Sphinx configuration; `make docs` builds with it, warnings as errors, from the installed package."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "extensions"))

project = "aegis"
version = release = (ROOT / "version.txt").read_text().strip()
html_title = f"aegis {version}"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
highlight_language = "none"  # of blocks that do not say; pages of docstrings say python

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_parser",
    "command_line",
    "headers",
    "operators",
    "plain_signatures",
    "public_names",
    "repository_links",
]
exclude_patterns = ["extensions"]
nitpicky = True

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# What signatures name: types of torch, NumPy and Python, which are documented there, and aliases and classes of aegis
# that nobody needs to name. Broken references in texts to functions, methods, attributes and modules all count.
nitpick_ignore_regex = [
    ("py:(class|exc)", r"(?!aegis\.).*"),
    ("py:class", r"aegis\._C\..*"),
    ("py:class", r"aegis\..*\.(Structure|Source|Dtype|T)"),
]
suppress_warnings = ["myst.header"]  # the tables that `make bench` writes are third-level sections

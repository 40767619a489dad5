"""Sphinx configuration; ``make docs`` builds with warnings as errors."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "jdaso"
author = "the jdaso authors"
copyright = author
_version = re.search(
    r'^__version__\s*=\s*"([^"]+)"', (ROOT / "jdaso/_base/version.py").read_text(), re.M
)
release = _version.group(1) if _version else ""

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("On failure", "notes_style"), ("Reference", "notes_style")]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

html_theme = "furo"
html_title = f"jdaso {release}".strip()
html_static_path = ["_static"]
exclude_patterns = ["_build", "_*.md"]  # parts that pages include

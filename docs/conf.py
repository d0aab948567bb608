"""The site: `make docs` builds it from the pages beside this file, without a network, and fails on a warning."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dispatch_profiler.version import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))
# Parsers fold their usage to the width of the terminal: a site has none.
os.environ["COLUMNS"] = "100"

project = "dispatch_profiler"
author = "the authors of dispatch_profiler"
copyright = "Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "generated_reference"]
root_doc = "index"
exclude_patterns = ["_extensions"]

# Anchors of headings as the repository's browser makes them, so that links work in both.
myst_heading_anchors = 6

# Roles of docstrings: `name` is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 70
# Two classes of different packages have one name (`Mode`); a signature names either without a link.
suppress_warnings = ["ref.python", "misc.highlighting_failure"]

html_theme = "furo"
html_title = "dispatch_profiler"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

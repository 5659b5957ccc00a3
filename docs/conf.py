"""Sphinx configuration of the documentation: `make docs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spatialgears import __version__

os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # figures belong in the pages

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
project = "spatialgears"
author = "The spatialgears developers"
copyright = "2026, the spatialgears developers"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "mathml",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "jupyter_execute", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"

# Tutorials are run whenever the documentation is built; what changed since the last build is run again.
nb_execution_mode = "cache"
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_in_temp = True
nb_merge_streams = True

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc shows the signature, and the sections the meaning
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"spatialgears {__version__}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1b5e8a", "color-brand-content": "#1b5e8a"},
    "dark_css_variables": {"color-brand-primary": "#7fc4ef", "color-brand-content": "#7fc4ef"},
}

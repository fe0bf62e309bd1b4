"""How the documentation is built: `tox -e docs`, or `sphinx-build -W docs site`."""

from __future__ import annotations

import flamecore
from flamecore.runtime.parts.counters import JobStats, meanings

project = "flamestream"
author = copyright = "the flamestream authors"
version = release = flamecore.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

# Markdown as code hosts show it: a `mermaid` block is a picture, a heading can be linked to.
myst_enable_extensions = ["deflist", "substitution"]
myst_substitutions = {
    "counters": "\n".join(
        [
            "| key | meaning |",
            "|---|---|",
            *(
                f"| `{'.'.join(filter(None, (name, each.key)))}` | {each.text} |"
                for name, each in meanings(JobStats).items()
            ),
        ]
    )
}
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3

# Docstrings are short, and written in Markdown's way of marking code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"flamestream {release}"

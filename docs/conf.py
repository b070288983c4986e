"""The site of the documentation: `make docs` builds it into docs/_build/html, offline."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import llms_txt  # noqa: E402
import reference_pages  # noqa: E402

project = "Plinth"
author = "Plinth"
version = release = installed("plinth")
extensions = ["myst_parser"]
exclude_patterns = ["_build", "examples/plinth-example/.*"]
html_theme = "furo"
html_title = f"Plinth {version}"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False
pygments_style, pygments_dark_style = "friendly", "github-dark"
myst_heading_anchors = 4
nitpicky = True

#: Page of docs/reference/ -> the file that it shows; links of other pages lead to the file, as on GitHub.
OUTSIDE = reference_pages.OUTSIDE


def _rewrite(_: Any, name: str, text: list[str]) -> None:
    """Let links to files and folders of the repository lead to the pages that show them."""
    for page, file in OUTSIDE.items():
        text[0] = re.sub(rf"\]\((?:\.\./)+{re.escape(file)}", f"](/reference/{page}.md", text[0])
    text[0] = text[0].replace("](runbooks/)", "](/reference/alerts.md)")
    text[0] = text[0].replace("](examples/plinth-example)", "](/examples/plinth-example/README.md)")


def _write_llms_txt(app: Any, error: Exception | None) -> None:
    """Write the index for language models next to the pages."""
    if error is None:
        (Path(app.outdir) / "llms.txt").write_text(llms_txt.text(OUTSIDE), encoding="utf-8")


def setup(app: Any) -> None:
    """Write the reference pages before the site is read."""
    reference_pages.write(HERE / "reference")
    app.connect("source-read", _rewrite)
    app.connect("build-finished", _write_llms_txt)

"""Foreign text in a page of Markdown: no markup, no link, no picture, whatever renders it.

    plain   text
    code    text as code
"""

from __future__ import annotations

import html
import re
import unicodedata

#: What begins a link, a picture or a cell, and the backslash, which would end the meaning of the one before them.
_MARKUP = re.compile(r"([\\\[|])")


def plain(text: object) -> str:
    """Text on one line, without control characters, markup or direction marks."""
    return _MARKUP.sub(r"\\\1", html.escape(_one_line(text), quote=False).replace("`", "'"))


def code(text: object) -> str:
    """Text on one line, as code. In a table a pipe needs a backslash of its own there, too."""
    words = _one_line(text).replace("`", "'").replace("\\|", "\\ |").replace("|", "\\|")
    return f"`{words}`"


def _one_line(text: object) -> str:
    visible = (c if unicodedata.category(c)[0] != "C" else " " for c in str(text))
    return " ".join("".join(visible).split())

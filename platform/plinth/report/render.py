"""Figures as bytes: PNG on white, or SVG whose text takes the colour of the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from plinth.report.style import ACCENT_INK, INK, SOFT_INK, WARNING_INK, settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DPI = 150
#: Colours of text: of a page, by its theme, and on white paper.
THEMED = {INK: "currentColor", SOFT_INK: "var(--soft)", ACCENT_INK: "var(--accent)", WARNING_INK: "var(--bad)"}
PRINTED = {INK: "#1b1f24", SOFT_INK: "#5b636e", ACCENT_INK: "#0072b2", WARNING_INK: "#b04300"}
_VIEW = re.compile(r'viewBox="\S+ \S+ (\S+) ')
_PREAMBLE = re.compile(r"^.*?(?=<svg)", re.DOTALL)


def png(draw: Callable[..., Figure], *args: Any) -> bytes:
    """Draw and render on white, at a width that fits a web page."""
    import matplotlib
    from matplotlib.colors import to_hex
    from matplotlib.text import Text

    with matplotlib.rc_context(_inked(PRINTED[INK]) | {"figure.facecolor": "white"}):
        figure = draw(*args)
        for text in figure.findobj(Text):
            text.set_color(PRINTED.get(to_hex(text.get_color()), text.get_color()))
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=PNG_DPI, bbox_inches="tight", metadata={"Software": None})
    return out.getvalue()


def svg(draw: Callable[..., Figure], *args: Any, title: str, key: str = "", tight: bool = True) -> str:
    """Draw and render as an inline element.

    Args:
        title: read out by screen readers.
        key: value of the attribute `data-key`, by which scripts find the element.
        tight: cut the empty margins off; without it a unit of the element is a point of the figure.
    """
    import matplotlib

    with matplotlib.rc_context(settings()):
        figure = draw(*args)
        out = io.StringIO()
        box = "tight" if tight else None
        figure.savefig(out, format="svg", bbox_inches=box, transparent=True, metadata={"Date": None})
    text = _PREAMBLE.sub("", out.getvalue(), count=1)
    for ink, colour in THEMED.items():
        text = text.replace(ink, colour)
    head, _, body = text.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    width = _VIEW.search(head)
    head += f' role="img" aria-label="{escape(title)}" tabindex="0"' + (f' data-key="{escape(key)}"' if key else "")
    head += f' style="--points: {float(width[1]):g}"' if width else ""
    body = re.sub(r"<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    return f"{head}>{body}".strip()


def _inked(ink: str) -> Any:
    return {key: ink if value == INK else value for key, value in settings().items()}

"""Figures as bytes: PNG on white, or SVG whose text takes the colour of the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from plinth.report.style import INK, settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DPI = 150
PRINTED_INK = "#1b1f24"
_PREAMBLE = re.compile(r"^.*?(?=<svg)", re.DOTALL)


def png(draw: Callable[..., Figure], *args: Any) -> bytes:
    """Draw and render on white, at a width that fits a web page."""
    import matplotlib

    with matplotlib.rc_context(_inked(PRINTED_INK) | {"figure.facecolor": "white"}):
        figure = draw(*args)
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
    text = _PREAMBLE.sub("", out.getvalue(), count=1).replace(INK, "currentColor")
    head, _, body = text.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    head += f' role="img" aria-label="{escape(title)}"' + (f' data-key="{escape(key)}"' if key else "")
    body = re.sub(r"<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    return f"{head}>{body}".strip()


def _inked(ink: str) -> Any:
    return {key: ink if value == INK else value for key, value in settings().items()}

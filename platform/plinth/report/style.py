"""Palette, sizes, and numbers as people write them."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Okabe and Ito's colours (jfly.uni-koeln.de/color), told apart by readers with any common colour blindness;
#: without its yellow and black, which vanish on one of the two themes.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
ACCENT, WARNING, MUTED, FAINT = "#0072B2", "#D55E00", "#8A8F98", "#BFC4CC"

#: Stands for the colour of text until a figure is rendered; no palette uses it.
INK = "#010203"
#: Stand for the colours of quiet, marked and warning text: no one colour can be read on both themes.
SOFT_INK, ACCENT_INK, WARNING_INK = "#010204", "#010205", "#010206"

WIDTH_INCHES = 6.4


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a color for each name; the same names always get the same colors."""
    return {name: tone(i) for i, name in enumerate(sorted(set(names)))}


def tone(number: int) -> str:
    """Return a color: the palette, then paler, then darker; the 19th equals the first."""
    turn, place = divmod(number, len(PALETTE))
    towards, much = ((0, 0.0), (255, 0.5), (0, 0.45))[turn % 3]
    parts = (int(PALETTE[place][at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (towards - part) * much):02X}" for part in parts)


def settings() -> Any:
    """Return the Matplotlib settings of all figures; output is reproducible byte for byte."""
    return {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.8,
        "text.color": INK,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "grid.color": FAINT,
        "grid.alpha": 0.35,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "svg.fonttype": "none",
        "svg.hashsalt": "plinth",
    }


def count(value: float) -> str:
    """Format a count: 1,234,567 as `1.23 M`; numbers below ten thousand in full."""
    return _scaled(value, 1000, ("", " k", " M", " G", " T"), whole_below=10_000)


def size(value: float) -> str:
    """Format bytes with a decimal unit."""
    return _scaled(value, 1000, (" B", " kB", " MB", " GB", " TB"), whole_below=1000)


def seconds(value: float) -> str:
    """Format a duration below a minute: 57 µs, 2.94 ms, 0.608 s."""
    power = next((power for power, least in ((0, 0.1), (1, 1e-3)) if value >= least), 2)
    return f"{value * 1000**power:.3g} {('s', 'ms', 'µs')[power]}"


def percent(share: float) -> str:
    """Format a share as a percentage with at most one decimal."""
    value = 100 * share
    if 0 < abs(value) < 0.1:
        return "< 0.1%"
    if 99.9 < value < 100:
        return "> 99.9%"
    return f"{value:.1f}%" if abs(value) < 99.95 and value != round(value) else f"{value:.0f}%"


def _scaled(value: float, base: int, units: tuple[str, ...], whole_below: int) -> str:
    if not math.isfinite(value):
        return str(value)
    if abs(value) < whole_below:
        whole = value == int(value) or abs(value) >= 1000
        return f"{value:,.0f}{units[0]}" if whole else f"{value:.3g}{units[0]}"
    power = min(len(units) - 1, int(math.log(abs(value), base)))
    return f"{value / base**power:.3g}{units[power]}"


PNG_DPI = 150
#: Colours of text: of a page, by its theme, and on white paper.
THEMED = {INK: "currentColor", SOFT_INK: "var(--soft)", ACCENT_INK: "var(--accent)", WARNING_INK: "var(--bad)"}
PRINTED = {INK: "#1b1f24", SOFT_INK: "#5b636e", ACCENT_INK: "#0072b2", WARNING_INK: "#b04300"}
_VIEW = re.compile(r'viewBox="\S+ \S+ (\S+) ')
_PREAMBLE = re.compile(r"^.*?(?=<svg)", re.DOTALL)


def png(draw: Callable[..., Figure], *args: Any) -> bytes:
    """Draw a figure and render it as PNG on white."""
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
    """Draw a figure and render it as an inline SVG element.

    Args:
        title: text for screen readers.
        key: value of the attribute `data-key`, for scripts.
        tight: cut empty margins; if False, a unit of the element is a point of the figure.
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

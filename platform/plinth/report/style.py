"""Palette, sizes, and formatting of numbers for people."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Okabe and Ito's colors (jfly.uni-koeln.de/color), distinct for readers with any common color blindness;
#: without its yellow and black, which vanish on one of the two themes.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
ACCENT, WARNING, MUTED, FAINT = "#0072B2", "#D55E00", "#8A8F98", "#BFC4CC"

#: Placeholder for the color of text until a figure is rendered; no palette uses it.
INK = "#010203"
#: Placeholders for quiet, marked and warning text, because no single color is readable on both themes.
SOFT_INK, ACCENT_INK, WARNING_INK = "#010204", "#010205", "#010206"

WIDTH_INCHES = 6.4


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a color for each name. The same names always get the same colors."""
    return {name: tone(i) for i, name in enumerate(sorted(set(names)))}


def tone(number: int) -> str:
    """Return the color with index `number`: first the palette, then paler and darker variants. Color 19 equals the
    first."""
    turn, place = divmod(number, len(PALETTE))
    towards, much = ((0, 0.0), (255, 0.5), (0, 0.45))[turn % 3]
    parts = (int(PALETTE[place][at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (towards - part) * much):02X}" for part in parts)


def settings() -> Any:
    """Return the Matplotlib settings for all figures. With them, the output is reproducible byte for byte."""
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
    """Format a count: 1,234,567 as `1.23 M`, and numbers below ten thousand in full."""
    return _scaled(value, 1000, ("", " k", " M", " G", " T"), whole_below=10_000)


def size(value: float) -> str:
    """Format bytes with a decimal unit."""
    return _scaled(value, 1000, (" B", " kB", " MB", " GB", " TB"), whole_below=1000)


def seconds(value: float) -> str:
    """Format a duration below a minute, such as 57 µs, 2.94 ms or 0.608 s."""
    power = next((power for power, least in ((0, 0.1), (1, 1e-3)) if value >= least), 2)
    return f"{value * 1000**power:.3g} {('s', 'ms', 'µs')[power]}"


def change(name: str, first: float, last: float | None, steps: int) -> str:
    """Return a sentence on the change of a value over a number of steps, or an empty string if the change is
    unknown."""
    if last is None or not (math.isfinite(first) and math.isfinite(last)):
        return ""
    verb = "fell" if last < first else "rose" if last > first else "did not change"
    return f"{name} {verb} from {first:.3g} to {last:.3g} in {steps:,} steps"


def percent(share: float) -> str:
    """Format a fraction as a percentage with at most one decimal."""
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
#: Colors of text: of a page, by its theme, and on white paper.
THEMED = {INK: "currentColor", SOFT_INK: "var(--soft)", ACCENT_INK: "var(--accent)", WARNING_INK: "var(--bad)"}
PRINTED = {INK: "#1b1f24", SOFT_INK: "#5b636e", ACCENT_INK: "#0072b2", WARNING_INK: "#b04300"}
_VIEW = re.compile(r'viewBox="\S+ \S+ (\S+) ')
_PREAMBLE = re.compile(r"^.*?(?=<svg)", re.DOTALL)


def png(draw: Callable[..., Figure], *args: Any) -> bytes:
    """Draw a figure and render it as PNG with a white background."""
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


def svg(
    draw: Callable[..., Figure],
    *args: Any,
    title: str,
    key: str = "",
    tight: bool = True,
    curves: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Draw a figure and render it as an inline SVG element.

    Args:
        title: text for screen readers.
        key: value of the attribute `data-key`, for scripts.
        tight: cut empty margins; if False, one unit of the SVG is one point of the figure.
        curves: curves of a figure without axes, in the form that `_curves` returns, for `curves.js`.
    """
    import matplotlib

    with matplotlib.rc_context(settings()):
        figure = draw(*args)
        found = [dict(one) for one in curves] or _curves(figure)
        out = io.StringIO()
        box = "tight" if tight else None
        figure.savefig(out, format="svg", bbox_inches=box, transparent=True, metadata={"Date": None})
    text = _PREAMBLE.sub("", out.getvalue(), count=1)
    for ink, colour in THEMED.items():
        text = text.replace(ink, colour)
    for number, frame in enumerate(found if not curves else ()):
        frame["box"] = _box(text, number)
    text = _FRAME.sub(r'<g data-frame="\1">', text).replace(f'<g id="{MOVES}">', '<g data-moves="">')
    head, _, body = text.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    width = _VIEW.search(head)
    head += f' role="img" aria-label="{escape(title)}" tabindex="0"' + (f' data-key="{escape(key)}"' if key else "")
    head += f' style="--points: {float(width[1]):g}"' if width else ""
    head += f' data-curves="{escape(json.dumps(found, separators=(",", ":")))}"' if found else ""
    body = re.sub(r"<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    return f"{head}>{body}".strip()


#: Name of artists that move along the axis when a reader zooms in.
MOVES = "moves"
#: Points of a curve that a reader can point at.
POINTS = 1000
_FRAME = re.compile(r'<g id="frame-(\d+)">')


def _curves(figure: Figure) -> list[dict[str, Any]]:
    """Return the curves of a figure for `curves.js`: the range, labels, lines and points of each axes object.

    The function also sets ids on the artists that the script moves. Positions along an axis are fractions of its range.
    """
    import numpy as np

    found = list[dict[str, Any]]()
    for ax in figure.axes:
        own = [line for line in ax.lines if np.size(line.get_xdata()) > 2 and line.get_transform() == ax.transData]
        if not own:
            continue
        ax.set_gid(f"frame-{len(found)}")
        for artist in (*ax.lines, *ax.collections, *ax.texts):
            if artist.get_transform().contains_branch_seperately(ax.transData)[0]:
                artist.set_gid(MOVES)
        (low, high), log, lines = ax.get_xlim(), ax.get_xscale() == "log", []
        for line in own:
            x, y = (np.asarray(values, dtype=float) for values in line.get_data())
            kept = np.flatnonzero(np.isfinite(x) & np.isfinite(y))[:: math.ceil(len(x) / POINTS)]
            ends, x = (np.log([low, high]), np.log(x)) if log else (np.array([low, high]), x)
            shares = (x[kept] - ends[0]) / (ends[1] - ends[0])
            name = "" if str(line.get_label()).startswith("_") else str(line.get_label())
            points = {"x": shares.round(6).tolist(), "y": [float(f"{value:.4g}") for value in y[kept]]}
            lines.append({"name": name, **points})
        labels = [one.get_xlabel() for one in figure.axes if one.get_xlabel()]
        unit = ", ".join(filter(None, (ax.get_title("left"), ax.get_ylabel())))
        whole = all(bool(np.all(np.mod(np.asarray(line.get_xdata(), dtype=float), 1) == 0)) for line in own)
        found.append({"x": labels[-1] if labels else "", "y": unit, "low": low, "high": high, "log": log,
                      "whole": whole, "time": False, "lines": [line for line in lines if line["x"]]})  # fmt: skip
    return found


def _box(text: str, number: int) -> list[float]:
    """Return left, top, width and height of the rectangle that clips a frame's curves."""
    frame = text[text.index(f'<g id="frame-{number}">') :]
    clip = re.search(r'clip-path="url\(#([^)]+)\)"', frame)
    assert clip is not None, "curves are clipped by their axes"
    shape = text[text.index(f'<clipPath id="{clip[1]}">') :]
    return [float(re.search(rf' {name}="([^"]+)"', shape)[1]) for name in ("x", "y", "width", "height")]  # type: ignore[index]


def _inked(ink: str) -> Any:
    return {key: ink if value == INK else value for key, value in settings().items()}

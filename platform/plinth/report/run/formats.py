"""Numbers of the page as text, with their units."""

from __future__ import annotations

from typing import Any


def number(value: Any) -> str:
    """Four digits of a number; nothing for None; text as it is."""
    return f"{value:.4g}" if isinstance(value, int | float) else "" if value is None else str(value)


def percents(value: float) -> str:
    """Three digits of a share in percent."""
    return f"{value:.3g}%"


def watts(value: float) -> str:
    """Whole watts."""
    return f"{value:,.0f} W"


def degrees(value: float) -> str:
    """Degrees Celsius."""
    return f"{value:.3g} °C"


def seconds(value: float) -> str:
    """Seconds, or minutes, or hours."""
    if value < 100:
        return f"{value:.3g} s"
    hours, rest = divmod(round(value), 3600)
    return f"{hours} h {rest // 60:02d} min" if hours else f"{rest // 60} min {rest % 60:02d} s"

"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

#: Control characters of ASCII and Latin-1 but for line ends and tabs, marks of direction, and line separators.
_COMMANDS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]")

#: Width, in columns, of a table for a pipe or a file.
PIPED_WIDTH = 200


def emit_json(value: Any) -> None:
    """One JSON document on stdout; records become objects, bytes become hexadecimal."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    # JSON leaves these as they are, and a terminal may obey them.
    click.echo(re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object] | None],
    *,
    title: str | None = None,
    right: Sequence[str] = (),
) -> None:
    """A table that fits the terminal: `right` columns hold numbers, which are never cut; None draws a line."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    def cell(value: object) -> Text:
        return value if isinstance(value, Text) else Text(_cell(value))

    cells = [None if row is None else [cell(value) for value in row] for row in rows]
    grid = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, 1))
    for index, name in enumerate(columns):
        grid.add_column(
            name,
            justify="right" if name in right else "left",
            overflow="fold",
            min_width=max((row[index].cell_len for row in cells if row), default=0) if name in right else None,
        )
    for row in cells:
        if row is None:
            grid.add_section()
        else:
            grid.add_row(*row)
    say(grid)


def say(*what: Any) -> None:
    """Print for a person: rich markup; plain and not wrapped where the output is no terminal."""
    from rich.console import Console

    piped = not sys.stdout.isatty()
    width = PIPED_WIDTH if piped and "COLUMNS" not in os.environ else None
    console = Console(highlight=False, width=width, soft_wrap=piped and all(isinstance(w, str) for w in what))
    console.print(*what)


def plain_markup(text: str) -> str:
    """Text that prints unchanged, with brackets that are no markup."""
    from rich.markup import escape

    return escape(text)


def visible(text: str) -> str:
    """Foreign text for a terminal: characters that would command it, or reorder what it shows, as `\\x1b`; line ends
    and tabs stay."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def heading(text: str) -> None:
    """A line that begins a section."""
    from rich.markup import escape

    say(f"\n[bold]{escape(text)}[/bold]")


def facts(values: Mapping[str, object]) -> None:
    """Names and values, aligned."""
    from rich.markup import escape

    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        say(f"  [dim]{escape(name):<{width}}[/dim]  {escape(_cell(value))}")


def size(count: float) -> str:
    """Bytes for people: `12.3 MB`, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`, `2.5 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds / 86400:.1f} days"


def coloured(text: str, style: str) -> Any:
    """A table cell in a colour, plain where the output is no terminal."""
    from rich.text import Text

    return Text(text, style=style)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return str(value)

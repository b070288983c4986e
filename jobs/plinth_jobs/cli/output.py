"""Terminal output: tables for people, JSON for programs. All commands print through this module.

Documents, addresses and names are untrusted text. Output contains no terminal control characters (`plinth.text`) and
no markup other than a few styles.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from plinth.text import escaped, visible

#: Allowed markup; other text in brackets is printed as is.
_STYLES = frozenset(("bold", "dim", "italic", "red", "green", "yellow", "blue", "magenta", "cyan"))
_BRACKETS = re.compile(r"(\\*)\[(/?)([^\[\]]*)\]")

#: Table width in columns when the output is a pipe or a file.
PIPED_WIDTH = 200


def emit_json(value: Any) -> None:
    """Print a value as one JSON document. Records become objects, and bytes become hexadecimal."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    click.echo(escaped(text))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object] | None],
    *,
    title: str | None = None,
    right: Sequence[str] = (),
) -> None:
    """Print a table that fits the terminal. The columns named in `right` contain numbers and are never truncated. A row
    of None prints a horizontal line."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    def cell(value: object) -> Text:
        return value if isinstance(value, Text) else Text(visible(_cell(value)))

    cells = [None if row is None else [cell(value) for value in row] for row in rows]
    shown = Text(visible(title)) if title else None
    grid = Table(title=shown, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, 1))
    for index, name in enumerate(columns):
        grid.add_column(
            Text(visible(name)),
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


def line(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Print text unchanged on standard output or standard error."""
    click.echo(f"{visible(text)}{end}", err=err, nl=False)


def say(*what: Any) -> None:
    """Print values with rich markup. If the output is not a terminal, the text is plain and unwrapped."""
    from rich.console import Console

    piped = not sys.stdout.isatty()
    width = PIPED_WIDTH if piped and "COLUMNS" not in os.environ else None
    console = Console(highlight=False, width=width, soft_wrap=piped and all(isinstance(w, str) for w in what))
    with console.capture() as shown:  # on a closed pipe, rich itself would exit the process
        console.print(*(_markup(each) if isinstance(each, str) else each for each in what))
    sys.stdout.write(shown.get())


def plain_markup(text: str) -> str:
    """Escape text so that its brackets are printed and not read as markup."""
    from rich.markup import escape

    return escape(text)


def _markup(text: str) -> Any:
    """Parse the allowed markup as styles. Other brackets and unbalanced markup are kept as text."""
    from rich.errors import MarkupError
    from rich.text import Text

    def own(found: re.Match[str]) -> str:
        before, end, words = found.groups()
        ours = set(words.split()) <= _STYLES and (words or end)
        return found[0] if len(before) % 2 or ours else f"{before}\\[{end}{words}]"

    shown = visible(text)
    try:
        return Text.from_markup(_BRACKETS.sub(own, shown), emoji=False)
    except MarkupError:
        return Text(shown)


def heading(text: str) -> None:
    """Print a section heading."""
    from rich.markup import escape

    say(f"\n[bold]{escape(text)}[/bold]")


def facts(values: Mapping[str, object]) -> None:
    """Print names and values in aligned columns."""
    from rich.markup import escape

    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        say(f"  [dim]{escape(name):<{width}}[/dim]  {escape(_cell(value))}")


def size(count: float) -> str:
    """Format a number of bytes in powers of ten: `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


#: Note under tables that show `money` at workspace prices.
CURRENCY = "Costs use `prices` in budget/settings.yaml; prices that are not set there are in US dollars."


def money(amount: float) -> str:
    """Format an amount with two decimals. Amounts below 0.005 print as '< 0.01'."""
    return "< 0.01" if 0 < amount < 0.005 else f"{amount:,.2f}"


def duration(seconds: float) -> str:
    """Format a duration: `45 s`, `12 min`, `3 h 20 min`, `2.5 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds / 86400:.1f} days"


def coloured(text: str, style: str) -> Any:
    """Return the text of a table cell in a style. If the output is not a terminal, the text is plain."""
    from rich.text import Text

    return Text(visible(text), style=style)


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

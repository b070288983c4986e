"""Links and lists of names, as all tiles and lines of the index write them."""

from __future__ import annotations

from collections.abc import Sequence

from plinth.compute.context import Context


def beside(ctx: Context, name: str) -> str:
    """A link to a page beside the index, or nothing where it was not written."""
    return name if (ctx.workspace.reports / name).exists() else ""


def some(names: Sequence[str], shown: int = 3) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown:,} more" if len(names) > shown else "")

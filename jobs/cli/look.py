"""`plinth status`, `plinth funnel`, `plinth report`: what is there."""

from __future__ import annotations

from typing import Any

import click

from jobs.cli.options import Settings, examples, json_option, recipe_option, shared

COLOURS = {"up to date": "green", "stale": "yellow", "not made": "red"}


@click.command(
    epilog=examples(
        "plinth status",
        "plinth status --json | jq -r '.[] | select(.state != \"up to date\").asset'",
    )
)
@shared
@recipe_option
@json_option
def status(settings: Settings, as_json: bool) -> None:
    """List every asset of the recipe: up to date, stale or not made; rows, size and digest.

    `stale` means that the recipe, the code or something upstream differs from what the asset was made of.
    """
    from jobs import line
    from jobs.cli import output

    rows = line.status(settings.workspace, settings.recipe_path())
    if as_json:
        output.emit_json(rows)
        return
    for group in dict.fromkeys(row["group"] for row in rows):
        output.heading(group)
        output.table(
            ("asset", "state", "rows", "size", "digest"),
            (_status_row(row) for row in rows if row["group"] == group),
            right=("rows", "size"),
        )
    count = sum(row["state"] == "up to date" for row in rows)
    output.say(f"{count} of {len(rows)} assets are up to date.")


def _status_row(row: dict[str, Any]) -> tuple[object, ...]:
    from jobs.cli import output

    size = output.size(row["bytes"]) if row["bytes"] is not None else None
    digest = row["digest"][:12] if row["digest"] else None
    return row["asset"], output.coloured(row["state"], COLOURS[row["state"]]), row["rows"] or None, size, digest

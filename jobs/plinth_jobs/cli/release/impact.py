"""`plinth release impact`: everything that came of something."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import examples, json_option, shared

if TYPE_CHECKING:
    from plinth_jobs.cli.options import Settings
    from plinth_registry.impact import Impact

SHOWN = 40


@click.command(
    epilog=examples(
        "plinth release impact web                  what was read from a bucket's sources",
        "plinth release impact 3fa9c1d2             a manifest, by the beginning of its digest",
        "plinth release impact 8c1f…                a document, by its 32 digits; or a commit of the code",
        "plinth release impact web/curated --page   write a page with the graph",
    )
)
@click.argument("target")
@shared
@click.option("--page", "as_page", is_flag=True, help="Write a page with the graph and the whole list.")
@json_option
def impact(settings: Settings, target: str, as_page: bool, as_json: bool) -> None:
    """List everything that came of TARGET, nearest first: manifests, runs, versions of models, consumers.

    TARGET is an asset, a bucket, the domain of a source, a digest, a document's 32 digits, or a commit of the code.
    What failed before it made anything does not count.
    """
    from plinth_jobs.cli import output
    from plinth_registry import impact as impacts

    found = impacts.impact(settings.context(), target)
    written = _write(settings.workspace, found) if as_page else None
    if as_json:
        output.emit_json(found.model_dump(mode="json") | ({"page": str(written)} if written else {}))
        return
    _show(found)
    if written:
        output.say(f"\nThe page: {output.plain_markup(str(written))}")


def _write(workspace: Path, found: Impact) -> Path:
    from plinth.report.impact_page import page
    from plinth.storage.atomic import write_bytes
    from plinth_registry.impact import contents

    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in found.origin.target[:40])
    path = Path(workspace) / "reports" / f"impact-{name}.html"
    write_bytes(path, page(contents(found)).encode())
    return path


def _show(found: Impact) -> None:
    from plinth_jobs.cli import output

    target = output.plain_markup(output.visible(found.origin.target))
    output.heading(f"{found.origin.kind} {target}: {counted(len(found.manifests), 'manifest')}")
    rows = [(each.steps, output.visible(each.asset), each.digest[:16], each.state) for each in found.manifests]
    output.table(("steps", "asset", "digest", ""), rows[:SHOWN], right=("steps",))
    if len(rows) > SHOWN:
        output.say(f"{len(rows) - SHOWN} more: --json lists them, --page draws them.")
    if found.runs:
        output.table(("run", "committed checkpoints"), [(run.run_id, _steps(run.checkpoints)) for run in found.runs])
    versions = [(row.model, row.version, ", ".join(row.aliases)) for row in found.versions]
    if versions:
        output.table(("model", "version", "aliases"), [tuple(map(output.visible, row)) for row in versions])
    if found.consumers:
        users = [(row.name, row.owner, row.uses) for row in found.consumers]
        output.table(("consumer", "owner", "uses"), [tuple(map(output.visible, row)) for row in users])
    for sentence in (*found.marks, *(f"Not looked at: {gap}" for gap in found.gaps)):
        output.say(output.plain_markup(output.visible(sentence)))


def _steps(steps: tuple[int, ...]) -> str:
    return ", ".join(map(str, steps))

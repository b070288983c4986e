"""`plinth corpus near`: documents similar to a text."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from plinth_jobs.cli.options import Settings, Utf8Text, examples, json_option, shared


@click.command(
    epilog=examples(
        "plinth corpus near article.txt",
        "plinth corpus near 'the text of a benchmark question' --threshold 0.5",
        "plinth corpus near - --json --limit 100 < page.txt | jq -r '.[].id'",
    )
)
@click.argument("target", type=Utf8Text(), metavar="TEXT|FILE")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Smallest similarity to show."
)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of documents.")
@shared
@json_option
def near(settings: Settings, target: str, threshold: float, limit: int, as_json: bool) -> None:
    """Find documents that equal a text or nearly equal it.

    TEXT|FILE is a file name, `-` for standard input, or the text itself. The search covers every document of the
    corpus, dropped ones too. A match shows its similarity (exact where the text is stored, else estimated) and its
    verdict. Near duplicates below the similarity of the index may be missed.
    """
    from plinth.corpus.dedup.near.index import fate, open_published
    from plinth_jobs.cli import output

    ctx = settings.context()
    with open_published(ctx) as index:
        matches = index.near(_text(target), threshold, limit)
    found = [asdict(match) | fate(ctx, match) for match in matches]
    if as_json:
        output.emit_json(found)
    elif found:
        output.table(
            ("document", "similarity", "bands", "decision", "reason", "survives", "uri"),
            [_row(match) for match in found],
            right=("similarity", "bands"),
        )
    else:
        output.say("no similar document")


def _text(target: str) -> str:
    if target == "-":
        return sys.stdin.read()
    path = Path(target)
    try:
        return path.read_text("utf-8", "replace") if path.is_file() else target
    except OSError:  # a long text is no file name
        return target


def _row(match: dict[str, Any]) -> tuple[object, ...]:
    similarity = match["similarity"] if match["similarity"] is not None else match["estimated"]
    estimated = "~" if match["similarity"] is None else ""
    shown = "exact" if match["exact"] else f"{estimated}{similarity or 0:.3f}"
    survives = {True: "yes", False: "no"}.get(match.get("near_survivor"), "")  # type: ignore[arg-type]
    name = match["id"] or f"{match['bucket']}/{match['part']}:{match['row']}"
    return (name, shown, match["bands"], match.get("decision"), match.get("reason"), survives, match["uri"])

"""`plinth corpus slices`: error rates of learned gates by slice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared


@click.command(
    epilog=examples(
        "plinth corpus slices",
        "plinth corpus slices toxicity --misses 5",
        "plinth corpus slices --json | jq '.toxicity.slices.all.recall'",
        "plinth corpus slices --write input/generated",
    )
)
@shared
@click.argument("gates", nargs=-1)
@click.option("--misses", type=click.IntRange(min=0), default=0, help="Number of wrongly judged documents to show.")
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write generated sets for test recipes, a lexicon of invented words, lists for the illegal-content gate.",
)
@json_option
def slices(settings: Settings, gates: tuple[str, ...], misses: int, folder: Path | None, as_json: bool) -> None:
    """Show the shares of good and bad text that learned gates remove, by slice, with 95% intervals.

    The numbers come from the assets `slices/…`, which `corpus.slices` of the recipe defines.
    """
    from plinth_jobs.cli import output

    if folder is not None:
        for path in _write(folder):
            output.say(str(path))
        return
    ctx = settings.context()
    made = {name: ctx.refs.current(f"slices/{name}") for name in gates or _published(ctx)}
    if as_json:
        output.emit_json({name: one.stats for name, one in made.items()})
        return
    from plinth.corpus.slices.rates import HEADER, table

    for name, one in made.items():
        output.heading(f"{name}: {' or '.join(one.stats['rule'])}")
        output.table(HEADER, table(one.stats), right=HEADER[1:])
        bounds = {key: value for key, value in one.stats["bounds"].items() if key != "min_documents"}
        output.say("bounds: " + ", ".join(f"{key} {value:g}" for key, value in bounds.items()))
        _show_origin(one.stats)
        for row in _wrong(ctx, one, misses):
            output.say(f"  {output.plain_markup(row)}")


def _published(ctx: Any) -> list[str]:
    """Gates that were measured.

    Raises:
        MissingError: none was.
    """
    from plinth.errors import MissingError

    found = [ref.asset.removeprefix("slices/") for ref in ctx.refs.all() if ref.asset.startswith("slices/")]
    if not found:
        raise MissingError(
            "no gate has been measured in this workspace",
            expected="gates in `corpus.slices` of the recipe",
            remedy="add them, then `plinth run --select 'slices/*'`",
        )
    return sorted(found)


def _show_origin(stats: Mapping[str, Any]) -> None:
    from plinth_jobs.cli import output

    kinds = ((name, row["documents"], row["removed"]) for name, row in stats["made_as"].items())
    output.table(("made as", "documents", "removed"), kinds, right=("documents", "removed"))
    output.say("documents: " + ", ".join(f"{count} {origin}" for origin, count in stats["origins"].items()))


def _wrong(ctx: Any, made: Any, count: int) -> list[str]:
    """Documents that were judged wrong, the first of each slice and kind."""
    from plinth.corpus.sampling import excerpt
    from plinth.storage.parts import iter_batches

    lines: list[str] = []
    for batch in iter_batches(ctx.store, made.parts[0]) if count else ():
        for row in batch.to_pylist():
            if row["bad"] != row["removed"] and len(lines) < count:
                what = "missed" if row["bad"] else "lost"
                lines.append(f"{what}, {row['slice']}, {row['made_as']}: {excerpt(row['text'])}")
    return lines


def _write(folder: Path) -> list[Path]:
    from plinth.corpus.models.generated_sets import line
    from plinth.corpus.slices import generate, illegal

    terms = generate.invented(0)
    sets = {
        "toxicity.jsonl": generate.toxicity(1, 400, terms, "train"),
        "quality.jsonl": generate.quality(1, 400, (), "train"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lexicon.tsv").write_text(generate.lexicon_file(terms), encoding="utf-8")
    for name, rows in sets.items():
        lines = (line(row.text, "bad" if row.bad else "good", row.slice) for row in rows)
        (folder / name).write_text("".join(lines), encoding="utf-8")
    (folder / "illegal").mkdir(exist_ok=True)
    for name, text in illegal.lists().items():
        (folder / "illegal" / name).write_text(text, encoding="utf-8")
    return [folder / name for name in ("lexicon.tsv", *sets, "illegal")]

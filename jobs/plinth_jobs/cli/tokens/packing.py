"""`plinth tokens packing`: both packings of the published shards compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.tokens.packing.packing import PackingCounts


@click.command(epilog=examples("plinth tokens packing", "plinth tokens packing -s 2048 -s 8192 --json | jq .[0]"))
@click.option(
    "-s",
    "--sequence-tokens",
    "widths",
    type=click.IntRange(min=8),
    multiple=True,
    default=(512, 2048, 4096, 8192),
    show_default=True,
    help="Tokens per sequence; repeatable.",
)
@shared
@json_option
def packing(settings: Settings, widths: tuple[int, ...], as_json: bool) -> None:
    """Compare the shares of padded, masked, dropped and cut tokens of both packings, for every stream.

    Nothing is written: the shares are computed from document lengths. Documents cut `needlessly` would have fitted
    one sequence.
    """
    from plinth_jobs.cli import output

    rows = packings(settings.context(), widths)
    if as_json:
        output.emit_json(rows)
        return
    shares = ("padding", "masked", "dropped", "cut", "cut_needlessly")
    columns = ("stream", "S", "sequences", *shares[:-1], "needlessly")
    for packing_name in ("concatenate", "best-fit"):
        output.heading(packing_name)
        shown = [
            (row["stream"], row["sequence_tokens"], row["sequences"], *(f"{row[name]:.2%}" for name in shares))
            for row in rows
            if row["packing"] == packing_name
        ]
        output.table(columns, shown, right=columns[1:])


def packings(ctx: Context, widths: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row per stream, sequence length and packing: sequences, and shares of targets, tokens and documents.

    Raises:
        MissingError: no shards are published.
    """
    from plinth.errors import MissingError
    from plinth.tokens.packing.packing import measure, measure_best_fit
    from plinth.tokens.shards.reader import ShardReader
    from plinth.tokens.shards.streams import streams_of

    published = [ref.asset for ref in ctx.refs.all() if ref.asset.endswith("/shards")]
    if not published:
        raise MissingError("no bucket has shards yet", remedy="plinth run --select '*/shards'")
    rows = []
    for asset in sorted(published):
        shards = ctx.refs.current(asset)
        for stream in streams_of(shards):
            for width in widths:
                reader = ShardReader(ctx.store, shards, stream.name)
                rows.append(_row(stream.name, width, "concatenate", measure(reader, width)))
                rows.append(_row(stream.name, width, "best-fit", measure_best_fit(ctx.store, shards, stream, width)))
    return rows


def _row(stream: str, width: int, name: str, made: PackingCounts) -> dict[str, Any]:
    targets, documents = max(made.targets, 1), max(made.documents, 1)
    return {
        "stream": stream,
        "sequence_tokens": width,
        "packing": name,
        "sequences": made.sequences,
        "padding": made.padding / targets,
        "masked": made.masked / targets,
        "dropped": made.dropped / max(made.tokens, 1),
        "cut": made.split_documents / documents,
        "cut_needlessly": made.split_fitting / documents,
    }

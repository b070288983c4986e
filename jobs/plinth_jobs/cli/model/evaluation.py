"""`plinth model evaluation`: bits per byte by slice, the worst documents, and the spans where two models differ
most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.records import Manifest


@click.command(
    epilog=examples(
        "plinth model evaluation",
        "plinth model evaluation language length",
        "plinth model evaluation --worst 10",
        "plinth model evaluation --against 3fa9c1d2e0b4 --spans 20",
        "plinth model evaluation --json | jq '.axes.language.en.model'",
    )
)
@shared
@click.argument("axes", nargs=-1)
@click.option("--worst", type=click.IntRange(min=0), default=5, show_default=True, help="Documents that cost most.")
@click.option("--against", metavar="DIGEST", help="Another evaluation of the same held-out text, by its manifest.")
@click.option("--spans", type=click.IntRange(1, 1000), default=10, show_default=True, help="Spans with --against.")
@json_option
def evaluation(
    settings: Settings, axes: tuple[str, ...], worst: int, against: str | None, spans: int, as_json: bool
) -> None:
    """Show bits per byte of the checkpoint by slice of held-out text, with 95% intervals.

    AXES are bucket, language, domain, length, and those of `evaluation.slices` in the recipe; by default all. With
    --against, show the spans of text on which this checkpoint and another differ most, whatever their tokenizers.
    """
    from plinth.errors import MissingError
    from plinth_jobs.cli import output

    ctx = settings.context()
    made = ctx.refs.current("evaluation")
    if against:
        _show_spans(ctx, made, against, spans, as_json)
        return
    if as_json:
        output.emit_json({"digest": made.digest, **made.stats})
        return
    every = {"bucket": made.stats["slices"], **made.stats["axes"]}
    unknown = [name for name in axes if name not in every]
    if unknown:
        raise MissingError(f"no axis {unknown[0]}", expected=f"one of {', '.join(every)}")
    _show_slices("all", {"all": made.stats["overall"]})
    for axis in axes or every:
        _show_slices(axis, every[axis])
    _show_worst(made.stats["worst"][:worst])
    output.say(f"evaluation {made.digest[:12]}")


def _show_slices(axis: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    from plinth.evaluation.slices.totals import in_order, interval
    from plinth_jobs.cli import output

    columns = (axis, "text", "documents", "bits per byte", "95% interval", "trigram", "gzip")
    cells = (
        (name, output.size(row["bytes"]), row["n"], f"{row['model']:.4f}", interval(row),
         f"{row['trigram']:.3f}", f"{row['gzip']:.3f}")
        for name in in_order(axis, rows)
        for row in [rows[name]]
    )  # fmt: skip
    output.table(columns, cells, right=columns[1:])


def _show_worst(rows: list[Mapping[str, Any]]) -> None:
    from plinth_jobs.cli import output

    if rows:
        output.heading("documents that cost most above the rate of their bucket")
    for row in rows:
        output.say(f"  {row['excess_bits']:,.0f} bits, {row['model']:.3f} per byte  {output.plain_markup(row['uri'])}")
        output.say(f"    [dim]`plinth explain {row['id']}`[/dim]")


def _show_spans(ctx: Context, made: Manifest, against: str, most: int, as_json: bool) -> None:
    from dataclasses import asdict

    from plinth.evaluation.slices.spans import largest
    from plinth_jobs.cli import output

    found = largest(ctx.store, ctx.refs, made, _other(ctx, against), most)
    if as_json:
        output.emit_json([{**asdict(one), "difference": one.difference} for one in found])
        return
    for one in found:
        more = "more" if one.difference > 0 else "fewer"
        output.say(
            f"  {abs(one.difference):,.1f} bits {more}: {one.a_bits:,.1f} instead of {one.b_bits:,.1f}"
            f"  [dim]{output.plain_markup(one.uri)} bytes {one.start} to {one.end}; `plinth explain {one.id}`[/dim]"
        )
        output.say(f"    {output.plain_markup(' '.join(one.text.split()))}")


def _other(ctx: Context, prefix: str) -> Manifest:
    """An evaluation by the beginning of its digest.

    Raises:
        MissingError: none or several begin so.
    """
    from plinth.errors import MissingError

    found = [ctx.refs.load(path.stem) for path in ctx.refs.saved(prefix)]
    evaluations = [one for one in found if one.asset == "evaluation"]
    if len(evaluations) != 1:
        raise MissingError(
            f"{len(evaluations)} evaluations begin with {prefix}",
            expected="the digest of one, as `plinth model evaluation` and Dagster show it",
        )
    return evaluations[0]

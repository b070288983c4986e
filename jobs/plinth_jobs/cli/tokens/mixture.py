"""`plinth tokens mixture`: shares and epochs of every stream by phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.recipe.recipe import Recipe
    from plinth.records import Manifest


@click.command(
    epilog=examples(
        "plinth tokens mixture",
        "plinth tokens mixture --try",
        "plinth tokens mixture --streams",
        "plinth tokens mixture --course --json | jq '.course[0].realised'",
    )
)
@shared
@recipe_option
@click.option(
    "--try", "as_written", is_flag=True, help="Compute the mixture of the present recipe from the published shards."
)
@click.option("--streams", is_flag=True, help="List the streams of the shards with their tokens instead.")
@click.option("--course", is_flag=True, help="Add the shares along the run.")
@json_option
def mixture(settings: Settings, as_written: bool, streams: bool, course: bool, as_json: bool) -> None:
    """Show the share of every bucket and stream by phase, and the epochs over its text.

    Shares are exact in every block of sequences; the largest difference from the recipe is shown with its place.
    `--try` computes the mixture of the present recipe and stores nothing.
    """
    from plinth_jobs.cli import output

    ctx = settings.context()
    if streams:
        found = list(_streams(ctx, settings.load_recipe()))
        if as_json:
            output.emit_json(found)
        else:
            output.table(
                ("stream", "tokens", "documents"), [tuple(row.values()) for row in found], right=("tokens", "documents")
            )
        return
    if as_written or ctx.refs.ref("mixture") is None:
        settings.load_recipe().required_mixture()  # raises for a recipe without a mixture
    shown = describe(_tried(ctx, settings.load_recipe()) if as_written else ctx.refs.current("mixture"))
    if not course:
        shown.pop("course")
    if as_json:
        output.emit_json(shown)
    else:
        _show(shown)


def describe(made: Manifest) -> dict[str, Any]:
    """A mixture as JSON: phases, streams, realised shares along the run, advice."""
    from plinth.tokens.mixture import mixture as arithmetic
    from plinth.tokens.mixture.mixture_audit import advice, shares_over_run

    stats = made.stats
    shown = ("sequences", "needed", "epochs", "max_epochs")
    return {
        "tokens": stats["tokens"],
        "sequence_tokens": stats["sequence_tokens"],
        "phases": arithmetic.rows(made),
        "streams": {name: {key: own[key] for key in shown} for name, own in stats["buckets"].items()},
        "realised": stats["realised"],
        "course": shares_over_run(stats),
        "advice": advice(stats),
    }


def _shards(ctx: Context, recipe: Recipe, kind: str = "shards") -> dict[str, Manifest]:
    return {bucket: ctx.refs.current(f"{bucket}/{kind}") for bucket in recipe.corpus.buckets}


def _tried(ctx: Context, recipe: Recipe) -> Manifest:
    from plinth.tokens.mixture import mixture as arithmetic

    params = recipe.required_mixture()
    packed = _shards(ctx, recipe, "packed") if params.packing == "best-fit" else None
    return arithmetic.run(ctx, params, _shards(ctx, recipe), packed)


def _streams(ctx: Context, recipe: Recipe) -> Iterator[dict[str, Any]]:
    from plinth.tokens.shards.streams import streams_of_all

    for stream in streams_of_all(_shards(ctx, recipe)):
        yield {"stream": stream.name, "tokens": stream.tokens, "documents": stream.documents}


def _show(shown: Mapping[str, Any]) -> None:
    from plinth_jobs.cli import output

    output.heading(f"{shown['tokens']:,} tokens")
    columns = ("phase", "stream", "asked", "realised", "tokens")
    output.table(columns, _phase_rows(shown["phases"]), right=columns[2:])
    output.heading("text")
    width = shown["sequence_tokens"]
    columns = ("stream", "tokens of text", "tokens seen", "epochs", "at most")
    rows = (
        (name, own["sequences"] * width, own["needed"] * width, f"{own['epochs']:.3f}", f"{own['max_epochs']:g}")
        for name, own in shown["streams"].items()
    )
    output.table(columns, rows, right=columns[1:])
    output.say(_nearness(shown["realised"]))
    for row in shown.get("course", ()):
        shares = "  ".join(f"{name} {share:.1%}" for name, share in row["realised"].items())
        output.say(f"{row['stop'] * width:>16,}  {shares}")
    for sentence in shown["advice"]:
        output.say(output.coloured("note ", "yellow"), sentence)


def _phase_rows(phases: list[dict[str, Any]]) -> Iterator[tuple[object, ...] | None]:
    last = None
    for row in phases:
        if not row["weight"] and not row["tokens"]:  # no part of this phase
            continue
        if last not in (None, row["phase"]):
            yield None
        first, last = row["phase"] != last, row["phase"]
        share = f"{row['share']:.3%}"
        yield (row["phase"] if first else None), row["bucket"], f"{row['weight']:.3%}", share, row["tokens"]


def _nearness(realised: Mapping[str, Any]) -> str:
    off, blocks = realised["max_share_error"], realised["every_blocks"]
    where = f" ({realised['stream']}, from sequence {realised['first']:,})" if realised["stream"] else ""
    return (
        f"At most {off:.4%} from the recipe in any {blocks:,} blocks{where}, {realised['rest_share_error']:.4%} in the "
        f"shorter rests; never more than {realised['max_drift_sequences']:.1f} sequences behind or ahead."
    )

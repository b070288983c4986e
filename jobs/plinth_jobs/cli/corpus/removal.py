"""`plinth corpus policy removal`: what rules that rest on models take of every bucket, with samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared


@click.command(
    epilog=examples(
        "plinth corpus policy removal",
        "plinth corpus policy removal --reason toxic --bucket books --samples 20",
        "plinth corpus policy removal --reason toxic --samples 100 --out toxic.jsonl",
        "plinth corpus review toxic.jsonl",
    )
)
@shared
@recipe_option
@click.option("--reason", help="Only this rule.")
@click.option("-b", "--bucket", help="Only this bucket.")
@click.option("-n", "--samples", type=click.IntRange(0, 1000), default=5, show_default=True, help="Of each rule.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write a file for `plinth corpus review`.")
@json_option
def removal(
    settings: Settings, reason: str | None, bucket: str | None, samples: int, out: Path | None, as_json: bool
) -> None:
    """Show the shares of every bucket that rules which rest on models remove, and samples of what they remove.

    The sidecars are enough: it works before any verdict, and after the bound on reference text stopped a run.
    """
    from plinth.storage.atomic import write_bytes
    from plinth_jobs.cli import output

    found, rows = _measured(settings, reason, bucket, samples)
    if out:
        write_bytes(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
        documents = counted(len(rows), "document")
        output.say(f"{documents} in {out}; fill in `label` (good or bad), then: `plinth corpus review {out}`")
    elif as_json:
        output.emit_json({"rules": found, "samples": rows})
    else:
        _show(found, rows)


def _measured(
    settings: Settings, reason: str | None, bucket: str | None, samples: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from plinth.compute.threads import Threads, cores
    from plinth.corpus.slices import removal_rates
    from plinth.errors import MissingError
    from plinth_assets.removal_rates import reference_of, rules_in_use, sidecars

    ctx, recipe = settings.context(), settings.load_recipe()
    rules, trusted = rules_in_use(recipe), reference_of(recipe)
    chosen = tuple(rule for rule in rules if reason in (None, rule.reason))
    buckets = [name for name in recipe.corpus.buckets if bucket in (None, name)]
    if not chosen or not buckets:
        have = f"rules {', '.join(rule.reason for rule in rules) or 'none'}; buckets {', '.join(recipe.corpus.buckets)}"
        raise MissingError("no rule that rests on a model fits", expected=have)
    ctx.engine = Threads(cores())
    documents = {name: ctx.refs.current(f"{name}/documents") for name in buckets}
    annotations = {side: {name: ctx.refs.current(f"{name}/{side}") for name in buckets} for side in sidecars(chosen)}
    made = removal_rates.run(ctx, chosen, documents, annotations)
    found, rows = list(made.stats["rules"]), []
    for number, row in enumerate(found):
        row["reference"] = [name for name in trusted if name in buckets]
        rows += removal_rates.samples(ctx, made, documents, annotations, number, buckets, samples)
    return found, rows


def _show(found: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> None:
    from plinth.corpus.slices.removal_rates import in_words
    from plinth_jobs.cli import output

    for row in found:
        output.heading(f"{row['reason']}: {row['rule']}")
        buckets = row["buckets"].items()
        shown = [(name, "yes" if name in row["reference"] else "", in_words(one)) for name, one in buckets]
        output.table(("bucket", "reference", "removed"), shown)
        for one in rows:
            if one["rule"] == row["rule"]:
                values = ", ".join(f"{name} = {value}" for name, value in one["values"].items())
                output.say(f"  {output.plain_markup(one['uri'])}  [dim]{one['bucket']} {one['id']}[/dim]")
                output.say(f"    {output.plain_markup(values)}")
                output.say(f"    [dim]{output.plain_markup(one['excerpt'])}[/dim]")

"""`plinth corpus quotes`: the mean share of quoted lines by bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from plinth_jobs.cli.options import examples, json_option, shared

if TYPE_CHECKING:
    from plinth_jobs.cli.options import Settings


@click.command(epilog=examples("plinth corpus quotes", "plinth corpus quotes --json"))
@shared
@json_option
def quotes(settings: Settings, as_json: bool) -> None:
    """Show the mean share of quoted lines by bucket, where `quotes` annotates."""
    from plinth.storage.parts import read_table
    from plinth_jobs.cli import output

    ctx = settings.context()
    means = dict[str, float]()
    for ref in ctx.refs.all():
        bucket, _, name = ref.asset.partition("/")
        if name == "quotes":
            parts = ctx.refs.current(ref.asset).named("part-")
            shares = [share for part in parts for share in read_table(ctx.store, part)["quoted_lines"].to_pylist()]
            means[bucket] = sum(shares) / len(shares) if shares else 0.0
    if as_json:
        output.emit_json(means)
    else:
        output.table(("bucket", "quoted lines"), [(bucket, f"{mean:.1%}") for bucket, mean in means.items()])

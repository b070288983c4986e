"""`plinth status`, `plinth funnel`, `plinth report`: what is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context

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
    from jobs import pipeline
    from jobs.cli import output

    rows = pipeline.status(settings.workspace, settings.recipe_path())
    if as_json:
        output.emit_json(rows)
        return
    output.table(("asset", "state", "rows", "size", "digest"), _status_rows(rows), right=("rows", "size"))
    count = sum(row["state"] == "up to date" for row in rows)
    output.say(f"{count} of {len(rows)} assets are up to date.")
    for run in _under_way(settings.context()):
        output.say(run)


def _under_way(ctx: Context) -> Iterator[str]:
    """A line for each run whose job is alive, watched by somebody or not."""
    from plinth.errors import PlinthError
    from plinth.training import config, job
    from plinth.training.telemetry.timeline import timeline

    for path in sorted(ctx.workspace.runs.glob("*/config.json")):
        with suppress(PlinthError):  # a scheduler that does not answer hides no asset
            run = config.load(path)
            handle = (launcher := job.launcher_of(run)).find(run.directory.root)
            if handle is not None and launcher.poll(handle).alive:
                reached = max(timeline(run.directory.events).steps, default=0)
                told = f"step {reached:,} of {run.total_steps:,}; `plinth timeline {run.run_id}`"
                yield f"run {run.run_id} is under way (job {handle.id}): {told}"


def _status_rows(rows: list[dict[str, Any]]) -> Iterator[tuple[object, ...] | None]:
    """One line per asset, a rule between groups."""
    from jobs.cli import output

    group = None
    for row in rows:
        if group not in (None, row["group"]):
            yield None
        group = row["group"]
        size = output.size(row["bytes"]) if row["bytes"] is not None else None
        digest = row["digest"][:12] if row["digest"] else None
        yield row["asset"], output.coloured(row["state"], COLOURS[row["state"]]), row["rows"] or None, size, digest


@click.command(
    epilog=examples("plinth funnel", "plinth funnel --bucket web", "plinth funnel --json | jq .total.effective")
)
@shared
@click.option("-b", "--bucket", help="One bucket instead of the sum over all.")
@json_option
def funnel(settings: Settings, bucket: str | None, as_json: bool) -> None:
    """Show how many documents and bytes each stage let through, why the rest was removed, and what is left.

    D_eff is the text that is worth training on: nominal bytes times the share that parsed, was good, was
    no duplicate and is no padding.
    """
    from jobs.cli import output
    from plinth.errors import MissingError

    stats = _funnel(settings.context())
    if bucket is not None and bucket not in stats["buckets"]:
        raise MissingError(f"no bucket {bucket}", expected=f"one of {', '.join(stats['buckets'])}")
    if as_json:
        output.emit_json(stats["buckets"][bucket] if bucket else stats)
        return
    _tell_account(bucket or "all buckets", stats["buckets"][bucket] if bucket else stats["total"])
    if bucket is None:
        output.heading("by bucket")
        columns = ("bucket", "documents", "trained", "held out", "text", "tokens")
        rows = ((name, *_bucket_row(account)) for name, account in stats["buckets"].items())
        output.table(columns, rows, right=columns[1:])


def _funnel(ctx: Context) -> Mapping[str, Any]:
    """The published account, or one of the buckets that came as far as verdicts.

    The asset waits for the mixture; who wants to know why a bucket is empty cannot.
    """
    from plinth.corpus.funnel import funnel

    if ctx.refs.ref("funnel") is not None:
        return ctx.refs.current("funnel").stats
    made = {ref.asset for ref in ctx.refs.all()}
    buckets = [asset.removesuffix("/verdicts") for asset in sorted(made) if asset.endswith("/verdicts")]
    if not buckets:
        return ctx.refs.current("funnel").stats  # raises: it has not been made, and how to make it
    documents, verdicts = (
        {bucket: ctx.refs.current(f"{bucket}/{kind}") for bucket in buckets} for kind in ("documents", "verdicts")
    )
    whole = all(f"{bucket}/curated" in made for bucket in buckets)
    curated = {bucket: ctx.refs.current(f"{bucket}/curated") for bucket in buckets} if whole else None
    return funnel.run(ctx, documents, verdicts, curated).stats


def _tell_account(title: str, account: dict[str, Any]) -> None:
    from jobs.cli import output

    output.heading(title)
    columns = ("stage", "in", "out", "removed", "share", "removed text")
    rows = (
        (
            row["stage"],
            row["documents_in"],
            row["documents_out"],
            row["removed"],
            f"{row['removed'] / row['documents_in']:.1%}" if row["documents_in"] else "-",
            _size(row["removed_bytes"]),
        )
        for row in account["stages"]
    )
    output.table(columns, rows, right=columns[1:])
    reasons = [
        (reason, row["stage"], count["documents"], _size(count["bytes"]), count.get("unique"))
        for row in account["stages"]
        for reason, count in sorted(row["reasons"].items(), key=lambda each: -each[1]["documents"])
    ]
    output.table(("reason", "stage", "documents", "text", "it alone"), reasons, right=("documents", "text", "it alone"))
    cut = sorted(account.get("edits", {}).get("reasons", {}).items(), key=lambda each: -each[1]["bytes"])
    if cut:
        rows_of_edits = ((reason, count["edits"], output.size(count["bytes"])) for reason, count in cut)
        output.table(("edits of kept text", "spans", "text"), rows_of_edits, right=("spans", "text"))
    effective = account["effective"]
    factors = " ".join(f"{name} {effective[name]:.3f}" for name in ("rho_parse", "rho_quality", "r_dup", "r_pad"))
    output.say(
        f"D_eff {output.size(effective['effective_bytes'])} of {output.size(effective['nominal_bytes'])}"
        f" ({effective['effective_tokens']:,.0f} tokens): {factors}"
    )


def _size(count: int | None) -> str | None:
    """Bytes for people, where they could be measured."""
    from jobs.cli import output

    return output.size(count) if count is not None else None


def _bucket_row(account: dict[str, Any]) -> tuple[object, ...]:
    from jobs.cli import output

    trained = account["trained"]
    found = account["stages"][0]["documents_in"]
    return (
        found,
        trained["documents"],
        account["held_out"]["documents"],
        output.size(trained["bytes"]),
        trained["tokens"],
    )


@click.command(epilog=examples("plinth report", "plinth report --json"))
@shared
@recipe_option
@json_option
def report(settings: Settings, as_json: bool) -> None:
    """Write the page of results again: funnel, mixture, loss, bits per byte, gates, release, in one HTML file."""
    from jobs import results
    from jobs.cli import output

    page = results.write(settings.context(), settings.load_recipe())
    if as_json:
        output.emit_json({"page": str(page)})
    else:
        output.say(page.absolute().as_uri())

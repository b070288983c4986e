"""`plinth corpus funnel`: documents and bytes through every stage, with the reasons of removal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context


@click.command(
    epilog=examples(
        "plinth corpus funnel", "plinth corpus funnel --bucket web", "plinth corpus funnel --json | jq .total.effective"
    )
)
@shared
@click.option("-b", "--bucket", help="One bucket instead of the sum over all.")
@json_option
def funnel(settings: Settings, bucket: str | None, as_json: bool) -> None:
    """Show documents and bytes in and out of every stage, the reasons of removal, and the effective tokens.

    D_eff is the effective text: nominal bytes times the shares that parsed, passed the policy, were no
    duplicates, were not held out or cut, and are no padding.
    """
    from plinth.corpus.documents.account import Account
    from plinth.errors import MissingError
    from plinth_jobs.cli import output

    stats = _funnel(settings.context())
    if bucket is not None and bucket not in stats["buckets"]:
        raise MissingError(f"no bucket {bucket}", expected=f"one of {', '.join(stats['buckets'])}")
    if as_json:
        output.emit_json(stats["buckets"][bucket] if bucket else stats)
        return
    _show_account(bucket or "all buckets", stats["buckets"][bucket] if bucket else stats["total"])
    if bucket is None:
        output.heading("by bucket")
        columns = ("bucket", "documents", "trained", "held out", "text", "tokens")
        rows = ((name, *_bucket_row(account)) for name, account in stats["buckets"].items())
        output.table(columns, rows, right=columns[1:])
    for name, account in stats["buckets"].items() if bucket is None else [(bucket, stats["buckets"][bucket])]:
        if "account" in account:
            output.line(f"{name}: {Account.model_validate(account['account']).line}")


def _funnel(ctx: Context) -> Mapping[str, Any]:
    """The published account, or one computed from the buckets that have verdicts.

    The asset needs the mixture; an empty bucket prevents the mixture, and this account explains it.
    """
    from plinth.corpus import funnel

    if ctx.refs.ref("funnel") is not None:
        return ctx.refs.current("funnel").stats
    made = {ref.asset for ref in ctx.refs.all()}
    buckets = [asset.removesuffix("/verdicts") for asset in sorted(made) if asset.endswith("/verdicts")]
    if not buckets:
        return ctx.refs.current("funnel").stats  # raises MissingError with the remedy
    documents, verdicts = (
        {bucket: ctx.refs.current(f"{bucket}/{kind}") for bucket in buckets} for kind in ("documents", "verdicts")
    )
    whole = all(f"{bucket}/curated" in made for bucket in buckets)
    curated = {bucket: ctx.refs.current(f"{bucket}/curated") for bucket in buckets} if whole else None
    sources = {bucket: ctx.refs.current(f"{bucket}/sources") for bucket in buckets if f"{bucket}/sources" in made}
    return funnel.run(ctx, documents, verdicts, curated, sources=sources).stats


def _show_account(title: str, account: dict[str, Any]) -> None:
    from plinth_jobs.cli import output

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
        (
            reason + " (damage)" * count.get("damage", False),
            row["stage"],
            count["documents"],
            _size(count["bytes"]),
            count.get("unique"),
        )
        for row in account["stages"]
        for reason, count in sorted(row["reasons"].items(), key=lambda each: -each[1]["documents"])
    ]
    output.table(("reason", "stage", "documents", "text", "it alone"), reasons, right=("documents", "text", "it alone"))
    cut = sorted(account.get("edits", {}).get("reasons", {}).items(), key=lambda each: -each[1]["bytes"])
    if cut:
        rows_of_edits = ((reason, count["edits"], output.size(count["bytes"])) for reason, count in cut)
        output.table(("edits of kept text", "spans", "text"), rows_of_edits, right=("spans", "text"))
    effective = account["effective"]
    shown = ("rho_parse", "rho_quality", "rho_rest", "r_dup", "r_pad")
    factors = " ".join(f"{name} {effective[name]:.3f}" for name in shown)
    output.say(
        f"D_eff {output.size(effective['effective_bytes'])} of {output.size(effective['nominal_bytes'])}"
        f" ({effective['effective_tokens']:,.0f} tokens)"
    )
    output.say(f"  {factors}")


def _size(count: int | None) -> str | None:
    """Bytes for people, where they could be measured."""
    from plinth_jobs.cli import output

    return output.size(count) if count is not None else None


def _bucket_row(account: dict[str, Any]) -> tuple[object, ...]:
    from plinth_jobs.cli import output

    trained = account["trained"]
    found = account["stages"][0]["documents_in"]
    return (
        found,
        trained["documents"],
        account["held_out"]["documents"],
        output.size(trained["bytes"]),
        trained["tokens"],
    )

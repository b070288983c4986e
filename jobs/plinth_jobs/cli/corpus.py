"""Commands about the published corpus: `plinth corpus funnel | card | ledger | near | limits | arpa`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.errors import MissingError
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, Utf8Text, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context


@click.command(
    epilog=examples(
        "plinth corpus funnel", "plinth corpus funnel --bucket web", "plinth corpus funnel --json | jq .total.effective"
    )
)
@shared
@click.option("-b", "--bucket", help="Show one bucket instead of the total.")
@json_option
def funnel(settings: Settings, bucket: str | None, as_json: bool) -> None:
    """Show the documents and bytes in every stage, removal reasons, and effective tokens.

    D_eff (effective tokens) is the nominal number of tokens, multiplied by these fractions of the text: parsed, passed
    by the policy, kept by deduplication, neither held out nor cut, and not padding.
    """
    from plinth.corpus.sources.record import Account

    stats = _funnel(settings.context())
    if bucket is not None and bucket not in stats["buckets"]:
        raise MissingError(f"no bucket {bucket}", expected=f"one of {', '.join(stats['buckets'])}")
    if as_json:
        output.emit_json(stats["buckets"][bucket] if bucket else stats)
        return
    _show_account(bucket or "all buckets", stats["buckets"][bucket] if bucket else stats["total"])
    if bucket is None:
        _show_accuracy(settings.context())
        output.heading("by bucket")
        columns = ("bucket", "documents", "trained", "held out", "text", "tokens")
        rows = ((name, *_bucket_row(account)) for name, account in stats["buckets"].items())
        output.table(columns, rows, right=columns[1:])
    for name, account in stats["buckets"].items() if bucket is None else [(bucket, stats["buckets"][bucket])]:
        if "account" in account:
            output.line(f"{name}: {Account.model_validate(account['account']).line}")


def _show_accuracy(ctx: Context) -> None:
    from plinth.corpus.dedup.near import accuracy, minhash

    if ctx.refs.ref(minhash.ASSET) is not None and (
        rates := accuracy.described(ctx.refs.current(minhash.ASSET).stats)
    ):
        output.heading("near duplicates against exact similarity")
        output.facts(rates)


def _funnel(ctx: Context) -> Mapping[str, Any]:
    """Return the published funnel, or compute one from the buckets that have verdicts.

    The asset `funnel` requires the mixture. If an empty bucket blocks the mixture, the computed funnel shows why.
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
    output.table(
        ("reason", "stage", "documents", "text", "sole reason"), reasons, right=("documents", "text", "sole reason")
    )
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
    return output.size(count) if count is not None else None


def _bucket_row(account: dict[str, Any]) -> tuple[object, ...]:
    trained = account["trained"]
    found = account["stages"][0]["documents_in"]
    return (
        found,
        trained["documents"],
        account["held_out"]["documents"],
        output.size(trained["bytes"]),
        trained["tokens"],
    )


@click.command(
    epilog=examples(
        "plinth corpus card", "plinth corpus card > DATA_CARD.md", "plinth corpus card --json | jq .toxicity"
    )
)
@shared
@json_option
def card(settings: Settings, as_json: bool) -> None:
    """Print the data card of the corpus in Markdown: text by bucket, and the filters applied to it.

    `--json` prints only the filters, by subject.
    """
    from plinth_assets.candidate import CARD, card_text

    ctx = settings.context()
    made = ctx.refs.current(CARD)
    if as_json:
        output.emit_json(made.stats["screening"])
    else:
        output.line(card_text(ctx, made), end="")


@group(epilog=examples("plinth corpus ledger export ledger"))
def ledger() -> None:
    """Export the ledger: one row per document, for DuckDB, Polars, Spark or any other engine that reads Parquet."""


@ledger.command(
    epilog=examples(
        "plinth corpus ledger export ledger",
        "duckdb -c \"select bucket, reason, count(*) from 'ledger/*.parquet' group by all order by 3 desc\"",
    )
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@shared
@json_option
def export(settings: Settings, directory: Path, as_json: bool) -> None:
    """Write the ledger to DIRECTORY: documents in `*.parquet`, rejected records in `rejects/*.parquet`.

    Files are verified as they are written. Files from an earlier export that are no longer in the ledger are deleted.
    """
    from plinth.provenance import ledger as ledger_export

    ctx = settings.context()
    made = ctx.refs.current("ledger")
    files = ledger_export.export(ctx, made, directory)
    if as_json:
        output.emit_json({"digest": made.digest, "files": [str(path) for path in files], **made.stats})
    else:
        output.say(
            f"{counted(made.stats['documents'], 'document')} and {counted(made.stats['rejects'], 'reject')} "
            f"in {counted(len(files), 'file')}, {output.size(made.bytes)}, in {directory}"
        )


@click.command(
    epilog=examples(
        "plinth corpus near article.txt",
        "plinth corpus near 'the text of a benchmark question' --threshold 0.5",
        "plinth corpus near - --json --limit 100 < page.txt | jq -r '.[].id'",
    )
)
@click.argument("target", type=Utf8Text(), metavar="TEXT|FILE")
@click.option("--threshold", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Minimum similarity.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of matches.")
@shared
@json_option
def near(settings: Settings, target: str, threshold: float, limit: int, as_json: bool) -> None:
    """Find exact and near duplicates of a text.

    TEXT|FILE is a file name, `-` for standard input, or the text itself. The search covers all documents of the corpus,
    including dropped documents. Each match has a similarity and a verdict. The similarity is exact if the text of the
    document is stored, otherwise it is an estimate. Near duplicates below the index's similarity threshold may be
    missed.
    """
    from plinth.corpus.dedup.near.index import fate, open_published

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
        output.say("No similar documents.")


def _text(target: str) -> str:
    if target == "-":
        return sys.stdin.read()
    path = Path(target)
    try:
        return path.read_text("utf-8", "replace") if path.is_file() else target
    except OSError:  # a long text is not a valid file name
        return target


def _row(match: dict[str, Any]) -> tuple[object, ...]:
    similarity = match["similarity"] if match["similarity"] is not None else match["estimated"]
    estimated = "~" if match["similarity"] is None else ""
    shown = "exact" if match["exact"] else f"{estimated}{similarity or 0:.3f}"
    survives = {True: "yes", False: "no"}.get(match.get("near_survivor"), "")  # type: ignore[arg-type]
    name = match["id"] or f"{match['bucket']}/{match['part']}:{match['row']}"
    return (name, shown, match["bands"], match.get("decision"), match.get("reason"), survives, match["uri"])


@click.command(
    epilog=examples(
        "plinth corpus limits --bucket books --language sw --language yo --out input/limits.jsonl",
        "plinth corpus limits --bucket wikipedia --removed 0.1 --out input/limits.jsonl",
    )
)
@click.option("-b", "--bucket", required=True, help="Bucket of trusted reference text, with language annotations.")
@click.option(
    "-l",
    "--language",
    "languages",
    multiple=True,
    help="Language to fit thresholds for; repeatable (default: all languages with enough text).",
)
@click.option(
    "--removed",
    type=click.FloatRange(0, 0.5),
    default=0.05,
    show_default=True,
    help="Fraction of the reference documents that each threshold removes.",
)
@click.option(
    "-n",
    "--documents",
    type=click.IntRange(100),
    default=20_000,
    show_default=True,
    help="Number of documents to read per language.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
@shared
def limits(
    settings: Settings, bucket: str, languages: tuple[str, ...], removed: float, documents: int, out: Path
) -> None:
    """Fit the `fineweb2` thresholds of each language to a bucket's documents, and write them for `corpus.lists`."""
    from plinth.corpus.annotate.rules import fineweb
    from plinth.storage.atomic import write_bytes

    made = fineweb.fitted(settings.context(), bucket, languages, removed, documents)
    lines = [one.model_dump_json() + "\n" for one in made]
    write_bytes(out, "".join(lines).encode())
    output.say(
        f"Wrote limits for {', '.join(one.label for one in made)} to {out}. Add the file to corpus.lists and name it in"
    )
    output.say("corpus.annotate.fineweb2.limits.")


@click.command(epilog=examples("plinth corpus arpa perplexity model.arpa"))
@shared
@click.argument("name")
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
def arpa(settings: Settings, name: str, target: Path) -> None:
    """Write the n-gram model NAME to TARGET in ARPA format, as read by KenLM.

    Before scoring text with the model, tokenize it as Plinth does: lower case, digits replaced by 0, punctuation as
    separate tokens.
    """
    from plinth.corpus.models import ngram
    from plinth.storage.atomic import replacing

    ctx = settings.context()
    made = ctx.refs.current(f"models/{name}")
    files = {part.name: ctx.store.open_path(part.blob) for part in made.parts}
    model = ngram.read(files, f"models/{name}")
    with replacing(target) as stream:
        stream.writelines(f"{line}\n".encode() for line in ngram.arpa(model))
    output.facts({"n-grams": sum(keys.size for keys in model.keys), "written": target})

"""`plinth export text`, `plinth export verify`: curated text for others."""

from __future__ import annotations

import click

from jobs.cli.options import Settings, examples, json_option, shared

FORMATS = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst")


@click.command(
    epilog=examples(
        "plinth export text --to /data/corpus",
        "plinth export text web books --format jsonl.zst --to s3://bucket/corpus",
    )
)
@click.argument("buckets", nargs=-1)
@click.option("--format", "kind", type=click.Choice(FORMATS), default="parquet", show_default=True)
@click.option("--to", required=True, help="Folder or s3:// prefix to write below.")
@shared
@json_option
def text(settings: Settings, buckets: tuple[str, ...], kind: str, to: str, as_json: bool) -> None:
    """Write the curated text of BUCKETS (default: all) with its ledger columns, a data card and a list of digests.

    The layout is the Hugging Face Hub's. Killed and started again it writes what is missing; repeated it gives the same
    bytes. Text that is held out stays at home, and so do documents whose licence does not allow to pass them on
    (`corpus.licences_by_use`). Buckets with terms that say `redistribute: false` are refused.
    """
    from assets.data_card import ASSET, text_of
    from jobs.cli import output
    from plinth.compute.engine import LocalEngine
    from plinth.compute.threads import cores
    from plinth.provenance.text_export.export import export, require_corpus
    from plinth.provenance.text_export.manifest import MANIFEST
    from registry.exports import data

    ctx = settings.context()
    require_corpus(buckets)
    card = ctx.refs.current(ASSET)
    chosen = buckets or tuple(key.removesuffix("/curated") for key in card.inputs if key.endswith("/curated"))
    data.leave(ctx, [ctx.refs.current(f"{bucket}/curated") for bucket in chosen], to)
    ctx.engine = LocalEngine(cores())
    try:
        made = export(ctx, chosen, kind, to.rstrip("/"), card.stats["name"], card, text_of(ctx, card))
    finally:
        ctx.engine.close()
    if as_json:
        output.emit_json({"at": to, "digest": made.digest, **made.model_dump(mode="json")})
        return
    files = made.files.values()
    output.say(
        f"{to}: {sum(file.documents for file in files):,} documents, {output.size(sum(file.bytes for file in files))} "
        f"in {len(files)} files; SHA-256 of {MANIFEST} {made.digest}"
    )
    if withheld := sum(file.withheld for file in files):
        output.say(f"{withheld:,} documents are left out: corpus.licences_by_use.redistribute has not their licence")


@click.command(epilog=examples("plinth export verify /data/corpus", "plinth export verify s3://bucket/corpus"))
@click.argument("place")
@click.option("--digest", help="SHA-256 that manifest.json must have, as the export printed it.")
@shared
@json_option
def verify(settings: Settings, place: str, digest: str | None, as_json: bool) -> None:
    """Read every file of an export of text at PLACE and compare it with its manifest."""
    from jobs.cli import output
    from plinth.provenance.text_export.verify import verify as verify_export

    made = verify_export(place.rstrip("/"), digest)
    if as_json:
        output.emit_json({"at": place, "digest": made.digest, "files": len(made.files)})
    else:
        output.say(f"{place}: {len(made.files)} files as they were exported; SHA-256 of the manifest {made.digest}")

"""Export of curated text: Parquet or JSON lines with the ledger columns of every document, and a data card.

    export          files in an export: text with its ledger rows
    manifest        list of the files in an export; the export's README for the Hugging Face Hub
    croissant       Croissant 1.1 metadata: files, columns, licenses
    responsible_ai  its responsible-AI fields, from the manifests of the exported text

The export of tokens for other trainers (`plinth.tokens.shards.exports`) and the export of the ledger
(`plinth.provenance.ledger`) do not belong here.

This package also defines the commands `plinth export text` and `plinth export verify`, which import the other modules
when they run.
"""

from __future__ import annotations

from pathlib import Path

import click

from plinth.text import counted
from plinth_jobs.cli.options import Settings, examples, json_option, shared, unsigned_option

FORMATS = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst")


@click.command(
    short_help="Export curated text with ledger columns and a data card.",
    epilog=examples(
        "plinth export text --to /data/corpus",
        "plinth export text web books --format jsonl.zst --to s3://bucket/corpus",
    ),
)
@click.argument("buckets", nargs=-1)
@click.option("--format", "kind", type=click.Choice(FORMATS), default="parquet", show_default=True)
@click.option("--to", required=True, help="Output folder or s3:// prefix.")
@unsigned_option
@shared
@json_option
def text(settings: Settings, buckets: tuple[str, ...], kind: str, to: str, unsigned: bool, as_json: bool) -> None:
    """Export the curated text of BUCKETS (default: all) with ledger columns, a data card and a list of digests.

    The files have the layout of the Hugging Face Hub. The same user can continue an interrupted export on the same
    machine, and a repeated export gives the same bytes. Held-out text is excluded. Documents are excluded if their
    license does not allow redistribution (`corpus.licences_by_use`). Buckets with the term `redistribute: false` are
    rejected. The compliance key signs the file list (`EXPORT.json`).
    """
    from plinth.compute.engine import LocalEngine, cores
    from plinth_assets.candidate import CARD, card_text
    from plinth_audit.text_export.export import export, require_corpus
    from plinth_audit.text_export.manifest import MANIFEST
    from plinth_jobs.cli import output
    from plinth_registry.exports import data

    ctx = settings.context()
    require_corpus(buckets)
    card = ctx.refs.current(CARD)
    chosen = buckets or tuple(key.removesuffix("/curated") for key in card.inputs if key.endswith("/curated"))
    going = [ctx.refs.current(f"{bucket}/curated") for bucket in chosen]
    ctx.engine = LocalEngine(cores())
    try:
        with data.leaving(ctx, going, to, f"text of {card.stats['name']}", unsigned=unsigned) as seal:
            made = export(ctx, chosen, kind, to.rstrip("/"), card.stats["name"], card, card_text(ctx, card))
            digests = {name: file.sha256 for name, file in made.files.items()}
            signed = seal.sign({**digests, MANIFEST: made.digest}, made.inputs)
    finally:
        ctx.engine.close()
    if as_json:
        output.emit_json({"at": to, "digest": made.digest, "signed": signed, **made.model_dump(mode="json")})
        return
    files = made.files.values()
    documents, size = counted(sum(file.documents for file in files), "document"), sum(file.bytes for file in files)
    output.say(
        f"{to}: {documents}, {output.size(size)} in {counted(len(files), 'file')}; SHA-256 of {MANIFEST} {made.digest}"
    )
    without = "Not signed: the origin of the export cannot be verified."
    output.say(f"signed: SHA-256 of EXPORT.json {signed}" if signed else without)
    if withheld := sum(file.withheld for file in files):
        left = counted(withheld, "document", "be")
        output.say(f"{left} excluded: their license is not in corpus.licences_by_use.redistribute")


@click.command(
    epilog=examples(
        "plinth export verify /data/corpus --root root.json",
        "plinth export verify s3://bucket/corpus",
        "plinth export verify /data/old --unsigned",
    )
)
@click.argument("place")
@click.option("--root", type=click.Path(path_type=Path, dir_okay=False), help="Root of trust (default: pinned root).")
@click.option("--unsigned", is_flag=True, help="Accept an unsigned text export.")
@click.option("--digest", help="Expected SHA-256 of manifest.json, instead of a signature.")
@shared
@json_option
def verify(
    settings: Settings, place: str, root: Path | None, unsigned: bool, digest: str | None, as_json: bool
) -> None:
    """Verify every file of a text or token export at PLACE against the compliance signature.

    The command needs no workspace, only the root of trust: the pinned root, or --root. An unsigned export can be
    compared with its own manifest (--unsigned), or with the SHA-256 that `plinth export text` printed (--digest).
    """
    from plinth.errors import SignatureError
    from plinth.storage.workspace import Workspace
    from plinth.trust.root import ROOT_FILE
    from plinth_audit.text_export import manifest
    from plinth_jobs.cli import output
    from plinth_registry.exports import data

    if unsigned or digest:
        made = manifest.verify(place.rstrip("/"), digest)
        if as_json:
            return output.emit_json({"at": place, "digest": made.digest, "files": len(made.files)})
        files = counted(len(made.files), "file")
        return output.say(f"{place}: {files} match manifest.json with SHA-256 {made.digest}")
    if not data.is_signed(place.rstrip("/")):
        raise SignatureError(
            f"{place} is not signed",
            expected="a signed EXPORT.json next to the exported files",
            remedy="export the text again, or check it with --digest (the digest that the export printed), or accept "
            "it with --unsigned",
        )
    proved = data.verify(place, root or Workspace(settings.workspace).trust_folder / ROOT_FILE)
    if as_json:
        return output.emit_json({"at": place, **proved})
    output.say(f"{place} is verified: {counted(proved['files'], 'file')}, {proved['name']}.")
    output.say(f"Signed by {', '.join(proved['signed_by'])} as {proved['role']}, at {proved['at']}, {proved['root']}.")
    return None

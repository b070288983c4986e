"""Matches with lists of illegal content, without the matching text; rescan of stored text with updated lists.

    search   stored blobs that match the current lists

The gate that keeps listed records out of the documents is part of the corpus (`plinth.corpus.illegal`).

This package also defines the command `plinth corpus quarantine`, which imports the other modules when it runs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.text import counted
from plinth_jobs.cli.options import Settings, examples, group, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context


@group(
    short_help="Show matches with lists of illegal content, without the text.",
    invoke_without_command=True,
    epilog=examples(
        "plinth corpus quarantine",
        "plinth corpus quarantine --bucket web --json > hits.json",
        "plinth corpus quarantine hash page.txt",
        "plinth corpus quarantine find",
    ),
)
@shared
@click.option("-b", "--bucket", help="Only this bucket.")
@json_option
@click.pass_context
def quarantine(ctx: click.Context, settings: Settings, bucket: str | None, as_json: bool) -> None:
    """Count matches with lists of illegal content by list, source file and bucket. The matching text is never shown.

    --json lists every match: list and line, digest of the entry, digest of the record, source file and position.
    """
    if ctx.invoked_subcommand is not None:
        return
    from plinth_jobs.cli import output

    rows = _hits(settings.context(), bucket)
    if as_json:
        output.emit_json(rows)
        return
    counts = Counter((row["list"], row["kind"], row["bucket"], row["file"]) for row in rows)
    if counts:
        columns = ("list", "kind", "bucket", "source file", "hits")
        output.table(columns, ((*key, count) for key, count in sorted(counts.items())), right=("hits",))
    records = len({(row["bucket"], row["file"], row["where"], row["record_sha256"]) for row in rows})
    output.say(f"{counted(records, 'record', 'be')} in quarantine, with {counted(len(rows), 'hit')}.")


@quarantine.command(
    "hash", epilog=examples("plinth corpus quarantine hash page.txt", "plinth corpus quarantine hash a.txt --json")
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--shingle-words",
    type=click.IntRange(1, 16),
    default=3,
    show_default=True,
    help="Words per shingle; must be the value in the recipe.",
)
@json_option
def hash_(files: tuple[Path, ...], shingle_words: int, as_json: bool) -> None:
    """Print entries for a list of illegal content from FILES.

    An entry has the SHA-256 of the bytes, the SHA-256 of the normalized text, and the SimHash of the text. The text is
    read as UTF-8 and normalized with the defaults of a recipe. Nothing is stored.
    """
    from plinth_jobs.cli import output

    rows = [_hashes(path, shingle_words) for path in files]
    if as_json:
        output.emit_json(rows)
        return
    for row in rows:
        output.heading(row["file"])
        output.facts({name: value for name, value in row.items() if name != "file"})


@quarantine.command("find", epilog=examples("plinth corpus quarantine find", "plinth corpus quarantine find --json"))
@shared
@recipe_option
@json_option
def find_(settings: Settings, as_json: bool) -> None:
    """List stored files with text that matches the published lists. Nothing is changed.

    After a list was extended, run the pipeline first, then remove files that only older assets use
    (docs/illegal-content.md).
    """
    from plinth.errors import MissingError
    from plinth_audit.quarantine.search import find
    from plinth_jobs.cli import output

    ctx, params = settings.context(), settings.load_recipe().corpus.illegal
    if params.lists is None:
        raise MissingError("the recipe has no illegal-content gate", expected="`corpus.illegal.lists`")
    rows = list(find(ctx, params, ctx.refs.current(f"lists/{params.lists}")))
    if as_json:
        output.emit_json([row.model_dump() for row in rows])
        return
    columns = ("file", "documents", "lists", "published", "older")
    shown = ((r.path, r.documents, ", ".join(r.lists), ", ".join(r.published), ", ".join(r.older)) for r in rows)
    if rows:
        output.table(columns, shown, right=("documents",))
    held = sum(bool(row.published) for row in rows)
    output.say(f"{counted(len(rows), 'file')} with listed text, of which {held} belong to published assets.")


def _hits(ctx: Context, bucket: str | None) -> list[dict[str, Any]]:
    """Return all matches with lists of illegal content, by bucket and source.

    Raises:
        MissingError: there are no documents, or the bucket was read without an illegal-content gate.
    """
    from plinth.corpus.illegal_gate import hits
    from plinth.errors import MissingError

    made = [ref.asset for ref in ctx.refs.all() if ref.asset.endswith("/documents")]
    assets = [asset for asset in sorted(made) if bucket in (None, asset.split("/")[0])]
    documents = [one for asset in assets if "quarantine" in (one := ctx.refs.current(asset)).stats]
    if not documents:
        raise MissingError(
            "no document was compared with lists of illegal content",
            found=f"{', '.join(assets)}, read without lists" if assets else "no documents",
            expected="documents of a recipe with `corpus.illegal.lists`",
            remedy="add the lists to the recipe, then run `plinth run --select '*/documents'`",
        )
    return [dict(row) for one in documents for row in hits(ctx.store, one)]


def _hashes(path: Path, shingle_words: int) -> dict[str, Any]:
    import pyarrow as pa

    from plinth.corpus.documents.normalize import normalize
    from plinth.corpus.sources.files import decode_text
    from plinth.corpus.sources.parameters import Normalisation
    from plinth.errors import SourceError
    from plinth_text.similarity import simhashes

    data = path.read_bytes()
    try:
        text = normalize(decode_text(data), Normalisation())
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path} is not text", found=f"byte {error.start}: {error.reason}", expected="UTF-8"
        ) from error
    (value,), (filled,) = simhashes(pa.array([text], pa.large_string()), shingle_words)
    return {
        "file": str(path),
        "sha256": hashlib.sha256(data).hexdigest(),
        "sha256_text": hashlib.sha256(text.encode()).hexdigest(),
        "simhash": f"{int(value):016x}" if filled else None,
    }

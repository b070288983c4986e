"""`plinth ledger`: the audit trail as files for any engine that reads Parquet."""

from __future__ import annotations

from pathlib import Path

import click

from jobs.cli.options import Settings, examples, json_option, shared


@click.group(epilog=examples("plinth ledger export ledger"))
def ledger() -> None:
    """One row per document, for DuckDB, Polars, Spark and whatever else reads Parquet."""


@ledger.command(
    epilog=examples(
        "plinth ledger export ledger",
        "duckdb -c \"select bucket, reason, count(*) from 'ledger/*.parquet' group by all order by 3 desc\"",
    )
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@shared
@json_option
def export(settings: Settings, directory: Path, as_json: bool) -> None:
    """Write the ledger below DIRECTORY: `*.parquet` has the documents, `rejects/*.parquet` what never became one.

    Files are verified as they are written. Those of an earlier export that are no longer part of the ledger go.
    """
    from jobs.cli import output
    from plinth.provenance.ledger import export as ledger_export

    ctx = settings.context()
    made = ctx.refs.current("ledger")
    files = ledger_export.export(ctx, made, directory)
    if as_json:
        output.emit_json({"digest": made.digest, "files": [str(path) for path in files], **made.stats})
    else:
        output.say(
            f"{made.stats['documents']:,} documents and {made.stats['rejects']:,} rejects in {len(files)} files, "
            f"{output.size(made.bytes)}, in {directory}"
        )

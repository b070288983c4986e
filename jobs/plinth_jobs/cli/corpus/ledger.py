"""`plinth corpus ledger export`: the audit trail as Parquet files."""

from __future__ import annotations

from pathlib import Path

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared


@group(epilog=examples("plinth corpus ledger export ledger"))
def ledger() -> None:
    """The ledger: one row per document, for DuckDB, Polars, Spark or any other engine that reads Parquet."""


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
    """Write the ledger below DIRECTORY: documents in `*.parquet`, rejected records in `rejects/*.parquet`.

    Files are verified as they are written. Files of an earlier export that are no longer in the ledger are deleted.
    """
    from plinth.provenance.ledger import ledger as ledger_export
    from plinth_jobs.cli import output

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

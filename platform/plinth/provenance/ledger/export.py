"""The ledger as a folder that a query can name by a pattern.

DIR/web-00000.parquet …          documents of every bucket
DIR/rejects/web-00000.parquet …  rejects
DIR/ledger.json                  digest of the manifest, and the files of this export
"""

from __future__ import annotations

import json
from pathlib import Path

from plinth.compute.context import Context
from plinth.errors import WorkspaceError
from plinth.records import Manifest, Part
from plinth.storage.atomic import write_bytes
from plinth.storage.safe_path import join
from plinth.storage.state import checkout

LIST = "ledger.json"


def export(ctx: Context, made: Manifest, directory: Path) -> list[Path]:
    """Write the ledger below a directory, verified; files of an earlier export that are gone from it are removed.

    Raises:
        WorkspaceError: the directory holds Parquet files that no export wrote: a query would read them too.
        MissingError, IntegrityError: a part is absent or has changed.
    """
    parts = [part.model_copy(update={"name": _name(part)}) for part in made.parts]
    names = {part.name for part in parts}
    before = _before(directory)
    found = {
        str(path.relative_to(directory))
        for pattern in ("*.parquet", "rejects/*.parquet")
        for path in directory.glob(pattern)
    }
    strange = sorted(found - before)
    if strange:
        raise WorkspaceError(
            f"{directory} has Parquet files that are not of a ledger",
            found=", ".join(strange[:3]),
            expected="an empty folder, or one that an earlier export wrote",
            remedy="name another folder",
        )
    files = checkout(ctx.store, parts, directory)
    note = {"digest": made.digest, "files": sorted(names)}
    write_bytes(directory / LIST, json.dumps(note, indent=1).encode())
    for name in sorted((before & found) - names):
        join(directory, name, LIST).unlink()
    return files


def _name(part: Part) -> str:
    """`web/part-00000.parquet` -> `web-00000.parquet`, `web/rejects-00000.parquet` -> `rejects/web-00000.parquet`."""
    bucket, _, rest = part.name.partition("/")
    kind, _, number = rest.partition("-")
    return f"{bucket}-{number}" if kind == "part" else f"{kind}/{bucket}-{number}"


def _before(directory: Path) -> set[str]:
    """Files that the last export wrote."""
    try:
        return set(json.loads((directory / LIST).read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()

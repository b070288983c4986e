"""Lists of the user (blocked domains, words, hashes): their files as parts, by content.

Annotators read them as resources. A list that changed is another input, so dependent steps run again.
"""

from __future__ import annotations

from plinth import fingerprint
from plinth.compute.context import Context, manifest
from plinth.errors import SourceError
from plinth.records import Manifest, Part, Step
from plinth.storage import listing
from plinth.storage.atomic import named_failures
from plinth.storage.files import CHUNK_BYTES, SourceFile, opened

VERSION = "1"
#: Bound on the files of a list, which every machine copies. Lists that are looked up have bounds of their own; a ready
#: model is as large as its authors made it.
MAX_BYTES = 64 * 2**30


def digest(ctx: Context, location: str) -> str:
    """Identity of the files at a location: names and contents."""
    return fingerprint.digest([[file.name, file.sha256] for file in _files(ctx, location)])


def entries(ctx: Context, location: str) -> list[str]:
    """The lines of the files at a location, without those that are empty.

    Raises:
        SourceError: nothing is there, a file cannot be read or is no UTF-8, or the list is larger than `MAX_BYTES`.
    """
    files = _files(ctx, location)
    if (total := sum(file.bytes for file in files)) > MAX_BYTES:
        raise SourceError(f"{location} is too large", found=f"{total} bytes", expected=f"at most {MAX_BYTES}")
    found: list[str] = []
    for file in files:
        with opened(file) as stream:
            try:
                found += (line.strip() for line in stream.read().decode().splitlines())
            except UnicodeDecodeError as error:
                raise SourceError(
                    f"{file.name} holds no text", found=error, expected="UTF-8, an entry a line"
                ) from error
    return [line for line in found if line]


def run(ctx: Context, name: str, location: str) -> Manifest:
    """Copy the files of a list into the store.

    Returns:
        Manifest of one part per file, under the file's name. Statistics: `files`, `bytes`.

    Raises:
        SourceError: nothing is there, a file cannot be read, or the list is larger than `MAX_BYTES`.
    """
    files = _files(ctx, location)
    total = sum(file.bytes for file in files)
    if total > MAX_BYTES:
        raise SourceError(f"list {name} is too large", found=f"{total} bytes", expected=f"at most {MAX_BYTES}")
    parts = []
    for file in files:
        with ctx.store.staging() as staged:
            with opened(file) as stream, named_failures(staged), staged.open("wb") as copy:
                for data in iter(lambda: stream.read(CHUNK_BYTES), b""):
                    copy.write(data)
            parts.append(Part(name=file.name.strip("/") or "list", blob=ctx.store.put_file(staged)))
    inputs = {f"file:{file.name.strip('/') or 'list'}": file.sha256 for file in files}
    step = Step(name="lists", version=VERSION)
    return manifest(f"lists/{name}", step, inputs, parts, {"files": len(files), "bytes": total})


def _files(ctx: Context, location: str) -> list[SourceFile]:
    return listing.inventory(location, ctx.workspace.input)

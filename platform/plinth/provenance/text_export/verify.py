"""The files of an export compared with its manifest."""

from __future__ import annotations

import hashlib

from plinth.errors import IntegrityError
from plinth.provenance.text_export.manifest import DATA, MANIFEST, TextExport, load
from plinth.storage.destination import read_file, sizes
from plinth.storage.safe_path import relative


def verify(to: str, digest: str | None = None) -> TextExport:
    """Read every file of an export and compare length and SHA-256.

    Args:
        digest: SHA-256 that `manifest.json` must have, as the export printed it.

    Raises:
        IntegrityError: a file is missing, has changed or was added; or the manifest is another one.
        StorageError: the place cannot be read, or has no manifest.
    """
    made, there = load(to), sizes(to)
    for name in made.files:
        relative(name, f"{to}/{MANIFEST}")
    wrong = [f"{name} is missing" for name in made.files if name not in there]
    wrong += [f"{name} was added" for name in there if name.startswith(DATA) and name not in made.files]
    for name, file in made.files.items():
        if name in there and (there[name] != file.bytes or _sha256(f"{to}/{name}") != file.sha256):
            wrong.append(f"{name} has changed")
    if digest is not None and made.digest != digest:
        wrong.insert(0, f"the manifest has SHA-256 {made.digest}")
    if wrong:
        raise IntegrityError(
            f"{to} is not what was exported",
            found="; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""),
            expected=f"{len(made.files)} files as manifest.json lists them" + (f", {digest}" if digest else ""),
            remedy="export to it again: what is missing or of another length is written; delete what has changed first",
        )
    return made


def _sha256(uri: str) -> str:
    found = hashlib.sha256()
    for data in read_file(uri):
        found.update(data)
    return found.hexdigest()

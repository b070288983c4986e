"""Write a manifest's files out of the store, under the parts' names, verified byte by byte."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from plinth.errors import MissingError
from plinth.records import Manifest, Part
from plinth.storage.atomic import replacing
from plinth.storage.refs import Refs
from plinth.storage.safe_path import join
from plinth.storage.store import Store
from plinth.storage.verified import require_unchanged

SHORTEST_PREFIX = 4


def checkout(store: Store, parts: Iterable[Part], directory: Path, *, mode: int | None = None) -> list[Path]:
    """Copy parts to `directory / part.name`; a file appears only after its SHA-256 has matched.

    Args:
        mode: of the files; by default their user's alone.

    Raises:
        MissingError, IntegrityError: a blob is absent or has changed, or a name leaves the directory.
        DiskFullError, WorkspaceError: as the operating system refuses.
    """
    return [_copy(store, part, join(directory, part.name, "the manifest"), mode) for part in parts]


def resolve(refs: Refs, digest: str) -> Manifest:
    """The saved manifest with this digest, or with the only digest that starts so.

    Raises:
        MissingError: none does, or several do.
        IntegrityError: its bytes have changed.
    """
    if len(digest) < SHORTEST_PREFIX or set(digest) - set("0123456789abcdef"):
        raise MissingError(
            f"{digest!r} is not a manifest digest",
            expected=f"at least {SHORTEST_PREFIX} hexadecimal digits",
            remedy="`plinth status` lists what is published with its digests",
        )
    found = [path.stem for path in refs.saved(digest)]
    if len(found) > 1:
        shown = ", ".join(each[: len(digest) + 6] for each in found[:5])
        raise MissingError(f"digest {digest} is ambiguous", found=shown, remedy="give more digits")
    return refs.load(found[0] if found else digest)


def _copy(store: Store, part: Part, target: Path, mode: int | None) -> Path:
    source = store.located(part.blob)
    with replacing(target, mode=mode) as out:
        require_unchanged(source, part.blob, out.write, part=part.name)
    return target

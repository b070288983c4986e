"""Match the parts of documents, over all buckets, with the parts of their sidecars.

A sidecar's part has the same rows in the same order. A stage over one bucket names its parts
`part-00000.parquet`; one over all buckets `{bucket}/part-00000.parquet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from plinth.errors import IntegrityError
from plinth.records import Manifest, Part


@dataclass(frozen=True)
class Slot:
    """One part of documents with its sidecars.

    Args:
        number: position among all slots; buckets in order of name, parts in order of their manifest.
        bucket: name of the bucket.
        documents: the part of documents.
        sides: the sidecars' parts by the name the caller gave.
    """

    number: int
    bucket: str
    documents: Part
    sides: Mapping[str, Part]

    @property
    def name(self) -> str:
        """The part's name in a manifest over all buckets."""
        return f"{self.bucket}/{self.documents.name}"


def slots(documents: Mapping[str, Manifest], **sides: Manifest | Mapping[str, Manifest]) -> tuple[Slot, ...]:
    """Every part of documents with its sidecars.

    Args:
        documents: manifests of documents by bucket.
        sides: by name, a manifest over all buckets or one manifest per bucket.

    Raises:
        IntegrityError: a sidecar is missing or belongs to other documents.
    """
    found: list[Slot] = []
    for bucket in sorted(documents):
        parts = documents[bucket].named("part-")
        columns = {name: _parts(side, bucket, name, parts) for name, side in sides.items()}
        for i, part in enumerate(parts):
            found.append(Slot(len(found), bucket, part, {name: column[i] for name, column in columns.items()}))
    return tuple(found)


def _parts(
    side: Manifest | Mapping[str, Manifest], bucket: str, name: str, documents: Sequence[Part]
) -> tuple[Part, ...]:
    if isinstance(side, Manifest):
        parts = side.named(f"{bucket}/part-")
    else:
        parts = side[bucket].named("part-") if bucket in side else ()
    if [part.rows for part in parts] != [part.rows for part in documents]:
        raise IntegrityError(
            f"{name} of bucket {bucket} does not belong to its documents",
            found=f"parts of {[part.rows for part in parts]} rows",
            expected=f"parts of {[part.rows for part in documents]} rows",
            remedy=f"make {name} again from the current documents",
        )
    return parts


def summed(parts: Iterable[Part], names: Sequence[str]) -> dict[str, object]:
    """Statistics of parts over all buckets, named `{bucket}/part-*`: their sums, and `buckets` with those of each."""
    total = dict.fromkeys(names, 0)
    buckets: dict[str, dict[str, int]] = {}
    for part in parts:
        own = buckets.setdefault(part.name.split("/", 1)[0], dict.fromkeys(names, 0))
        for name in names:
            own[name] += int(part.stats[name])
            total[name] += int(part.stats[name])
    return {**total, "buckets": buckets}

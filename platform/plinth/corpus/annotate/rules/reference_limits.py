"""Limits by language of the documents that a workspace holds as reference: documents and the sidecar `language`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.corpus.annotate.rules.language_limits import ENGLISH, LanguageLimits
from plinth.corpus.annotate.rules.limits_fit import DOCUMENTS, fit
from plinth.corpus.sidecars import slots
from plinth.errors import MissingError
from plinth.storage.parts import iter_aligned


def fitted(ctx: Context, bucket: str, languages: Sequence[str], removed: float, documents: int) -> list[LanguageLimits]:
    """Limits of the languages asked for; of none, of all that have enough documents, by label.

    Args:
        removed: share of the reference beyond each limit.
        documents: the first so many of a language, in the order of the bucket.

    Raises:
        MissingError: the bucket has no documents, no languages, or none with enough text.
        StageError: a language asked for has too few documents.
    """
    made = {"documents": ctx.refs.current(f"{bucket}/documents"), "language": ctx.refs.current(f"{bucket}/language")}
    texts: dict[str, list[str]] = {}
    for slot in slots({bucket: made["documents"]}, language={bucket: made["language"]}):
        sources = ((slot.documents, ["text"]), (slot.sides["language"], ["label", "accepted"]))
        for batch, sidecar in iter_aligned(ctx.store, *sources):
            sure = sidecar.column("accepted")
            rows = zip(pc.filter(batch.column("text"), sure), pc.filter(sidecar.column("label"), sure), strict=True)
            for text, label in rows:
                held = texts.setdefault(label.as_py(), [])
                if len(held) < documents and (not languages or label.as_py() in languages):
                    held.append(text.as_py())
    chosen = languages or sorted(label for label, held in texts.items() if len(held) >= DOCUMENTS)
    wanted = [label for label in chosen if languages or label not in ENGLISH]
    if not wanted:
        raise MissingError(
            f"{bucket} has no language with enough documents",
            found=", ".join(f"{label} {len(held)}" for label, held in sorted(texts.items())) or "no documents",
            expected=f"at least {DOCUMENTS} documents of a language other than English",
            remedy="name a larger reference bucket",
        )
    return [fit(label, texts.get(label, []), removed) for label in wanted]

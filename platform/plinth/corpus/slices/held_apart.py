"""Labelled text that measures a model must be other text than the model learns from, under whatever name it lies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from plinth.corpus.models.examples import read_labelled
from plinth.errors import SourceError
from plinth.records import Manifest
from plinth.storage.store import Store

#: Share of the texts that both may have: short ones occur in any two sets.
MAX_SHARED = 0.01


def require_apart(store: Store, shown: Mapping[str, Manifest], learnt: Mapping[str, Manifest], gate: str) -> None:
    """Refuse sets that hold what a model learns from.

    Args:
        shown: labelled sets that measure the gate, by asset key.
        learnt: those that its models learn from.

    Raises:
        SourceError: more than `MAX_SHARED` of a set's texts; or a set cannot be read.
    """
    known = {digest for key, made in learnt.items() for digest in _texts(store, key, made)}
    for key, made in shown.items() if known else ():
        texts = list(_texts(store, key, made))
        shared = sum(text in known for text in texts)
        if shared > MAX_SHARED * len(texts):
            raise SourceError(
                f"slices/{gate} may not be measured on {key}",
                found=f"{shared:,} of its {len(texts):,} texts are in {', '.join(learnt)}, which the model learns from",
                expected=f"other text: at most {MAX_SHARED:.0%} the same",
                remedy="cut one set in two, and name one half in corpus.models, the other in corpus.slices",
            )


def _texts(store: Store, key: str, made: Manifest) -> Iterator[bytes]:
    for part in made.parts:
        for row in read_labelled(store.open_path(part.blob).read_bytes(), f"{key}, {part.name}"):
            yield hashlib.sha256(" ".join(row["text"].split()).encode("utf-8", "surrogatepass")).digest()[:16]

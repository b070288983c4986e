"""Documents by the beginning of their text, for a passage without an address."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.provenance.document_rows import DOCUMENTS, DocumentPlace, published
from plinth.storage.parts import iter_batches

#: Fewer characters would find half the corpus.
LEAST_CHARACTERS = 8
#: Places returned at most; a longer passage narrows the search.
MOST = 20
#: Assets that hold or index text and are searched for removed text, whatever was made of them.
SEARCHED_ASSETS: Final = re.compile(r"ledger|takedown/.*|dedup/index|(.*/)?trace_index")
#: Words compared; RE2 refuses very long patterns, and so many words identify a document.
MOST_WORDS = 200


def by_text(ctx: Context, beginning: str) -> list[DocumentPlace]:
    """Every document whose text begins so, but for white space; at most `MOST`. Reads all texts until then."""
    words = beginning.split()
    if sum(map(len, words)) < LEAST_CHARACTERS:
        return []
    pattern = r"^\s*" + r"\s+".join(re.escape(word) for word in words[:MOST_WORDS])
    found: list[DocumentPlace] = []
    for bucket, manifest in published(ctx, DOCUMENTS):
        for number, part in enumerate(manifest.named("part-")):
            first = 0
            for batch in iter_batches(ctx.store, part, ["text"]):
                hits = pc.match_substring_regex(batch.column("text"), pattern).to_numpy(zero_copy_only=False)
                found += [DocumentPlace(bucket, manifest, number, first + int(row)) for row in np.flatnonzero(hits)]
                first += batch.num_rows
                if len(found) >= MOST:
                    return found[:MOST]
    return found

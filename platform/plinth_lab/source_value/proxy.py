"""Gain of a small byte model on held-out text from a sample, compared with the same amount of other corpus text.

    base     a piece of the corpus
    with     base + the sample
    instead  base + the same number of other bytes from the corpus

`with - base` measures whether the sample helps at all. `with - instead` measures whether the sample helps more than
other corpus text, which is the question before a purchase. Slices are the held-out texts of the buckets, and a tenth of
the sample, which is not used for training.

The model trains in seconds. It is an interpolated Witten-Bell model (1991) over contexts of zero to `ORDER - 1` bytes,
as in `evaluation.slices.tables.Trigram`. Counts are in hashed tables, so memory is the same for any text. Talbot and
Osborne 2007 study the cost of hash collisions; here all compared models have the same tables and the same cost:

    p(c | h) = (count(h c) + kinds(h) p(c | shorter h)) / (total(h) + kinds(h))

The model is only a proxy: it learns vocabulary, spelling and phrases from a text, but no facts.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.evaluation import statistics
from plinth.records import Manifest, Part
from plinth_lab.source_value.sample import Floats, batches_of
from plinth_text.compiled import compiled

#: As in `proxy.c`.
ORDER = 5
TABLE_BITS = 22

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]


class ByteModel:
    """Byte n-gram model with counts of n-grams up to length `ORDER`. The tables take 240 MiB for any amount of text."""

    def __init__(self) -> None:
        size = 1 << TABLE_BITS
        self.counts = np.zeros((ORDER, size), dtype=np.uint32)  # of context and byte
        self.contexts = np.zeros((ORDER, 2 * size), dtype=np.uint32)  # total and kinds by turns
        self.trained_bytes = 0

    def train(self, texts: Iterable[bytes]) -> ByteModel:
        """Count the n-grams of texts. At the start of each text, the context is empty."""
        for text in texts:
            count_text(np.frombuffer(text, dtype=np.uint8), self.counts, self.contexts)
            self.trained_bytes += len(text)
        return self

    def forget(self, texts: Sequence[bytes]) -> ByteModel:
        """Undo the last call of `train` with these texts exactly. A second model would double the memory."""
        for text in reversed(texts):
            uncount_text(np.frombuffer(text, dtype=np.uint8), self.counts, self.contexts)
            self.trained_bytes -= len(text)
        return self

    def bits(self, text: bytes) -> float:
        """Return the total loss of the model on a text, in bits: the sum of -log2 p over its bytes."""
        return total_bits(np.frombuffer(text, dtype=np.uint8), self.counts, self.contexts)


@compiled
def count_text(text: U8, counts: U32, contexts: U32) -> None:
    """Count the n-grams of a text. At the start of the text, the context is empty."""


@compiled
def uncount_text(text: U8, counts: U32, contexts: U32) -> None:
    """Undo `count_text` for the text that was counted last."""


@compiled
def total_bits(text: U8, counts: U32, contexts: U32) -> float:
    """Return the total loss on a text in bits: the sum of -log2 p over its bytes."""


#: Bytes of the base at most; the sample, or the rest of the corpus instead, adds at most `ADDED_SHARE` of it.
BASE_BYTES = 8 * 2**20
ADDED_SHARE = 0.5
SLICE_BYTES = 512 * 2**10
HELD_BACK = 10
OWN_SLICE = "the source itself"


def shuffled(parts: Sequence[Part], seed: int) -> list[Part]:
    """Return the corpus parts in a random order that depends only on their content and the seed."""
    return sorted(parts, key=lambda part: random.Random(f"{seed}:{part.blob.sha256}").random())


def deltas(
    ctx: Context, texts: Sequence[str], curated: Mapping[str, Manifest], limit: int, seed: int
) -> dict[str, Any]:
    """Return the bits per byte of every held-out slice under three byte models: `base`, `with` and `instead`.

    Args:
        texts: accepted documents of the sample.
        curated: the corpus, by bucket.
        limit: maximum number of corpus bytes to read.
        seed: random seed for the choice of corpus text.

    Returns:
        `base_bytes`, `added_bytes`, and `slices`: name -> documents, bytes, `base`, `with`, `instead` (bits per
        byte), `helps` (`with - base`) and `beats_more_of_the_same` (`with - instead`), each with value and
        interval; negative is better. Empty if there is no text to add.
    """
    encoded = [text.encode() for text in texts]
    held, added = encoded[::HELD_BACK], [one for i, one in enumerate(encoded) if i % HELD_BACK]
    base_texts, more = _pieces(ctx, curated, limit, seed)
    base_bytes = sum(map(len, base_texts))
    added = list(_until(iter(added), int(ADDED_SHARE * base_bytes)))
    least = min(sum(map(len, added)), sum(map(len, more)))
    added, more = list(_until(iter(added), least)), list(_until(iter(more), least))
    if not added or not more:
        return {}
    slices = {bucket: list(_held(ctx, one)) for bucket, one in curated.items()}
    slices[OWN_SLICE] = list(_until(iter(held), SLICE_BYTES))
    slices = {name: own for name, own in slices.items() if own}
    model = ByteModel().train(base_texts)
    bits = {"base": _bits(model, slices), "with": _bits(model.train(added), slices)}
    bits["instead"] = _bits(model.forget(added).train(more), slices)
    return {
        "base_bytes": base_bytes,
        "added_bytes": sum(map(len, added)),
        "slices": {
            name: _measured({arm: found[name] for arm, found in bits.items()}, own, seed)
            for name, own in slices.items()
        },
    }


def _pieces(ctx: Context, curated: Mapping[str, Manifest], limit: int, seed: int) -> tuple[list[bytes], list[bytes]]:
    """Return two disjoint random pieces of the corpus, for `base` and for `instead`."""
    parts = _turns({bucket: shuffled(one.named("part-"), seed) for bucket, one in curated.items()}, limit)
    share = max(1, limit // max(1, len(parts)))
    there = sum(min(share, int(part.stats.get("text_bytes", share))) for part in parts)
    wanted = min(1.0, BASE_BYTES * (1 + ADDED_SHARE) / there) if there else 0.0
    base: list[bytes] = []
    more: list[bytes] = []
    for part in parts:
        picks = random.Random(f"{seed}:{part.blob.sha256}")
        texts = (text.encode() for batch in batches_of(ctx.store, [part], share) for text in batch.to_pylist())
        for text in _until(texts, share):
            drawn = picks.random() * (1 + ADDED_SHARE) / wanted
            if drawn < 1 + ADDED_SHARE:
                (base if drawn < 1 else more).append(text)
    return base, more


def _turns(parts: Mapping[str, Sequence[Part]], limit: int) -> list[Part]:
    """Take parts from all buckets in turn, up to a number of bytes. In this way, small buckets are included."""
    chosen: list[Part] = []
    held = 0
    for row in zip_longest(*parts.values()):
        for part in filter(None, row):
            chosen.append(part)
            held += int(part.stats.get("text_bytes", limit))
        if held >= limit:
            break
    return chosen


def _held(ctx: Context, curated: Manifest) -> Iterator[bytes]:
    held = (text.encode() for batch in batches_of(ctx.store, curated.named("heldout-")) for text in batch.to_pylist())
    yield from _until(held, SLICE_BYTES)


def _until(texts: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield texts until a number of bytes is reached. The last text may exceed this number."""
    held = 0
    while held < size:
        text = next(texts, None)
        if text is None:
            return
        held += len(text)
        if text:
            yield text


def _bits(model: ByteModel, slices: Mapping[str, Sequence[bytes]]) -> dict[str, Floats]:
    """Return the loss of the model on each text in bits, [D], by slice."""
    return {name: np.array([model.bits(text) for text in texts]) for name, texts in slices.items()}


def _measured(bits: Mapping[str, Floats], texts: Sequence[bytes], seed: int) -> dict[str, Any]:
    """Return the bits per byte of a slice under each of the three models, and the gains from the sample."""
    sizes = np.array([len(text) for text in texts], dtype=np.float64)
    found: dict[str, Any] = {"documents": len(texts), "bytes": int(sizes.sum())}
    found |= {name: float(own.sum() / sizes.sum()) for name, own in bits.items()}
    for name, other in (("helps", "base"), ("beats_more_of_the_same", "instead")):
        gap = statistics.ratio_difference(bits["with"], bits[other], sizes, seed=seed)
        found[name] = {"value": gap.value, "low": gap.low, "high": gap.high}
    return found

"""Look-alikes on real documents: recall by share of replaced words, and pairs found beyond the planted ones.

Planted: sentences shuffled, words rotated within each sentence, a share of them replaced by words of other
documents. Reported for every threshold: the share of pairs of a full comparison that the search finds,
and the number of pairs that were not planted and share at least 70% of their vocabulary.

    python tests/benchmarks/bench_semantic.py [--documents 3000]
"""

from __future__ import annotations

import argparse
import random
import re

import numpy as np
import pyarrow as pa
from bench_minhash import real_documents

from plinth.corpus.dedup import semantic as semantic_pairs
from plinth.corpus.dedup.parameters import MinHash, Semantic
from plinth_text import similarity
from plinth_text.words import jaccard, ngram_sets

REPLACED = (0.0, 0.02, 0.05, 0.1, 0.2)
THRESHOLDS = (0.98, 0.95, 0.9, 0.85)
PLANTED = 400


def reworded(text: str, share: float, others: list[str], rng: random.Random) -> str:
    """Another order of sentences and words, and a share of the words replaced."""
    sentences = [piece.split() for piece in re.split(r"(?<=[.:!?\n])\s+", text) if piece.strip()]
    rng.shuffle(sentences)
    lines = []
    for words in sentences:
        cut = rng.randrange(len(words))
        moved = words[cut:] + words[:cut]
        lines.append(" ".join(rng.choice(others) if rng.random() < share else word for word in moved))
    return "\n".join(lines)


def found_pairs(vectors: similarity.I16, threshold: float) -> set[tuple[int, int]]:
    """Pairs that the stage's own search finds."""
    total = vectors.sum(axis=0, dtype=np.int64)
    shape = semantic_pairs.search(total, len(vectors), threshold, Semantic(buckets=("x",)).recall)
    keys = semantic_pairs.simhash(vectors, shape).reshape(-1)
    order = np.argsort(keys, kind="stable")
    at = np.repeat(np.arange(len(vectors), dtype=np.uint64), shape.tables)[order]
    pairs = np.unique(np.stack(semantic_pairs.nominate(keys[order], at), axis=1), axis=0).astype(np.int64)
    limit = np.float32(threshold)
    return {(int(a), int(b)) for a, b in pairs if similarity.cosine(vectors[a], vectors[b]) >= limit}


def every_pair(vectors: similarity.I16, threshold: float) -> int:
    """Return the number of pairs that a full comparison finds."""
    unit = vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return int((np.triu(unit @ unit.T, 1) >= threshold).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=3000)
    rng, real = random.Random(5), real_documents(60)
    texts = [text for text in real if len(text.split()) >= 100][: parser.parse_args().documents]
    words = [word for text in texts for word in text.split()]
    planted = [(i, REPLACED[n % len(REPLACED)]) for n, i in enumerate(rng.sample(range(len(texts)), PLANTED))]
    every = [*texts, *(reworded(texts[i], share, words, rng) for i, share in planted)]
    column = pa.array(every, pa.large_string())
    params = Semantic(buckets=("x",))
    df, count = similarity.frequencies(column, params.min_words)
    vectors, _ = similarity.vectors(column, df, count, params.dimensions, params.min_words)
    single, shingles = ngram_sets(column, 1), ngram_sets(column, 5)
    close = MinHash().threshold
    seen = sum(jaccard(shingles[i], shingles[len(texts) + n]) >= close for n, (i, _) in enumerate(planted))
    print(f"{len(texts)} documents, {PLANTED} planted; Jaccard of 5-grams reaches {close} for {seen} of the planted")
    print("threshold  recall by replaced words " + " ".join(f"{share:>6.0%}" for share in REPLACED) + "   found / all")
    for threshold in THRESHOLDS:
        pairs = found_pairs(vectors, threshold)
        hits = {share: [0, 0] for share in REPLACED}
        for n, (i, share) in enumerate(planted):
            hits[share][0] += (i, len(texts) + n) in pairs
            hits[share][1] += 1
        recall = " ".join(f"{found / of:6.1%}" for found, of in hits.values())
        strangers = [jaccard(single[a], single[b]) for a, b in pairs if b < len(texts)]
        alike = sum(one >= 0.7 for one in strangers)
        print(
            f"{threshold:9.2f}  {'':25}{recall}   {len(pairs)} / {every_pair(vectors, threshold)}; "
            f"not planted {len(strangers)}, {alike} of them share 70% of their words"
        )


if __name__ == "__main__":
    main()

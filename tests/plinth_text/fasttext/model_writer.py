"""Models of random numbers in fastText's own format, of every kind, some kilobytes each."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WORDS = ("</s>", "the", "über", "的", "ab")
LABELS = ("en", "de", "zh", "x-y", "fr")


@dataclass(frozen=True)
class Quantised:
    """Quantization of rows.

    Args:
        norms, output: whether norms and the output rows are quantized, too.
        pruned: n-grams that are kept; None: all.
    """

    norms: bool = False
    output: bool = False
    pruned: int | None = None


def write(
    path: Path,
    *,
    loss: int = 3,
    dim: int = 10,
    minn: int = 0,
    maxn: int = 0,
    word_ngrams: int = 1,
    bucket: int = 500,
    quantised: Quantised | None = None,
    prefix: str = "__label__",
    labels: Sequence[str] = LABELS,
    words: Sequence[str] = WORDS,
    seed: int = 1,
) -> Path:
    """Write a supervised model, as `FastText::saveModel` does."""
    rng = np.random.default_rng(seed)
    kept = None if quantised is None else quantised.pruned
    out = struct.pack("<ii12id", 793712314, 12, dim, 5, 5, 1, 5, word_ngrams, loss, 3, bucket, minn, maxn, 100, 1e-4)
    size = len(words) + len(labels)
    out += struct.pack("<iiiqq", size, len(words), len(labels), 1000, -1 if kept is None else kept)
    for place, name in enumerate([*words, *(prefix + label for label in labels)]):
        out += name.encode() + b"\0" + struct.pack("<qb", 100 // (place % 5 + 1), place >= len(words))
    if kept is not None:
        hashes = rng.choice(bucket, kept, replace=False)
        out += np.stack([hashes, np.arange(kept)], axis=1).astype("<i4").tobytes()
    rows = len(words) + (bucket if kept is None else kept)
    out += struct.pack("<?", quantised is not None) + _matrix(rng, rows, dim, quantised)
    whole = quantised if quantised is not None and quantised.output else None
    out += struct.pack("<?", whole is not None) + _matrix(rng, len(labels), dim, whole)
    path.write_bytes(out)
    return path


def _matrix(rng: np.random.Generator, rows: int, dim: int, quantised: Quantised | None) -> bytes:
    if quantised is None:
        return struct.pack("<qq", rows, dim) + rng.normal(size=(rows, dim)).astype("<f4").tobytes()
    parts = (dim + 1) // 2
    out = struct.pack("<?qqi", quantised.norms, rows, dim, rows * parts)
    out += rng.integers(0, 256, rows * parts, np.uint8).tobytes() + _centroids(rng, dim, parts)
    if quantised.norms:
        out += rng.integers(0, 256, rows, np.uint8).tobytes() + _centroids(rng, 1, 1)
    return out


def _centroids(rng: np.random.Generator, dim: int, parts: int) -> bytes:
    width = 2 if dim > 1 else 1
    sizes = struct.pack("<4i", dim, parts, width, dim - (parts - 1) * width)
    return sizes + rng.normal(size=dim * 256).astype("<f4").tobytes()

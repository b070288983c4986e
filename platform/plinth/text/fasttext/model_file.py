"""Read a fastText model file into flat arrays: dictionary, input rows, output rows, label tree.

The format is that of fastText 0.9.2 (`Dictionary::load`, `QMatrix::load`, `Model::buildTree`; Joulin et al. 2016),
versions 11 and 12, plain (`.bin`) or quantised and pruned (`.ftz`). Product-quantised rows are written out as
floats once: a pruned model has few of them. Does not belong here: prediction (`predict`).

Letters: W words, L labels, R input rows, P dimensions filled up to a multiple of `LANES`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.errors import SourceError

MAGIC, VERSIONS = 793712314, (11, 12)
#: Rows are filled up with zeros to a multiple of this, so that loops over them have a fixed length.
LANES = 16
HIERARCHICAL, SOFTMAX = 1, 3
LABEL_PREFIX = "__label__"
EOS = b"</s>"

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class FastTextModel:
    """Everything that prediction needs.

    Args:
        labels: without prefix, most frequent first.
        dim: of a row; `rows` and `output` have P columns.
        hierarchical: labels are leaves of a Huffman tree; else plain softmax.
        minn, maxn, bucket: character n-grams and the number of their hashes.
        words, word_ends: bytes of all words and labels, one after the other; where each ends, [W + L].
        rows: input vectors [R, P]: words first, then the n-grams that were kept, by hash.
        bits, before: for every 32 n-gram hashes (`bucket` of them): a bit for each that has a row; how many rows of
            n-grams come before these.
        output: [L, P]; for a tree the rows of its L - 1 inner nodes, and one unused.
        left, right: children of a node, -1 for a leaf; the last node is the root, the first L are the labels.
    """

    labels: tuple[str, ...]
    dim: int
    hierarchical: bool
    minn: int
    maxn: int
    bucket: int
    nwords: int
    words: npt.NDArray[np.uint8]
    word_ends: npt.NDArray[np.int64]
    rows: F32
    bits: npt.NDArray[np.uint32]
    before: npt.NDArray[np.uint32]
    output: F32
    left: I32
    right: I32


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path, self.data, self.at = path, path.read_bytes(), 0

    def fields(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise self.broken(f"{len(self.data)} bytes", f"{size} more at byte {self.at}")
        self.at += size
        return self.data[self.at - size : self.at]

    def array(self, kind: str, count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self.take(np.dtype(kind).itemsize * count), dtype=kind)

    def name(self) -> bytes:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise self.broken("a name without an end", "a zero byte after it")
        return self.take(end + 1 - self.at)[:-1]

    def broken(self, found: object, expected: object) -> SourceError:
        return SourceError(
            f"{self.path.name} is no fastText model that can be read here", found=found, expected=expected
        )


def read(path: Path) -> FastTextModel:
    """Read a supervised model.

    Raises:
        SourceError: truncated, another format or version, or a model with word n-grams or another loss.
    """
    reader = _Reader(path)
    magic, version = reader.fields("ii")
    if magic != MAGIC or version not in VERSIONS:
        raise reader.broken(f"magic {magic}, version {version}", f"{MAGIC}, one of {VERSIONS}")
    dim, _, _, _, _, word_ngrams, loss, kind, bucket, minn, maxn, _, _ = reader.fields("12id")
    maxn = 0 if kind == 3 and version == 11 else maxn  # old supervised models have no n-grams of characters
    if kind != 3 or word_ngrams > 1 or loss not in (HIERARCHICAL, SOFTMAX) or not 0 < dim <= 4096:
        found = f"kind {kind}, word n-grams {word_ngrams}, loss {loss}, {dim} dimensions"
        raise reader.broken(found, "supervised (3), no word n-grams, loss 1 (hs) or 3 (softmax)")
    names, counts, nwords, pruned = _dictionary(reader)
    quantised = bool(reader.fields("?")[0])
    rows = _quantised(reader) if quantised else _matrix(reader)
    output = _quantised(reader) if bool(reader.fields("?")[0]) and quantised else _matrix(reader)
    bits, before, order = _kept(pruned, bucket if maxn else 0)
    if rows.shape[0] < nwords + (order.size if order is not None else bucket * (maxn > 0)):
        raise reader.broken(f"{rows.shape[0]} rows", "one for each word and n-gram")
    if order is not None:
        rows = np.concatenate([rows[:nwords], rows[nwords + order]])
    labels = [name.decode("utf-8", "replace").removeprefix(LABEL_PREFIX) for name in names[nwords:]]
    left, right = _tree(counts[nwords:]) if loss == HIERARCHICAL else (np.zeros(0, np.int32), np.zeros(0, np.int32))
    return FastTextModel(
        labels=tuple(labels),
        dim=dim,
        hierarchical=loss == HIERARCHICAL,
        minn=minn,
        maxn=maxn,
        bucket=bucket,
        nwords=nwords,
        words=np.frombuffer(b"".join(names), dtype=np.uint8),
        word_ends=np.cumsum([len(name) for name in names], dtype=np.int64),
        rows=_padded(rows),
        bits=bits,
        before=before,
        output=_padded(output),
        left=left,
        right=right,
    )


def _dictionary(reader: _Reader) -> tuple[list[bytes], list[int], int, npt.NDArray[np.int32] | None]:
    size, nwords, nlabels, _, pruned = reader.fields("iiiqq")
    if size != nwords + nlabels or nlabels < 1 or nwords < 0:
        raise reader.broken(f"{size} entries, {nwords} words, {nlabels} labels", "words and labels")
    names, counts = [], []
    for _ in range(size):
        names.append(reader.name())
        counts.append(reader.fields("qb")[0])
    return names, counts, nwords, None if pruned < 0 else reader.array("<i4", 2 * pruned).reshape(-1, 2)


def _matrix(reader: _Reader) -> F32:
    height, width = reader.fields("qq")
    return reader.array("<f4", height * width).reshape(height, width)


def _quantised(reader: _Reader) -> F32:
    """Rows of a product-quantised matrix: the centroids that each row names, times its norm."""
    with_norms, height, width, size = reader.fields("?qqi")
    codes = reader.array("u1", size)
    rows = _centroids(reader, codes, height)
    if rows.shape[1] != width:
        raise reader.broken(f"{rows.shape[1]} columns", width)
    if with_norms:
        norm_codes = reader.array("u1", height)
        rows = rows * _centroids(reader, norm_codes, height)
    return rows


def _centroids(reader: _Reader, codes: npt.NDArray[np.uint8], height: int) -> F32:
    dim, parts, width, last = reader.fields("4i")
    values = reader.array("<f4", dim * 256)
    if codes.size != height * parts or (parts - 1) * width + last != dim:
        raise reader.broken(f"{codes.size} codes", height * parts)
    codes = codes.reshape(height, parts)
    pieces = []
    for part in range(parts):
        size = last if part == parts - 1 else width
        table = values[part * 256 * width : part * 256 * width + 256 * size].reshape(256, size)
        pieces.append(table[codes[:, part]])
    return np.concatenate(pieces, axis=1)


def _kept(
    pruned: npt.NDArray[np.int32] | None, bucket: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], Any]:
    """`FastTextModel.bits`, `FastTextModel.before`, and the rows in the order of the hashes (None: all, in order)."""
    kept = np.zeros(bucket // 32 * 32 + 32, dtype=np.uint8)
    if pruned is None:
        kept[:bucket] = 1
        order = None
    else:
        inside = pruned[(pruned[:, 0] >= 0) & (pruned[:, 0] < bucket)]
        inside = inside[np.argsort(inside[:, 0])]
        kept[inside[:, 0]] = 1
        order = inside[:, 1]
    counted = kept.reshape(-1, 32).sum(axis=1, dtype=np.uint32)
    before = np.cumsum(counted, dtype=np.uint32) - counted
    return np.packbits(kept, bitorder="little").view("<u4"), before, order


def _tree(counts: list[int]) -> tuple[I32, I32]:
    """The Huffman tree over labels, merged in the order in which fastText merges."""
    size = len(counts)
    weights = [*counts, *[10**15] * (size - 1)]
    left, right = np.full(2 * size - 1, -1, np.int32), np.full(2 * size - 1, -1, np.int32)
    leaf, node = size - 1, size
    for inner in range(size, 2 * size - 1):
        pair = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                pair.append(leaf)
                leaf -= 1
            else:
                pair.append(node)
                node += 1
        left[inner], right[inner] = pair
        weights[inner] = weights[pair[0]] + weights[pair[1]]
    return left, right


def _padded(rows: F32) -> F32:
    width = -(-rows.shape[1] // LANES) * LANES
    out = np.zeros((rows.shape[0], width), dtype=np.float32)
    out[:, : rows.shape[1]] = rows
    return out

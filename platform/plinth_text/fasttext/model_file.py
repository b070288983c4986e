"""Reader for fastText model files: dictionary, input rows, output rows, label tree.

The format is that of fastText 0.9.2 (`Dictionary::load`, `QMatrix::load`, `Model::buildTree`; Joulin et al. 2016),
versions 11 and 12, for supervised models: dense (`.bin`) or quantized and pruned (`.ftz`), with any fastText loss.
Dense rows are memory-mapped, so the workers of a machine share them. Product-quantized rows are expanded to floats if
there are few, as in a pruned model; otherwise they stay codes. Prediction is in `predict`.

Letters: W words, L labels, R input rows, N dimensions, P dimensions padded to a multiple of `LANES`, Q parts of a row
that have a code each.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth_text.arrays import F32, I32, I64, U8, U32
from plinth_text.compiled import compiled
from plinth_text.errors import ModelFileError

MAGIC, VERSIONS, SUPERVISED = 793712314, (11, 12), 3
#: Rows are filled up with zeros to a multiple of this, so that loops over them have a fixed length.
LANES = 16
HIERARCHICAL, NEGATIVE_SAMPLING, SOFTMAX, ONE_VS_ALL = 1, 2, 3, 4
LOSSES = (HIERARCHICAL, NEGATIVE_SAMPLING, SOFTMAX, ONE_VS_ALL)
LABEL_PREFIX = "__label__"
EOS = b"</s>"
#: Bounds on what a small file can ask for.
MAX_DIM, MAX_BUCKET, MAX_NGRAM = 4096, 1 << 28, 64
#: Numbers of a quantized matrix that are written out as floats, a quarter of a gigabyte of them; more stay codes.
WRITTEN_OUT = 1 << 26



@dataclass(frozen=True)
class CodedRows:
    """Product-quantized rows: each part of a row is one of 256 centroids.

    Args:
        codes: [R, Q] centroid numbers.
        centroids: centroids of all parts, one part after another: 256 of `width` numbers each; the last part has 256 of
            `last` numbers.
        norms: [R] factor of each row; empty if rows are not scaled.
    """

    codes: U8
    centroids: F32
    width: int
    last: int
    norms: F32

    @property
    def dim(self) -> int:
        return int((self.codes.shape[1] - 1) * self.width + self.last)

    def floats(self) -> F32:
        """Return the rows expanded to floats, [R, N]."""
        pieces = []
        for part in range(self.codes.shape[1]):
            size = self.last if part == self.codes.shape[1] - 1 else self.width
            table = self.centroids[part * 256 * self.width :][: 256 * size].reshape(256, size)
            pieces.append(table[self.codes[:, part]])
        rows = np.concatenate(pieces, axis=1)
        return rows * self.norms[:, None] if self.norms.size else rows

    def take(self, order: npt.NDArray[np.int64]) -> CodedRows:
        norms = self.norms[order] if self.norms.size else self.norms
        return CodedRows(self.codes[order], self.centroids, self.width, self.last, norms)


@dataclass(frozen=True)
class FastTextModel:
    """Model with everything that prediction needs.

    Args:
        labels: labels without the prefix `__label__`, most frequent first.
        dim: number of dimensions N.
        loss: one of `LOSSES`. If it is `HIERARCHICAL`, labels are leaves of a Huffman tree.
        word_ngrams: maximum number of words in a word n-gram feature; 1 if there are none.
        minn, maxn: minimum and maximum length of character n-grams.
        bucket: number of hashes of all n-grams.
        words: bytes of the dictionary, with words first and then labels, and other bytes in between.
        word_starts, word_ends: [W + L] position of each word and label in `words`.
        rows: [R, N] input vectors: words first, then the kept n-grams by hash; empty if `coded` is used.
        coded: quantized input vectors, or None.
        bits: one bit per n-gram hash (of `bucket`), which is set if the n-gram has a row.
        before: number of n-gram rows before each group of 32 hashes.
        output: [L, P] output rows; for a tree, the rows of its L - 1 inner nodes, and one unused row.
        left, right: children of each node, -1 for a leaf; the last node is the root, and the first L are the labels.
    """

    labels: tuple[str, ...]
    dim: int
    loss: int
    word_ngrams: int
    minn: int
    maxn: int
    bucket: int
    nwords: int
    words: U8
    word_starts: I64
    word_ends: I64
    rows: F32
    coded: CodedRows | None
    bits: U32
    before: U32
    output: F32
    left: I32
    right: I32


def read(path: Path) -> FastTextModel:
    """Read a supervised model from a file.

    Raises:
        ModelFileError: the file is truncated, has another format or version, is not a supervised model, or has
            impossible sizes.
    """
    file = MappedFile(path)
    magic, version = file.fields("ii")
    if magic != MAGIC or version not in VERSIONS:
        raise file.broken(f"magic {magic}, version {version}", f"{MAGIC}, one of {VERSIONS}")
    dim, _, _, _, _, word_ngrams, loss, kind, bucket, minn, maxn, _, _ = file.fields("12id")
    if kind != SUPERVISED or loss not in LOSSES:
        raise file.broken(f"kind {kind}, loss {loss}", f"kind {SUPERVISED} (supervised), one of the losses {LOSSES}")
    maxn = 0 if version == VERSIONS[0] else maxn  # old supervised models have no n-grams of characters
    _require_sizes(file, dim, word_ngrams, bucket, minn, maxn)
    size, nwords, nlabels, _, pruned_size = file.fields("iiiqq")
    if size != nwords + nlabels or nlabels < 1 or nwords < 0:
        raise file.broken(f"{size} entries, {nwords} words, {nlabels} labels", "words and labels")
    words, starts, ends, counts = file.names(size, nwords)
    pruned = None if pruned_size < 0 else file.array("<i4", 2 * pruned_size).reshape(-1, 2)
    rows, coded = _matrix(file, dim, coded=bool(file.fields("?")[0]))
    if coded is None and pruned is not None:
        raise file.broken("dense rows and a pruned dictionary", "quantized rows")
    qout = bool(file.fields("?")[0])
    output, output_coded = _matrix(file, dim, coded=qout and coded is not None)
    if output_coded is not None:
        if output_coded.codes.shape[0] * dim > WRITTEN_OUT:
            found = f"{output_coded.codes.shape[0]} quantized output rows"
            raise file.broken(found, f"at most {WRITTEN_OUT} numbers")
        output = output_coded.floats()
    if output.shape[0] < nlabels:
        raise file.broken(f"{output.shape[0]} output rows", f"{nlabels}, one for each label")
    have = coded.codes.shape[0] if coded else rows.shape[0]
    used = bucket if maxn or word_ngrams > 1 else 0
    bits, before, order = _kept(file, pruned, used, have - nwords)
    if coded is not None:
        coded = coded if order is None else coded.take(np.concatenate([np.arange(nwords), nwords + order]))
        if coded.codes.shape[0] * dim <= WRITTEN_OUT:
            rows, coded = coded.floats(), None
    left, right = _tree(file, counts[nwords:].tolist() if loss == HIERARCHICAL else [])
    return FastTextModel(
        labels=tuple(
            words[start:end].tobytes().decode("utf-8", "replace").removeprefix(LABEL_PREFIX)
            for start, end in zip(starts[nwords:].tolist(), ends[nwords:].tolist(), strict=True)
        ),
        dim=dim,
        loss=loss,
        word_ngrams=word_ngrams,
        minn=minn,
        maxn=maxn,
        bucket=bucket,
        nwords=nwords,
        words=words,
        word_starts=starts,
        word_ends=ends,
        rows=rows,
        coded=coded,
        bits=bits,
        before=before,
        output=_padded(output[:nlabels]),
        left=left,
        right=right,
    )


def _require_sizes(file: MappedFile, dim: int, word_ngrams: int, bucket: int, minn: int, maxn: int) -> None:
    ngrams = maxn > 0 or word_ngrams > 1
    if not (
        0 < dim <= MAX_DIM
        and 0 <= minn <= MAX_NGRAM
        and 0 <= maxn <= MAX_NGRAM
        and 0 <= word_ngrams <= MAX_NGRAM
        and (not ngrams or 0 < bucket <= MAX_BUCKET)
    ):
        found = f"{dim} dimensions, word n-grams {word_ngrams}, n-grams of {minn} to {maxn}, {bucket} hashes"
        raise file.broken(found, f"at most {MAX_DIM} dimensions, n-grams of {MAX_NGRAM}, {MAX_BUCKET} hashes")


def _matrix(file: MappedFile, dim: int, *, coded: bool) -> tuple[F32, CodedRows | None]:
    """Read a dense or quantized matrix."""
    if coded:
        return np.zeros((0, dim), np.float32), _coded(file, dim)
    height, width = file.fields("qq")
    if height < 0 or width != dim:
        raise file.broken(f"a matrix of {height} rows, {width} columns", f"{dim} columns")
    return file.array("<f4", height * width).reshape(height, width), None


def _coded(file: MappedFile, dim: int) -> CodedRows:
    with_norms, height, width, size = file.fields("?qqi")
    codes = file.take(size)
    quantised, parts, part_width, last, centroids = _centroids(file)
    if width != dim or quantised != dim or height < 0 or codes.size != height * parts:
        found = f"{codes.size} codes for {height} rows of {width} columns"
        raise file.broken(found, f"{parts} codes per row, {dim} columns")
    norms = np.zeros(0, np.float32)
    if with_norms:
        norm_codes = file.take(height)
        one, *_, table = _centroids(file)
        if one != 1:
            raise file.broken(f"norms of {one} columns", 1)
        norms = table[norm_codes]
    return CodedRows(codes.reshape(height, parts), centroids, part_width, last, norms)


def _centroids(file: MappedFile) -> tuple[int, int, int, int, F32]:
    """Return the header and table of a quantizer: dimensions, parts, size of a part and of the last part, centroids."""
    dim, parts, width, last = file.fields("4i")
    if not (0 < dim <= MAX_DIM and parts > 0 and 0 < last <= width and (parts - 1) * width + last == dim):
        raise file.broken(f"{parts} parts of {width} dimensions, the last of {last}", f"{dim} dimensions in total")
    return dim, parts, width, last, file.array("<f4", dim * 256)


def _kept(
    file: MappedFile, pruned: npt.NDArray[np.int32] | None, bucket: int, rows: int
) -> tuple[U32, U32, npt.NDArray[np.int64] | None]:
    """Return `FastTextModel.bits`, `FastTextModel.before`, and the order of the n-gram rows by hash.

    The order is None if all n-grams are kept, because their rows are in order already.
    """
    kept = np.zeros(bucket // 32 * 32 + 32, dtype=np.uint8)
    if pruned is None:
        kept[:bucket] = 1
        order = None
        least, most = 0, bucket - 1
    else:
        inside = pruned[(pruned[:, 0] >= 0) & (pruned[:, 0] < bucket)].astype(np.int64)
        inside = inside[np.argsort(inside[:, 0])]
        kept[inside[:, 0]] = 1
        order = inside[:, 1]
        least, most = int(order.min(initial=0)), int(order.max(initial=-1))
        if int(kept.sum()) != order.size:
            raise file.broken("an n-gram hash that occurs twice", "each hash once")
    if least < 0 or most >= rows:
        raise file.broken(f"{rows} rows of n-grams", "one row for each word and n-gram")
    counted = kept.reshape(-1, 32).sum(axis=1, dtype=np.uint32)
    before = np.cumsum(counted, dtype=np.uint32) - counted
    return np.packbits(kept, bitorder="little").view("<u4"), before, order


def _tree(file: MappedFile, counts: list[int]) -> tuple[I32, I32]:
    """Build the Huffman tree over labels, with the same merge order as fastText. Without counts, the tree is empty."""
    size, unmade = len(counts), 10**15
    if min(counts, default=0) < 0 or sum(counts) >= unmade:
        raise file.broken("label counts that are negative or too large", f"a sum below {unmade}")
    if not counts:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    weights = [*counts, *[unmade] * (size - 1)]
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


# Take fields, arrays and the dictionary out of a mapped file; workers share what they read of it.
#
# Nothing is allocated for a size that the file claims and does not have.

#: Bytes of a dictionary entry in addition to its name: a zero, the count, the kind.
_ENTRY = 10


class MappedFile:
    """File that is read from front to back. Arrays are views into the mapping, and may be unaligned."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        empty = path.stat().st_size == 0  # which cannot be mapped
        self.data: U8 = np.zeros(0, np.uint8) if empty else np.asarray(np.memmap(path, np.uint8, mode="r"))

    def fields(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)).tobytes())

    def take(self, size: int) -> U8:
        if size < 0 or self.at + size > self.data.size:
            raise self.broken(f"{self.data.size} bytes", f"{size} more at byte {self.at}")
        self.at += size
        return self.data[self.at - size : self.at]

    def array(self, kind: str, count: int) -> npt.NDArray[Any]:
        return self.take(np.dtype(kind).itemsize * count).view(kind)

    def names(self, size: int, nwords: int) -> tuple[U8, I64, I64, I64]:
        """Return the entries of a dictionary, `nwords` words followed by labels.

        The result is the bytes of all entries, and the start, end and count of each entry.
        """
        if size * _ENTRY > self.data.size - self.at:
            raise self.broken(f"{self.data.size} bytes", f"{size} entries at byte {self.at}")
        starts, ends, counts = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
        data = self.data[self.at :]
        used = entries(data, nwords, starts, ends, counts)
        if used < 0:
            raise self.broken(
                f"a damaged dictionary at byte {self.at}", "words, then labels, each followed by a zero byte"
            )
        self.at += used
        return data[:used], starts, ends, counts

    def broken(self, found: object, expected: object) -> ModelFileError:
        return ModelFileError(
            f"{self.path.name} is not a readable fastText model", found=found, expected=expected
        )


@compiled
def entries(data: U8, nwords: int, starts: I64, ends: I64, counts: I64) -> int:
    """Write the start, end and count of each dictionary entry into the arrays.

    Return the size of the dictionary in bytes, or -1 if it is damaged.
    """

"""Encode with the tokenizers library, which decides what the tokens of a text are. Other encoders only are faster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

#: An encoding of the library takes about a hundred times the memory of its text, so texts are encoded in small batches,
#: and a longer text in pieces.
BATCH_CHARACTERS = 2**19

#: Between two words the pre-tokenizer always cuts, so a piece that ends here changes no token.
_SEAM = re.compile(r"(?<=\w)[ \n](?=\w)")
_SEAM_REACH = 2**16

#: Text of short documents that is encoded at once. Buffers of this size are reused; for larger ones the system maps new
#: pages with every batch, which costs a seventh of the time.
COLUMN_BYTES = 2**21

#: Token ids of several texts, each followed by the token that ends it; start of each text in them, [texts + 1].
Encoded: TypeAlias = tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]


class Encoder(Protocol):
    """Encoder of columns of text. `name` names the library, with its version."""

    name: str

    def encode(self, texts: pa.Array, dtype: str) -> Encoded:
        """Return the token ids of all texts, each followed by the token that ends a text, and the start of each."""


class Reference:
    """Encoder for tokenizers of any form.

    Args:
        tokenizer: tokenizer that does not read special tokens from text.
        end: token after each text.
    """

    name = "tokenizers"

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self._tokenizer, self._end = tokenizer, np.array([end], np.uint32)

    def encode(self, texts: pa.Array, dtype: str) -> Encoded:
        """Return the token ids of all texts, each followed by `end`, and the start of each text, [texts + 1]."""
        end = self._end.astype(dtype)
        made = list(_whole(self._tokenizer, texts.to_pylist(), dtype))
        first = np.cumsum([0, *(len(ids) + 1 for ids in made)], dtype=np.int64)
        return np.concatenate([np.empty(0, dtype), *(part for ids in made for part in (ids, end))]), first


def slices(column: pa.Array) -> Iterator[pa.Array]:
    """Yield a column in order, in slices of about `COLUMN_BYTES`; a longer text is alone."""
    sizes = np.cumsum(pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    start = 0
    while start < len(column):
        before = sizes[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(sizes, before + COLUMN_BYTES, side="right")))
        yield column.slice(start, stop - start)
        start = stop


def joined(parts: Iterable[Encoded], dtype: str) -> Encoded:
    """Return encoded columns as one."""
    ids, lengths = [np.empty(0, dtype)], [np.zeros(1, np.int64)]
    for tokens, first in parts:
        ids.append(tokens)
        lengths.append(np.diff(first))
    return np.concatenate(ids), np.cumsum(np.concatenate(lengths))


def pieces(text: str, limit: int = BATCH_CHARACTERS) -> list[str]:
    """Split a text into pieces of at most `limit` characters that result in the same tokens as the whole text.

    Texts are cut between two words. If no word ends within 65,536 characters, the text is cut inside a word. A cut
    inside a word may change the tokens next to it, but never the text that they decode to.
    """
    result, start = [], 0
    while len(text) - start > limit:
        end = start + limit
        seams = [match.start() for match in _SEAM.finditer(text, max(start + 1, end - _SEAM_REACH), end)]
        stop = seams[-1] if seams else end
        result.append(text[start:stop])
        start = stop
    return [*result, text[start:]]


def _whole(tokenizer: Tokenizer, texts: Iterable[str], dtype: str) -> Iterator[NDArray[np.unsignedinteger]]:
    marked = ((piece, last) for text in texts for piece, last in _marked(pieces(text)))
    whole: list[NDArray[np.unsignedinteger]] = []
    for ids, last in _encode(tokenizer, marked, dtype):
        whole.append(ids)
        if last:
            yield whole[0] if len(whole) == 1 else np.concatenate(whole)
            whole = []


def _marked(cut: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text, each with True if it is the last piece."""
    return ((piece, i == len(cut) - 1) for i, piece in enumerate(cut))


def _encode(
    tokenizer: Tokenizer, marked: Iterable[tuple[str, bool]], dtype: str
) -> Iterator[tuple[NDArray[np.unsignedinteger], bool]]:
    """Yield the token ids of each piece with the piece's mark, encoded in batches of limited text size."""
    batch: list[tuple[str, bool]] = []
    held = 0
    for item in marked:
        batch.append(item)
        held += len(item[0])
        if held >= BATCH_CHARACTERS:
            yield from _encode_batch(tokenizer, batch, dtype)
            batch, held = [], 0
    yield from _encode_batch(tokenizer, batch, dtype)


def _encode_batch(
    tokenizer: Tokenizer, batch: Sequence[tuple[str, bool]], dtype: str
) -> Iterator[tuple[NDArray[np.unsignedinteger], bool]]:
    encodings = tokenizer.encode_batch_fast([piece for piece, _ in batch], add_special_tokens=False)
    for encoding, (_, last) in zip(encodings, batch, strict=True):
        yield np.array(encoding.ids, dtype=dtype), last

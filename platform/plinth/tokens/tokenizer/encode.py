"""Texts to token ids.

Text never becomes a special token: a document that holds the characters `<|endoftext|>` gets the tokens of
those characters, so an end-of-text token in a shard is the end of a document and nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plinth.errors import IntegrityError
from plinth.records import Blob
from plinth.storage.store import Store
from plinth.tokens.tokenizer.encoder import Encoder
from plinth.tokens.tokenizer.words import pattern_of

#: An encoding of the library takes about a hundred times the memory of its text, so texts are encoded in small batches,
#: and a longer text in pieces.
BATCH_CHARACTERS = 2**19

#: Between two words the pre-tokenizer always cuts, so a piece that ends here changes no token.
_SEAM = re.compile(r"(?<=\w)[ \n](?=\w)")
_SEAM_REACH = 2**16


def load(store: Store, blob: Blob) -> Tokenizer:
    """A tokenizer from the store, verified; special tokens are never read out of text.

    Raises:
        MissingError, IntegrityError: absent, changed, or not a tokenizer.
    """
    data = store.read_bytes(blob)
    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception as error:  # the library raises bare `Exception`
        raise IntegrityError(
            f"blob {blob.md5} is not a tokenizer", found=error, expected="JSON of Hugging Face tokenizers"
        ) from error
    tokenizer.encode_special_tokens = True
    return tokenizer


@contextmanager
def parallel(on: bool) -> Iterator[None]:
    """Switch the library's own threads on, or off where parts already keep every core busy."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if on else "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def encode_texts(tokenizer: Tokenizer, texts: Iterable[str], dtype: str) -> Iterator[NDArray[np.unsignedinteger]]:
    """The token ids of each text, in order, without any end-of-text. Memory is one batch and one text."""
    for ids, first in encode_columns(tokenizer, _columns(texts), dtype):
        yield from np.split(ids, first[1:-1]) if len(first) > 1 else ()


def encode_columns(
    tokenizer: Tokenizer, columns: Iterable[pa.Array], dtype: str
) -> Iterator[tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]]:
    """The token ids of each column of texts in one array, and where each text's begin: [texts + 1].

    Our own pipelines are encoded word by word from a table (`encoder`), others by the library.
    """
    if pattern_of(tokenizer.pre_tokenizer) is not None:
        encoder = Encoder(tokenizer)
        yield from (encoder.encode(column, dtype) for column in columns)
        return
    for column in columns:
        made = list(_by_library(tokenizer, column.to_pylist(), dtype))
        first = np.concatenate([[0], np.cumsum([len(ids) for ids in made], dtype=np.int64)])
        yield np.concatenate([np.empty(0, dtype), *made]), first


def _columns(texts: Iterable[str]) -> Iterator[pa.Array]:
    batch: list[str] = []
    held = 0
    for text in texts:
        batch.append(text)
        held += len(text)
        if held >= BATCH_CHARACTERS:
            yield pa.array(batch, pa.large_string())
            batch, held = [], 0
    if batch:
        yield pa.array(batch, pa.large_string())


def _by_library(tokenizer: Tokenizer, texts: Iterable[str], dtype: str) -> Iterator[NDArray[np.unsignedinteger]]:
    marked = ((piece, last) for text in texts for piece, last in _marked(pieces(text)))
    whole: list[NDArray[np.unsignedinteger]] = []
    for ids, last in _encode(tokenizer, marked, dtype):
        whole.append(ids)
        if last:
            yield whole[0] if len(whole) == 1 else np.concatenate(whole)
            whole = []


def pieces(text: str, limit: int = BATCH_CHARACTERS) -> list[str]:
    """A text in pieces of at most `limit` characters that tokenise as the whole does.

    They are cut between two words. Only where no word ends for 65,536 characters is one cut inside, which
    may change the tokens at the cut, never the text they stand for.
    """
    result, start = [], 0
    while len(text) - start > limit:
        end = start + limit
        seams = [match.start() for match in _SEAM.finditer(text, max(start + 1, end - _SEAM_REACH), end)]
        stop = seams[-1] if seams else end
        result.append(text[start:stop])
        start = stop
    return [*result, text[start:]]


def token_dtype(vocab_size: int) -> str:
    """Smallest little-endian unsigned type that holds every id."""
    return "<u2" if vocab_size <= 2**16 else "<u4"


def _marked(cut: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Pieces, and whether each is the last of its text."""
    return ((piece, i == len(cut) - 1) for i, piece in enumerate(cut))


def _encode(
    tokenizer: Tokenizer, marked: Iterable[tuple[str, bool]], dtype: str
) -> Iterator[tuple[NDArray[np.unsignedinteger], bool]]:
    """Ids of each piece with its mark, by batches of bounded text."""
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

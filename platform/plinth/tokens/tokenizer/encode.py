"""Encoding of texts as token ids: a backend for each form of tokenizer, all with the tokens of the tokenizers library.

Text never becomes a special token. If a document contains the characters `<|endoftext|>`, it is encoded as the tokens
of these characters. An end-of-text token in a shard is therefore always the end of a document.

    byte_level   byte-level BPE, our own and other models'            gigatoken
    word_table   `bpe-fallback` and `unigram`, which gigatoken lacks   a table of words
    reference    any other form, and short texts                      the tokenizers library
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice, pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plinth.errors import IntegrityError
from plinth.records import Blob
from plinth.storage.store import Store
from plinth.tokens.tokenizer.byte_level import ByteLevel, UnsupportedFormError
from plinth.tokens.tokenizer.reference import BATCH_CHARACTERS, Encoder, Reference
from plinth.tokens.tokenizer.word_table import WordTable, group_of

#: Versions of them are in the keys of what holds tokens.
LIBRARIES = ("tokenizers", "gigatoken")


def load(store: Store, blob: Blob) -> Tokenizer:
    """Load and verify a tokenizer from the store. The tokenizer never reads special tokens from text.

    Raises:
        MissingError, IntegrityError: the file is absent, changed, or not a tokenizer.
    """
    data = store.read_bytes(blob)
    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception as error:  # the library raises bare `Exception`
        raise IntegrityError(
            f"blob {blob.md5} is not a tokenizer", found=error, expected="a JSON file of Hugging Face tokenizers"
        ) from error
    tokenizer.encode_special_tokens = True
    return tokenizer


@contextmanager
def parallel(on: bool) -> Iterator[None]:
    """Switch the threads of the tokenizers library on or off. Switch them off if other workers keep every core busy."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if on else "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def encoder_of(tokenizer: Tokenizer, end: int) -> Encoder:
    """Return the fastest encoder for a tokenizer's form.

    Args:
        tokenizer: tokenizer that does not read special tokens from text (`load`).
        end: token after each text, which no text contains.
    """
    if group_of(tokenizer.pre_tokenizer) is not None:
        return WordTable(tokenizer, end)
    try:
        return ByteLevel(tokenizer, end)
    except UnsupportedFormError:
        return Reference(tokenizer, end)


def encode_texts(tokenizer: Tokenizer, texts: Iterable[str], dtype: str) -> Iterator[NDArray[np.unsignedinteger]]:
    """Yield the token ids of each text, in order, without end-of-text. Only one batch and one text are in memory.

    The tokenizers library encodes a single batch, because other encoders must first build their tables.
    """
    columns = _columns(texts)
    begin = list(islice(columns, 2))
    encoder: Encoder = Reference(tokenizer, 0)
    if len(begin) > 1:
        encoder = encoder_of(tokenizer, max(tokenizer.get_vocab().values()) + 1)
    for column in chain(begin, columns):
        ids, first = encoder.encode(column, dtype)
        yield from (ids[start : stop - 1] for start, stop in pairwise(first.tolist()))


def token_dtype(vocab_size: int) -> str:
    """Return the smallest little-endian unsigned dtype that fits every id."""
    return "<u2" if vocab_size <= 2**16 else "<u4"


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

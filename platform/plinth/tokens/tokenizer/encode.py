"""Encoding of texts as token ids: text is split into words, and words into tokens.

Text never becomes a special token. If a document contains the characters `<|endoftext|>`, it is encoded as the tokens
of these characters. An end-of-text token in a shard is therefore always the end of a document.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from plinth.errors import IntegrityError
from plinth.records import Blob
from plinth.storage.store import Store
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth_text.compiled import compiled
from plinth_text.unicode import utf8

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]


# Cut UTF-8 text into the words of our pipelines, as their regular expressions do, at the speed of a scan (`words.h`).
#
# Letters, marks, digits and white space are classified by the library itself, once per process: its regular expressions
# and its digit splitter have Unicode tables of their own, and the words must agree exactly.

# Pre-tokenizer and decoder of each kind: how text is cut into words, and how tokens become text again.
#
# No pipeline normalizes: text round-trips byte for byte. No merge or piece crosses the border of two words.
#
#     bpe-bytes      GPT-2's pattern over bytes (Radford et al. 2019)
#     bpe-fallback   words over characters: combining marks stay with their letters, line ends apart from the
#     unigram        indent after them (as in GPT-4's pattern); a space is a space, never a stand-in such as
#                    U+2581, which a text may hold itself

_DIGITS = {"single": r"\p{N}", "triples": r"\p{N}{1,3}", "runs": r" ?\p{N}+"}


def pipeline(params: TokenizerParameters, model: Any = None) -> Tokenizer:
    """Return a tokenizer with the pre-tokenizer and decoder of the recipe's tokenizer kind, around `model` or an empty
    model."""
    tokenizer = Tokenizer(model or models.BPE())
    if params.kind == "bpe-bytes":
        tokenizer.pre_tokenizer = _byte_words(params)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(words(params)), "isolated")
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def words(params: TokenizerParameters) -> str:
    """Return the regular expression of a word, in the syntax of the tokenizers library."""
    letters, signs = r"'(?:s|t|re|ve|m|ll|d)| ?[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+"
    return "|".join((letters, _DIGITS[params.digits], signs, r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))


def _byte_words(params: TokenizerParameters) -> Any:
    pattern = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if params.digits == "runs":
        return pattern
    if params.digits == "single":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pattern])
    triples = pre_tokenizers.Split(Regex(_DIGITS["triples"]), "isolated")
    return pre_tokenizers.Sequence([triples, pattern])


#: Bits of a character's class. NUMERIC: the digit splitter isolates it; NUMBER: the `\\p{N}` of the patterns.
LETTER, MARK, NUMBER, SPACE, NUMERIC = 1, 2, 4, 8, 16

#: A longer word is cut (`words.h`): an encoding takes a hundred times the memory of its text.
MAX_WORD_BYTES = 2**16


class WordPattern(NamedTuple):
    """Rules by which a pipeline splits text into words.

    Attributes:
        letters: character classes that form a word together.
        alone: character class that is split off first and ends the words on either side; 0 for none.
        group: maximum number of digits in a word; 0 for any number, with the space before them.
        lines: True if a line end ends a word that consists of white space.
    """

    letters: int
    alone: int
    group: int
    lines: bool


def pattern_of(pre_tokenizer: Any) -> WordPattern | None:
    """Return the word pattern of a pre-tokenizer from `pipeline`, or None for any other pre-tokenizer."""
    return _patterns().get(bytes(pre_tokenizer.__getstate__())) if pre_tokenizer is not None else None


@cache
def _patterns() -> dict[bytes, WordPattern]:
    groups = {"single": 1, "triples": 3, "runs": 0}
    found = {}
    for digits, group in groups.items():
        for kind in ("bpe-bytes", "bpe-fallback", "unigram"):
            params = TokenizerParameters(kind=kind, digits=digits)
            state = bytes(pipeline(params).pre_tokenizer.__getstate__())
            if kind == "bpe-bytes":
                found[state] = WordPattern(LETTER, {1: NUMERIC, 3: NUMBER, 0: 0}[group], group, False)
            else:
                found[state] = WordPattern(LETTER | MARK, 0, group, True)
    return found


@cache
def classes() -> U8:
    """Return the character class of every code point, [0x110000]."""
    table = np.zeros(0x110000, dtype=np.uint8)
    for bit, name in ((LETTER, r"\p{L}"), (MARK, r"\p{M}"), (NUMBER, r"\p{N}"), (SPACE, r"\s")):
        _mark(table, bit, pre_tokenizers.Split(Regex(f"{name}+"), "isolated"))
    _mark(table, NUMERIC, pre_tokenizers.Digits(individual_digits=False))
    return table


@compiled
def word_ends(
    data: U8, table: U8, letters: int, alone: int, group: int, lines: bool, out: npt.NDArray[np.int64]
) -> int:
    """Write the end of each word of a text into `out`, and return the number of words; for tests.

    The arguments after `table` are those of `WordPattern`.
    """


def _mark(table: U8, bit: int, splitter: Any) -> None:
    """Set a class bit in `table` for the characters that a splitter isolates."""
    for text in _every_character():
        # The first character is in no class, and runs are as long as they can be: every second piece is one.
        for piece, _ in splitter.pre_tokenize_str(text)[1::2]:
            table[ord(piece[0]) : ord(piece[-1]) + 1] |= np.uint8(bit)


def _every_character() -> Iterator[str]:
    """Yield all code points of the planes in use, in order, in texts that begin with a character of no class."""
    for low in (*range(0, 0xD800, 2048), *range(0xE000, 0x40000, 2048), *range(0xE0000, 0xE1000, 2048)):
        yield "\0" + "".join(map(chr, range(low, low + 2048)))

#: An encoding of the library takes about a hundred times the memory of its text, so texts are encoded in small batches,
#: and a longer text in pieces.
BATCH_CHARACTERS = 2**19

#: Between two words the pre-tokenizer always cuts, so a piece that ends here changes no token.
_SEAM = re.compile(r"(?<=\w)[ \n](?=\w)")
_SEAM_REACH = 2**16


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


def encode_texts(tokenizer: Tokenizer, texts: Iterable[str], dtype: str) -> Iterator[NDArray[np.unsignedinteger]]:
    """Yield the token ids of each text, in order, without end-of-text. Only one batch and one text are in memory."""
    for ids, first in encode_columns(tokenizer, _columns(texts), dtype):
        yield from np.split(ids, first[1:-1]) if len(first) > 1 else ()


def encode_columns(
    tokenizer: Tokenizer, columns: Iterable[pa.Array], dtype: str
) -> Iterator[tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]]:
    """Yield the token ids of each column of texts in one array, and the start of each text in it, [texts + 1].

    Tokenizers of Plinth's kinds are encoded word by word from a table (`Encoder`), others by the tokenizers library.
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


def token_dtype(vocab_size: int) -> str:
    """Return the smallest little-endian unsigned dtype that fits every id."""
    return "<u2" if vocab_size <= 2**16 else "<u4"


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


# Encode columns of text: words by a scan, tokens of a word from a table, the library only for new words.
#
# No token crosses the border of two words, so a text's tokens are its words' tokens one after the other. Text repeats
# its words: after some megabytes nearly all are in the table, and encoding costs a scan and a look-up per word. The
# result does not depend on the state of the table.

#: Slots of the table. It is emptied when half of them may be used, or its words exceed `MOST_BYTES`.
SLOTS = 2**20
MOST_BYTES = 2**26

#: Bytes of text per scan, since each of them might be a new word.
BATCH_BYTES = 2**18


class Encoder:
    """Fast encoder that returns the same tokens as the tokenizer itself.

    Args:
        tokenizer: tokenizer with a word pattern that `pattern_of` knows.

    Raises:
        ValueError: the word pattern is unknown.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        pattern = pattern_of(tokenizer.pre_tokenizer)
        if pattern is None:
            raise ValueError("the tokenizer splits words by a pattern that Plinth does not know")
        self._tokenizer, self._pattern, self._classes = tokenizer, pattern, classes()
        self._forget()

    def encode(self, texts: pa.Array, dtype: str) -> tuple[npt.NDArray[np.unsignedinteger], I64]:
        """Return the token ids of all texts in one array, and the start of each text in it, [texts + 1].

        Peak memory is about ten times the longest text, plus the ids.
        """
        data, offsets = utf8(texts)
        made = [self._encode(data, offsets[a : b + 1], dtype) for a, b in _slices(offsets)]
        if len(made) == 1:
            return made[0]
        lengths = np.concatenate([np.diff(first) for _, first in made]) if made else np.empty(0, np.int64)
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return np.concatenate([ids for ids, _ in made]) if made else np.empty(0, dtype), first

    def _encode(self, data: U8, offsets: I64, dtype: str) -> tuple[npt.NDArray[np.unsignedinteger], I64]:
        size = int(offsets[-1] - offsets[0])
        self._reserve(size)
        words, counts = np.empty(size, np.int32), np.zeros(offsets.size - 1, np.int64)
        held, used = scan(
            data, offsets, self._classes, *self._pattern, self._slots, self._starts, self._bytes, self._held,
            words, counts,
        )  # fmt: skip
        self._learn(held)
        first = np.zeros(offsets.size, np.int64)
        total = measure(words[:used], counts, self._token_starts, first)
        out = np.empty(total, dtype)
        gather = gather_u16 if out.dtype == np.uint16 else gather_u32
        gather(words[:used], self._token_starts, self._tokens, out)
        return out, first

    def _forget(self) -> None:
        self._slots = np.zeros((SLOTS, 2), np.uint64)
        self._starts, self._bytes = np.zeros(1, np.int64), np.empty(0, np.uint8)
        self._held = 0
        self._token_starts, self._tokens = np.zeros(1, np.int64), np.empty(0, np.uint32)

    def _reserve(self, size: int) -> None:
        """Grow the table for the worst case of the next texts: one new word per byte."""
        if self._held and (self._held + size > SLOTS // 2 or self._starts[self._held] + size > MOST_BYTES):
            self._forget()
        if size > SLOTS // 2:
            self._slots = np.zeros((1 << (2 * size).bit_length(), 2), np.uint64)
        self._starts = _grown(self._starts, self._held + size + 1)
        self._bytes = _grown(self._bytes, int(self._starts[self._held]) + size + 8)

    def _learn(self, held: int) -> None:
        """Encode the new words with the tokenizers library, and add their tokens to the table."""
        if held == self._held:
            return
        edges = self._starts[self._held : held + 1].tolist()
        data = self._bytes.data
        fresh = [str(data[a:b], "utf-8") for a, b in pairwise(edges)]
        ids = [one.ids for one in self._tokenizer.encode_batch_fast(fresh, add_special_tokens=False)]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        begin = int(self._token_starts[self._held])
        self._token_starts = _grown(self._token_starts, held + 1)
        self._token_starts[self._held + 1 : held + 1] = begin + np.cumsum(lengths)
        end = int(self._token_starts[held])
        self._tokens = _grown(self._tokens, end)
        self._tokens[begin:end] = np.fromiter((token for one in ids for token in one), np.uint32, end - begin)
        self._held = held


def _slices(offsets: I64) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows to scan at once: several short texts, or one long text."""
    first, last = 0, offsets.size - 1
    while first < last:
        stop = int(np.searchsorted(offsets, offsets[first] + BATCH_BYTES, side="right")) - 1
        stop = min(max(stop, first + 1), last)
        yield first, stop
        first = stop


def _grown(array: Any, size: int) -> Any:
    """Return the array enlarged to `size` items, with its contents unchanged."""
    if array.size >= size:
        return array
    larger = np.zeros(max(size, 2 * array.size), array.dtype)
    larger[: array.size] = array
    return larger


@compiled
def scan(
    data: U8, offsets: I64, table: U8, letters: int, alone: int, group: int, lines: bool, slots: U64, starts: I64,
    known: U8, held: int, words: I32, counts: I64,
) -> tuple[int, int]:  # fmt: skip
    """Write the table number of every word of the texts into `words`, and add new words to the table.

    Return the number of words in the table, and the number of words in the texts. The arguments from `letters` to
    `lines` are those of `WordPattern`.
    """


@compiled
def measure(words: I32, counts: I64, token_starts: I64, first: I64) -> int:
    """Write the start of each text's tokens into `first`, after `first[0]`, and return the number of tokens."""


@compiled
def gather_u16(words: I32, token_starts: I64, tokens: U32, out: npt.NDArray[np.uint16]) -> None:
    """Fill `out` with the 16-bit token ids of all words."""


@compiled
def gather_u32(words: I32, token_starts: I64, tokens: U32, out: U32) -> None:
    """Fill `out` with the 32-bit token ids of all words."""

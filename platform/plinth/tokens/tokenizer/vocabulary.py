"""Properties of a vocabulary: bytes of every token, unreachable and unused tokens, digits, white space."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders

from plinth.corpus.canaries import Lexis
from plinth.records import Manifest
from plinth.storage.store import Store
from plinth.tokens.tokenizer import encode
from plinth.tokens.tokenizer.encode import encode_texts, load
from plinth.tokens.tokenizer.parameters import TokenizerParameters

# The bytes that the tokens of a vocabulary stand for.
#
# A byte-level vocabulary spells every byte as a printable character; the others spell characters as they are,
# and the 256 single bytes as `<0x00>` … `<0xFF>`, for characters that have no token.

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of every token, by id; empty for special tokens.

    Raises:
        ValueError: a token of a byte-level vocabulary has a character outside the byte-level alphabet.
    """
    special = tokenizer.get_added_tokens_decoder()
    spelt = _byte_level if isinstance(tokenizer.decoder, decoders.ByteLevel) else _characters
    names = (tokenizer.id_to_token(index) or "" for index in range(tokenizer.get_vocab_size()))
    return [b"" if index in special else spelt(name) for index, name in enumerate(names)]


def byte_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of single-byte tokens, which encode characters without a token of their own.

    A byte-level vocabulary has none of these tokens.
    """
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return []
    return [index for name in BYTE_TOKENS if (index := tokenizer.token_to_id(name)) is not None]


@cache
def _byte_of_character() -> dict[str, int]:
    """Return the byte that each printable character of GPT-2 represents (Radford et al. 2019, `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _byte_level(name: str) -> bytes:
    table = _byte_of_character()
    try:
        return bytes(table[character] for character in name)
    except KeyError as error:
        raise ValueError(f"token {name!r} is not in the byte-level alphabet") from error


def _characters(name: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.encode()


def encode_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """Return the token ids of arbitrary bytes. Valid UTF-8 is encoded as text, and other bytes one by one.

    Raises:
        ValueError: a byte has no token.
    """
    singles = _single_bytes(tokenizer)
    ids: list[int] = []
    # `surrogateescape` turns a byte that is not UTF-8 into U+DC80 … U+DCFF, which no UTF-8 holds.
    for piece in _STRAY.split(data.decode(errors="surrogateescape")):
        if _STRAY.fullmatch(piece):
            byte = ord(piece) - 0xDC00
            if byte not in singles:
                raise ValueError(f"byte {byte:#04x} has no token")
            ids.append(singles[byte])
        elif piece:
            ids += tokenizer.encode(piece, add_special_tokens=False).ids
    return ids


_STRAY = re.compile("([\udc80-\udcff])")


def _single_bytes(tokenizer: Tokenizer) -> dict[int, int]:
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        found = {byte: tokenizer.token_to_id(name) for name, byte in _byte_of_character().items()}
    else:
        found = {byte: tokenizer.token_to_id(name) for byte, name in enumerate(BYTE_TOKENS)}
    return {byte: index for byte, index in found.items() if index is not None}


#: Letters of a word, at least: shorter ones are rather endings.
LETTERS = 3


def lexis_of(store: Store, trained: Manifest) -> Lexis:
    """Return a tokenizer's `Lexis`: a function that counts the tokens of texts without end-of-text, and a list of
    words.

    The list contains the words that are a single token after a space.

    Raises:
        MissingError, IntegrityError: the file is absent, changed, or not a tokenizer.
    """
    (file,) = trained.named("tokenizer.json")
    tokenizer = load(store, file.blob)

    def measure(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in encode_texts(tokenizer, texts, "<u4")]

    return Lexis(measure, words_of(tokenizer, measure(["a"])[0]))


def words_of(tokenizer: Tokenizer, alone: int) -> tuple[str, ...]:
    """Return the words that consist of letters and are one token after a space, sorted.

    `alone` is the number of tokens of the text `a`.
    """
    decoded = {token.decode(errors="ignore").strip(" \u2581") for token in token_bytes(tokenizer)}
    likely = sorted(word for word in decoded if word.isalpha() and len(word) >= LETTERS)
    sizes = (len(ids) for ids in encode_texts(tokenizer, [f"a {word}" for word in likely], "<u4"))
    return tuple(word for word, size in zip(likely, sizes, strict=True) if size == alone + 1)


# Properties of a vocabulary: unreachable and unused tokens, digits, white space.
#
# Tokens that training hardly sees keep their random embeddings, and a prompt with one can make a model generate
# anything. The categories are those of Land and Bartolo 2024, "Fishing for Magikarp" (arXiv:2405.05417): unreachable,
# unused, and tokens of one document only.

#: Examples of tokens of a kind.
NAMED = 20

#: A token used this often, but in one document only, belongs to that document and not to the language.
OWN_COUNT = 10

#: Digits a token may hold.
DIGITS_ALLOWED = {"single": 1, "triples": 3}

INDENTS = (2, 4, 8, 16)

#: Kinds of dead tokens, in words for people.
DEAD_TOKENS = {
    "unreachable": "never produced by encoding their own text",
    "unused": "not used in the sample",
    "one_document": "used by one document only",
}


def vocabulary_facts(tokenizer: Tokenizer, counts: NDArray[np.int64], documents: NDArray[np.int64]) -> dict[str, Any]:
    """Return the properties of a vocabulary and its use in a sample.

    Args:
        counts: [vocabulary] occurrences of each token.
        documents: [vocabulary] number of documents that contain the token.

    Returns:
        sizes; numbers, shares and examples of unreachable, unused and one-document tokens; `digits` (longest run of
        digits in a token); `whitespace` (longest run of spaces, and token counts of indents, a tab and a line end);
        `arbitrary_bytes` (number of byte strings encoded, and number that did not round-trip).
    """
    table = token_bytes(tokenizer)
    ordinary = np.array([bool(data) for data in table])
    lost = unreachable(tokenizer, table)
    unused = np.flatnonzero(ordinary & (counts == 0)).tolist()
    own = np.flatnonzero(ordinary & (counts >= OWN_COUNT) & (documents == 1)).tolist()
    total = int(ordinary.sum())
    return {
        "vocab_size": len(table),
        "byte_tokens": len({data for data in table if len(data) == 1}),
        **_named("unreachable", lost, table, total),
        **_named("unused", unused, table, total),
        **_named("one_document", sorted(own, key=lambda i: -int(counts[i])), table, total),
        "digits": {"longest": max((_digits(data) for data in table), default=0)},
        "whitespace": _whitespace(tokenizer, table),
        "arbitrary_bytes": _arbitrary_bytes(tokenizer, table),
    }


def failures(params: TokenizerParameters, found: dict[str, Any]) -> list[str]:
    """Return one line for every limit of the recipe that the vocabulary violates."""
    lines = []
    if found["byte_tokens"] != 256:
        lines.append(f"{found['byte_tokens']} of 256 bytes are in the vocabulary: some text cannot be encoded")
    if found["unreachable_share"] > params.max_unreachable_share:
        examples = ", ".join(found["unreachable_examples"][:5])
        lines.append(
            f"{found['unreachable_tokens']} tokens are never produced by encoding their own text, such as {examples}; "
            f"at most {params.max_unreachable_share:.1%} allowed"
        )
    allowed, longest = DIGITS_ALLOWED.get(params.digits), found["digits"]["longest"]
    if allowed is not None and longest > allowed:
        lines.append(f"a token has {longest} digits in a row, `digits: {params.digits}` allows at most {allowed}")
    if found["arbitrary_bytes"]["failed"]:
        lines.append("{failed} of {strings} strings of arbitrary bytes did not round-trip".format_map(_bytes_of(found)))
    return lines


def unreachable(tokenizer: Tokenizer, table: Sequence[bytes]) -> list[int]:
    """Return the tokens whose own text is encoded as other tokens.

    Tokens that are a piece of a character have no text and are left out.
    """
    fallback = set(byte_ids(tokenizer))
    texts = {i: text for i, data in enumerate(table) if i not in fallback and (text := _text(data))}
    with encode.parallel(True):
        encoded = encode.encode_texts(tokenizer, texts.values(), "<u4")
        return [index for index, ids in zip(texts, encoded, strict=True) if ids.tolist() != [index]]


def _named(kind: str, ids: list[int], table: Sequence[bytes], total: int) -> dict[str, Any]:
    examples = [f"{i} {table[i].decode(errors='backslashreplace')!r}" for i in ids[:NAMED]]
    return {f"{kind}_tokens": len(ids), f"{kind}_share": len(ids) / max(1, total), f"{kind}_examples": examples}


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""


def _digits(data: bytes) -> int:
    longest = run = 0
    for character in _text(data):
        run = run + 1 if unicodedata.category(character)[0] == "N" else 0
        longest = max(longest, run)
    return longest


def _whitespace(tokenizer: Tokenizer, table: Sequence[bytes]) -> dict[str, Any]:
    blanks = [data for data in table if data and not data.strip(b" ")]
    texts = {f"indent_{n}": "\n" + " " * n + "x" for n in INDENTS} | {"tab": "\tx", "line_end": "x\r\n"}
    counted = encode.encode_texts(tokenizer, texts.values(), "<u4")
    words = [data for data in table if data.strip(b" ").isalpha()]
    return {
        "longest_run": max(map(len, blanks), default=0),
        "tokens": {name: len(ids) for name, ids in zip(texts, counted, strict=True)},
        "words_with_space": sum(data.startswith(b" ") for data in words) / max(1, len(words)),
    }


def _arbitrary_bytes(tokenizer: Tokenizer, table: Sequence[bytes]) -> dict[str, int]:
    chooser = random.Random(0)
    strings = [bytes(range(256)), *(chooser.randbytes(chooser.randrange(1, 200)) for _ in range(200))]
    strings += ["añ東👩‍👧".encode()[i:j] for i in range(10) for j in range(i + 1, 20)]
    failed = sum(b"".join(table[token] for token in encode_bytes(tokenizer, data)) != data for data in strings)
    return {"strings": len(strings), "failed": failed}


def _bytes_of(found: dict[str, Any]) -> dict[str, int]:
    counted: dict[str, int] = found["arbitrary_bytes"]
    return counted


"""The bytes that the tokens of a vocabulary stand for.

A byte-level vocabulary spells every byte as a printable character; the others spell characters as they are,
and the 256 single bytes as `<0x00>` … `<0xFF>`, for characters that have no token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from tokenizers import Tokenizer, decoders

from plinth.corpus.canaries.generate import Lexis
from plinth.records import Manifest
from plinth.storage.store import Store
from plinth.tokens.tokenizer.encode import encode_texts, load

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of every token id; empty for special tokens.

    Raises:
        ValueError: when a token of a byte-level vocabulary is not spelt in its alphabet.
    """
    special = tokenizer.get_added_tokens_decoder()
    spelt = _byte_level if isinstance(tokenizer.decoder, decoders.ByteLevel) else _characters
    names = (tokenizer.id_to_token(index) or "" for index in range(tokenizer.get_vocab_size()))
    return [b"" if index in special else spelt(name) for index, name in enumerate(names)]


def byte_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids that write characters without a token byte by byte; none in a byte-level vocabulary."""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return []
    return [index for name in BYTE_TOKENS if (index := tokenizer.token_to_id(name)) is not None]


@cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (Radford et al. 2019, `bytes_to_unicode`)."""
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
    """Token ids of any bytes: text where they are UTF-8, single bytes where they are not.

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
    """Lengths without end-of-text as the shards have them, and words that are one token after a space.

    Raises:
        MissingError, IntegrityError: the file is absent, changed, or not a tokenizer.
    """
    (file,) = trained.named("tokenizer.json")
    tokenizer = load(store, file.blob)

    def measure(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in encode_texts(tokenizer, texts, "<u4")]

    return Lexis(measure, words_of(tokenizer, measure(["a"])[0]))


def words_of(tokenizer: Tokenizer, alone: int) -> tuple[str, ...]:
    """Words of letters that are one token after a space, in order; `alone` is the length of `a`."""
    decoded = {token.decode(errors="ignore").strip(" \u2581") for token in token_bytes(tokenizer)}
    likely = sorted(word for word in decoded if word.isalpha() and len(word) >= LETTERS)
    sizes = (len(ids) for ids in encode_texts(tokenizer, [f"a {word}" for word in likely], "<u4"))
    return tuple(word for word, size in zip(likely, sizes, strict=True) if size == alone + 1)

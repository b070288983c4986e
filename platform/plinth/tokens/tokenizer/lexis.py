"""Lengths of texts under a trained tokenizer, and its words: what texts of an exact length are made from."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from plinth.corpus.canaries.generate import Lexis
from plinth.records import Manifest
from plinth.storage.store import Store
from plinth.tokens.tokenizer.encode import encode_texts, load
from plinth.tokens.tokenizer.vocabulary import token_bytes

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

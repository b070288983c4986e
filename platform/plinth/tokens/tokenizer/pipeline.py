"""Pipelines: each kind of tokenizer splits text into words, and joins tokens into text, in its own way.

No pipeline normalizes: text round-trips byte for byte. No merge or piece crosses the border of two words.

    bpe-bytes      GPT-2's pattern over bytes (Radford et al. 2019)
    bpe-fallback   words over characters: combining marks stay with their letters, line ends apart from the
    unigram        indent after them (as in GPT-4's pattern); a space is a space, never a stand-in such as
                   U+2581, which a text may hold itself
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from plinth.tokens.tokenizer.parameters import TokenizerParameters

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


def state(pre_tokenizer: Any) -> bytes:
    """Return the serialized form of a pre-tokenizer, by which two of them are compared; empty for None."""
    return b"" if pre_tokenizer is None else bytes(pre_tokenizer.__getstate__())


def isolated(splitter: Any) -> npt.NDArray[np.bool_]:
    """Return True for each code point that a splitter of the library isolates, [0x110000].

    The library has Unicode tables of its own, with which other code must agree exactly.
    """
    table = np.zeros(0x110000, np.bool_)
    for text in _every_character():
        # The first character is in no class, and runs are as long as they can be: every second piece is one.
        for piece, _ in splitter.pre_tokenize_str(text)[1::2]:
            table[ord(piece[0]) : ord(piece[-1]) + 1] = True
    return table


def splitter_of(pattern: str) -> Any:
    """Return a pre-tokenizer that isolates the matches of a regular expression."""
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _byte_words(params: TokenizerParameters) -> Any:
    pattern = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if params.digits == "runs":
        return pattern
    if params.digits == "single":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pattern])
    return pre_tokenizers.Sequence([splitter_of(_DIGITS["triples"]), pattern])


def _every_character() -> Iterator[str]:
    """Yield all code points of the planes in use, in order, in texts that begin with a character of no class."""
    for low in (*range(0, 0xD800, 2048), *range(0xE000, 0x40000, 2048), *range(0xE0000, 0xE1000, 2048)):
        yield "\0" + "".join(map(chr, range(low, low + 2048)))

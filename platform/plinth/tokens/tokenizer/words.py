"""Cut UTF-8 text into the words of our pipelines, as their regular expressions do, at the speed of a scan (`words.h`).

Letters, marks, digits and white space are classified by the library itself, once per process: its regular expressions
and its digit splitter have Unicode tables of their own, and the words must agree exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth_text.compiled import compiled

# Pre-tokenizer and decoder of each kind: how text is cut into words, and how tokens become text again.
#
# No pipeline normalises: text round-trips byte for byte. No merge or piece crosses the border of two words.
#
#     bpe-bytes      GPT-2's pattern over bytes (Radford et al. 2019)
#     bpe-fallback   words over characters: combining marks stay with their letters, line ends apart from the
#     unigram        indent after them (as in GPT-4's pattern); a space is a space, never a stand-in such as
#                    U+2581, which a text may hold itself

_DIGITS = {"single": r"\p{N}", "triples": r"\p{N}{1,3}", "runs": r" ?\p{N}+"}


def pipeline(params: TokenizerParameters, model: Any = None) -> Tokenizer:
    """The words and the decoder of a kind around a model; around an empty one when none is given."""
    tokenizer = Tokenizer(model or models.BPE())
    if params.kind == "bpe-bytes":
        tokenizer.pre_tokenizer = _byte_words(params)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(words(params)), "isolated")
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def words(params: TokenizerParameters) -> str:
    """The pattern of a word, in the regular expressions of the tokenizers library."""
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


U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

#: Bits of a character's class. NUMERIC: the digit splitter isolates it; NUMBER: the `\\p{N}` of the patterns.
LETTER, MARK, NUMBER, SPACE, NUMERIC = 1, 2, 4, 8, 16

#: A longer word is cut (`words.h`): an encoding takes a hundred times the memory of its text.
MAX_WORD_BYTES = 2**16


class WordPattern(NamedTuple):
    """How a pipeline cuts words.

    Attributes:
        letters: classes that make a word together.
        alone: class whose characters are split off first and end the words on either side; 0 for none.
        group: digits of one word; 0 for any number, with the space before them.
        lines: line ends close a word of white space.
    """

    letters: int
    alone: int
    group: int
    lines: bool


def pattern_of(pre_tokenizer: Any) -> WordPattern | None:
    """The pattern of one of our pipelines, or None for any other pre-tokenizer."""
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
    """The class of every code point, [0x110000]."""
    table = np.zeros(0x110000, dtype=np.uint8)
    for bit, name in ((LETTER, r"\p{L}"), (MARK, r"\p{M}"), (NUMBER, r"\p{N}"), (SPACE, r"\s")):
        _mark(table, bit, pre_tokenizers.Split(Regex(f"{name}+"), "isolated"))
    _mark(table, NUMERIC, pre_tokenizers.Digits(individual_digits=False))
    return table


@compiled
def word_ends(
    data: U8, table: U8, letters: int, alone: int, group: int, lines: bool, out: npt.NDArray[np.int64]
) -> int:
    """For tests: fill in where each word of a text ends; returns how many there are. After `table`: `WordPattern`."""


def _mark(table: U8, bit: int, splitter: Any) -> None:
    """Set a bit for the characters that a splitter isolates."""
    for text in _every_character():
        # The first character is in no class, and runs are as long as they can be: every second piece is one.
        for piece, _ in splitter.pre_tokenize_str(text)[1::2]:
            table[ord(piece[0]) : ord(piece[-1]) + 1] |= np.uint8(bit)


def _every_character() -> Iterator[str]:
    """All code points of the planes in use, in order, in texts that begin with a character of no class."""
    for low in (*range(0, 0xD800, 2048), *range(0xE000, 0x40000, 2048), *range(0xE0000, 0xE1000, 2048)):
        yield "\0" + "".join(map(chr, range(low, low + 2048)))

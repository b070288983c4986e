"""Pre-tokenizer and decoder of each kind: how text is cut into words, and how tokens become text again.

No pipeline normalises: text round-trips byte for byte. No merge or piece crosses the border of two words.

    bpe-bytes      GPT-2's pattern over bytes (Radford et al. 2019)
    bpe-fallback   words over characters: combining marks stay with their letters, line ends apart from the
    unigram        indent after them (as in GPT-4's pattern); a space is a space, never a stand-in such as
                   U+2581, which a text may hold itself
"""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from plinth.tokens.tokenizer.parameters import TokenizerParameters

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

"""Byte-pair encoding (Sennrich et al. 2016): merges of bytes, or of characters with bytes to fall back on.

The library's trainer counts words in memory: memory follows the sample, which the recipe caps. Its merges do not
depend on threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from plinth.tokens.tokenizer import encode
from plinth.tokens.tokenizer.alphabet import prepared
from plinth.tokens.tokenizer.parameters import BYTES, TokenizerParameters
from plinth.tokens.tokenizer.pipelines import pipeline
from plinth.tokens.tokenizer.vocabulary import BYTE_TOKENS


def train_bytes(params: TokenizerParameters, texts: Iterable[str]) -> Tokenizer:
    """Merges of bytes; special tokens first, then the bytes, then the merges."""
    tokenizer = pipeline(params)
    _train(tokenizer, texts, params, params.vocab_size, params.special_tokens, pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def train_characters(params: TokenizerParameters, texts: Iterable[str], alphabet: Sequence[str]) -> Tokenizer:
    """Merges of characters; special tokens first, then the 256 bytes, the alphabet and the merges.

    Args:
        alphabet: characters that have tokens; all others are written in bytes.
    """
    learnt = pipeline(params)
    free = params.vocab_size - BYTES - len(params.special_tokens)
    _train(learnt, prepared(texts, alphabet), params, free, (), alphabet)
    model = json.loads(learnt.to_str())["model"]
    ordered = sorted(model["vocab"], key=model["vocab"].__getitem__)
    names = [*params.special_tokens, *BYTE_TOKENS, *(name for name in ordered if name not in params.special_tokens)]
    vocabulary = {name: index for index, name in enumerate(names)}
    merges = [(left, right) for left, right in model["merges"]]
    tokenizer = pipeline(params, models.BPE(vocabulary, merges, byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in params.special_tokens])
    return tokenizer


def _train(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    params: TokenizerParameters,
    size: int,
    special: Sequence[str],
    alphabet: Iterable[str],
) -> None:
    letters = sorted(alphabet)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=params.min_frequency,
        special_tokens=list(special),
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    with encode.parallel(True):
        tokenizer.train_from_iterator(_iterator(texts), trainer)


def _iterator(texts: Iterable[str]) -> Iterator[str]:
    yield from texts

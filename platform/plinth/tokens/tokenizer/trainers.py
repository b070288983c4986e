"""Trainers of a vocabulary: byte-pair encoding (Sennrich et al. 2016) over bytes or characters, and the unigram
language model (Kudo 2018, arXiv:1804.10959), over the characters that get tokens of their own.
"""

from __future__ import annotations

import io
import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from plinth.errors import StageError
from plinth.tokens.tokenizer import encode
from plinth.tokens.tokenizer.parameters import BYTES, TokenizerParameters
from plinth.tokens.tokenizer.pipelines import pipeline
from plinth.tokens.tokenizer.vocabulary import BYTE_TOKENS

# The characters that get tokens of their own, and texts prepared for a trainer that must not learn the others.
#
# Shared by the vocabularies of characters (`bpe-fallback`, `unigram`). The alphabet of a byte-level vocabulary is the
# 256 bytes.

#: Always in the alphabet: the characters of programs and of English, whatever the sample.
ALWAYS = frozenset(string.printable) - {"\x0b", "\x0c"}

#: Replaces a character without a token before training. It is in no alphabet, so trainers drop it.
RARE = "\x00"

#: A merge spelt `<0x41>` would be read as that byte; no merge crosses this position.
_BYTE_NAME = re.compile(r"(?<=<)(?=0x[0-9A-F]{2}>)")


def choose(texts: Iterable[str], coverage: float, most: int) -> list[str]:
    """The commonest characters that make up a share of all, at most `most`, in code-point order.

    Ties are broken by code point. Printable ASCII is always among them.

    Args:
        coverage: share of the texts' characters, as in SentencePiece (Kudo and Richardson 2018).
        most: how many characters to choose, if ASCII has not taken as many already.
    """
    seen: Counter[str] = Counter()
    for text in texts:
        seen.update(text)
    total = seen.total()
    chosen, covered = set(ALWAYS), sum(seen[character] for character in ALWAYS)
    for character, count in sorted(seen.items(), key=lambda item: (-item[1], item[0])):
        if covered >= coverage * total or len(chosen) >= most:
            break
        if character not in chosen and character != RARE:
            chosen.add(character)
            covered += count
    return sorted(chosen)


def prepared(texts: Iterable[str], alphabet: Iterable[str]) -> Iterator[str]:
    """Texts for training: characters without a token are `RARE`, names of bytes are cut in two."""
    known = frozenset(alphabet)
    for text in texts:
        rare = set(text) - known
        if rare:
            text = text.translate({ord(character): RARE for character in rare})
        yield from _BYTE_NAME.split(text) if "<0x" in text else (text,)


# Byte-pair encoding (Sennrich et al. 2016): merges of bytes, or of characters with bytes to fall back on.
#
# The library's trainer counts words in memory: memory follows the sample, which the recipe caps. Its merges do not
# depend on threads.


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


# Unigram language model (Kudo 2018, arXiv:1804.10959): pieces by likelihood, bytes to fall back on.
#
# SentencePiece trains: the trainer of the tokenizers library gives different pieces from run to run (its sums follow
# the order of a hash map). SentencePiece receives the words of our own pipeline with their counts, so it learns from
# exactly the words that will be encoded; its number of threads is fixed, because it sums by thread.

#: Part of the result: expectations are summed by thread.
THREADS = 4

#: SentencePiece gives white space a meaning of its own; these private characters have none.
_HIDDEN = {" ": "\ue000", "\n": "\ue001", "\t": "\ue002", "\r": "\ue003", "\u2581": "\ue004"}
_HIDE = str.maketrans(_HIDDEN)
_SHOW = str.maketrans({hidden: shown for shown, hidden in _HIDDEN.items()})

#: Log probability of a byte: low enough that a text is never cheaper in bytes than in any pieces of characters.
BYTE_SCORE = -1e6


def train_unigram(params: TokenizerParameters, texts: Iterable[str], alphabet: Sequence[str]) -> Tokenizer:
    """The likeliest pieces of the texts' words; special tokens first, then the 256 bytes, then the pieces.

    Args:
        alphabet: characters that have pieces; all others are written in bytes.

    Raises:
        StageError: too little text for a vocabulary of this size.
    """
    alphabet = [character for character in alphabet if character not in _SHOW_KEYS]
    counted = _words(params, prepared(texts, alphabet))
    free = params.vocab_size - BYTES - len(params.special_tokens)
    learnt = _pieces(counted, alphabet, free)
    special = [(name, BYTE_SCORE) for name in params.special_tokens]
    names = {*params.special_tokens, *BYTE_TOKENS}
    pieces = [(piece, score) for piece, score in learnt if piece not in names]
    vocabulary = [*special, *((name, BYTE_SCORE) for name in BYTE_TOKENS), *pieces]
    # Every byte has a token, so nothing is unknown; the library requires an unknown token all the same.
    tokenizer = pipeline(params, models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in params.special_tokens])
    return tokenizer


_SHOW_KEYS = frozenset(_HIDDEN.values())


def _words(params: TokenizerParameters, texts: Iterable[str]) -> Counter[str]:
    cut = pipeline(params).pre_tokenizer
    counted: Counter[str] = Counter()
    for text in texts:
        counted.update(word for word, _ in cut.pre_tokenize_str(text))
    spoilt: Counter[str] = Counter()
    for word in [word for word in counted if RARE in word]:
        count = counted.pop(word)
        spoilt.update({piece: count for piece in word.split(RARE) if piece})
    counted.update(spoilt)
    return counted


def _pieces(counted: Counter[str], alphabet: Sequence[str], free: int) -> list[tuple[str, float]]:
    """Pieces with their log probabilities, likeliest first."""
    import sentencepiece

    # Every character once as a word: SentencePiece's alphabet is that of its input.
    lines = [f"{word.translate(_HIDE)}\t{count}" for word, count in sorted((counted + Counter(alphabet)).items())]
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=free + 1,  # it requires an unknown piece
            model_type="unigram",
            input_format="tsv",
            hard_vocab_limit=False,
            num_threads=THREADS,
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            split_by_unicode_script=False,
            split_by_number=False,
            split_by_whitespace=False,
            max_sentence_length=2**20,
            bos_id=-1,
            eos_id=-1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise StageError(
            "the unigram tokenizer cannot be trained on this sample",
            found=f"{len(counted):,} different words; {error}",
            expected=f"enough text for {free:,} pieces",
            remedy="lower tokenizer.vocab_size, or raise tokenizer.sample_bytes",
        ) from error
    found = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(found.id_to_piece(i), found.get_score(i)) for i in range(1, found.get_piece_size())]
    return [(piece.translate(_SHOW), score) for piece, score in pieces][:free]

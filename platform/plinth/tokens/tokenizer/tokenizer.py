"""Tokenizer stage: train a tokenizer on a sample of the curated buckets, and load it.

If a run continues from existing weights or learns from a teacher, it may keep the tokenizer of that model instead
(`of_model`).

Special tokens come first, so end-of-text is id 0 in every vocabulary. The 256 bytes and the learned tokens follow (a
byte-level vocabulary mixes bytes and learned tokens). `pipeline` splits text into words.
"""

from __future__ import annotations

import io
import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, run_items
from plinth.errors import StageError
from plinth.records import Manifest, Part, Step
from plinth.storage.store import Store
from plinth.tokens.tokenizer import encode
from plinth.tokens.tokenizer.parameters import BYTES, TokenizerParameters
from plinth.tokens.tokenizer.pipeline import pipeline
from plinth.tokens.tokenizer.sample import BucketSample, sample, sampled_texts
from plinth.tokens.tokenizer.vocabulary import BYTE_TOKENS

ASSET = "tokenizer"
VERSION = "2"
FILE = "tokenizer.json"

#: The first special token closes every document.
END_OF_TEXT = 0

#: The trainer's time grows with the square of the longest word, and a megabyte of `=` is one word. Longer runs of
#: letters or of spaces are cut into pieces of this many characters for training.
MAX_RUN = 256
_RUN = re.compile(rf"(\S{{{MAX_RUN}}}|\s{{{MAX_RUN}}})")
_BLANKS = re.compile(rf"\s{{{MAX_RUN}}}")

#: Parameters of the audit, which do not change the tokenizer.
AUDIT_FIELDS = frozenset(
    {
        "audit_bytes_per_part",
        "max_fertility",
        "max_fertility_by_script",
        "max_fertility_by_language",
        "max_fertility_by_domain",
        "min_bytes_per_token",
        "max_unreachable_share",
    }
)

#: The alphabet takes at most this share of the vocabulary, or nothing would be left to learn.
ALPHABET_SHARE = 0.5


@dataclass(frozen=True)
class _Task:
    params: TokenizerParameters
    sample: tuple[BucketSample, ...]


def step(params: TokenizerParameters) -> Step:
    """Return the pipeline step that trains the tokenizer. The audit's limits are not part of its identity."""
    return Step(
        name="tokens.tokenizer",
        version=VERSION,
        params=params.model_dump(mode="json", exclude=set(AUDIT_FIELDS)),
        libraries=fingerprint.libraries("tokenizers", "sentencepiece"),
    )


def run(ctx: Context, params: TokenizerParameters, curated: Mapping[str, Manifest]) -> Manifest:
    """Train a tokenizer on a sample of the buckets.

    The manifest has one part, `tokenizer.json`. The stats of the manifest are `vocab_size` (which may be below the
    recipe's value if there is little text), `end_of_text`, `special_tokens` (id by name) and `sample_bytes` (by
    bucket).

    Raises:
        StageError: there is no text to train on.
    """
    sampled = tuple(sample(ctx, curated, params.sample_bytes, ASSET, params.sample_weights))
    if not any(found.budget_bytes for found in sampled):
        raise StageError(
            "the tokenizer has no text to train on",
            found=f"empty buckets {[found.bucket for found in sampled]}",
            expected="curated documents",
            remedy="`plinth corpus funnel` shows where documents were dropped",
        )
    inputs = [f"{found.bucket}:{found.budget_bytes}" for found in sampled]
    inputs += [part.blob.sha256 for found in sampled for part in found.parts]
    items = [Item(tuple(inputs), _Task(params, sampled))]
    ((part,),) = run_items(ctx, step(params), _train, items, label=f"{ASSET}: train")
    sources = {f"{bucket}/curated": source for bucket, source in sorted(curated.items())}
    return manifest(ASSET, step(params), sources, [part], part.stats)


def of_model(ctx: Context, model: Manifest) -> Manifest:
    """Publish the tokenizer of an existing model as this stage's manifest, instead of training a tokenizer.

    The model is the asset `initial`, from which the run continues, or `teacher`, from which it learns. `vocab_size`
    counts the rows of the model's embeddings, which may be more than its tokens.

    Raises:
        MissingError, IntegrityError: the file is absent, changed, or not a tokenizer.
    """
    (part,) = model.named(FILE)
    known, end = encode.load(ctx.store, part.blob), model.stats["end_of_text"]
    stats = {
        "vocab_size": model.stats["vocab_size"],
        "end_of_text": end,
        "special_tokens": {known.id_to_token(end): end},
        "sample_bytes": {},
    }
    step = Step(name="tokens.tokenizer", version=VERSION, params={"kind": model.asset})
    return manifest(ASSET, step, {model.asset: model}, [part.model_copy(update={"stats": stats})], stats)


def load(store: Store, tokenizer: Manifest) -> Tokenizer:
    """Load and verify the tokenizer of a manifest. The tokenizer never reads special tokens from text.

    Raises:
        MissingError, IntegrityError: the file is absent, changed, or not a tokenizer.
    """
    (part,) = tokenizer.named(FILE)
    return encode.load(store, part.blob)


def train(params: TokenizerParameters, corpus: Iterable[str] | Callable[[], Iterable[str]]) -> Tokenizer:
    """Train a tokenizer on texts. The same texts result in the same file, on any number of threads.

    Args:
        corpus: the texts, or a function that returns a new iterator; kinds with an alphabet read the texts twice.

    Raises:
        StageError: there is too little text for the vocabulary size.
    """
    again = corpus if callable(corpus) else _twice(corpus, params)
    if params.kind == "bpe-bytes":
        return train_bytes(params, _short(again()))
    free = params.vocab_size - BYTES - len(params.special_tokens)
    letters = choose(again(), params.character_coverage, int(free * ALPHABET_SHARE))
    trainer = train_characters if params.kind == "bpe-fallback" else train_unigram
    return trainer(params, _short(again()), letters)


def short_runs(text: str) -> list[str]:
    """Split the text inside runs of at least `MAX_RUN` characters without spaces, or of spaces.

    Most texts have no such run and are returned whole.
    """
    longest = max(map(len, text.split()), default=0)
    if longest < MAX_RUN and not _BLANKS.search(text):  # ten times faster than a search for the cuts
        return [text]
    return [piece for piece in _RUN.split(text) if piece]


def _short(corpus: Iterable[str]) -> Iterator[str]:
    return (piece for text in corpus for piece in short_runs(text))


def _twice(corpus: Iterable[str], params: TokenizerParameters) -> Callable[[], Iterable[str]]:
    held = corpus if params.kind == "bpe-bytes" else list(corpus)
    return lambda: held


def _train(store: Store, task: _Task) -> tuple[Part, ...]:
    trained = train(task.params, lambda: (text for found in task.sample for text in sampled_texts(store, found)))
    stats = {
        "vocab_size": trained.get_vocab_size(),
        "end_of_text": END_OF_TEXT,
        "special_tokens": {name: trained.token_to_id(name) for name in task.params.special_tokens},
        "sample_bytes": {found.bucket: found.budget_bytes for found in task.sample},
    }
    return (Part(name=FILE, blob=store.put_bytes(trained.to_str(pretty=True).encode()), stats=stats),)


# The characters that get tokens of their own, and texts prepared for a trainer that must not learn the others.
#
# Shared by the vocabularies of characters (`bpe-fallback`, `unigram`). The alphabet of a byte-level vocabulary is the
# 256 bytes.

#: Always in the alphabet: the characters of programs and of English, whatever the sample.
ALWAYS = frozenset(string.printable) - {"\x0b", "\x0c"}

#: Replaces a character without a token before training. It is in no alphabet, so trainers drop it.
RARE = "\x00"

#: A merge spelled `<0x41>` would be read as that byte; no merge crosses this position.
_BYTE_NAME = re.compile(r"(?<=<)(?=0x[0-9A-F]{2}>)")


def choose(texts: Iterable[str], coverage: float, most: int) -> list[str]:
    """Return the most common characters, in code-point order, up to a share of all text or a maximum number.

    Ties are broken by code point. Printable ASCII is always included.

    Args:
        coverage: share of the texts' characters to cover, as in SentencePiece (Kudo and Richardson 2018).
        most: maximum number of characters, unless ASCII alone exceeds it.
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
    """Yield the texts for training, with every character outside the alphabet replaced by `RARE`.

    Texts are split inside names of bytes such as `<0x41>`, so that no merge results in one.
    """
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
    """Train a byte-level BPE tokenizer: special tokens first, then the bytes, then the merges."""
    tokenizer = pipeline(params)
    _train_bpe(tokenizer, texts, params, params.vocab_size, params.special_tokens, pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def train_characters(params: TokenizerParameters, texts: Iterable[str], alphabet: Sequence[str]) -> Tokenizer:
    """Train a character-level BPE tokenizer: special tokens first, then the 256 bytes, the alphabet and the merges.

    Args:
        alphabet: characters that have their own tokens; all others are encoded as bytes.
    """
    learnt = pipeline(params)
    free = params.vocab_size - BYTES - len(params.special_tokens)
    _train_bpe(learnt, prepared(texts, alphabet), params, free, (), alphabet)
    model = json.loads(learnt.to_str())["model"]
    ordered = sorted(model["vocab"], key=model["vocab"].__getitem__)
    names = [*params.special_tokens, *BYTE_TOKENS, *(name for name in ordered if name not in params.special_tokens)]
    vocabulary = {name: index for index, name in enumerate(names)}
    merges = [(left, right) for left, right in model["merges"]]
    tokenizer = pipeline(params, models.BPE(vocabulary, merges, byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in params.special_tokens])
    return tokenizer


def _train_bpe(
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
    """Train a unigram tokenizer: special tokens first, then the 256 bytes, then the most probable pieces of words.

    Args:
        alphabet: characters that may be in pieces; all others are encoded as bytes.

    Raises:
        StageError: there is too little text for a vocabulary of this size.
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
    """Return the learned pieces with their log probabilities, most probable first."""
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

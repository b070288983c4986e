"""Train a tokenizer on a sample of the curated buckets, and load it.

A run that begins from weights, or learns from a teacher, may keep their tokenizer instead (`of_model`).

Special tokens come first, so that end-of-text is id 0 in every vocabulary; then the 256 bytes; then the learnt tokens
(a byte-level vocabulary mixes the last two). `bpe` and `unigram` train the kinds; `pipelines` cuts text into words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, run_items
from plinth.errors import StageError
from plinth.records import Manifest, Part, Step
from plinth.storage.store import Store
from plinth.tokens.tokenizer import encode, trainers
from plinth.tokens.tokenizer.parameters import BYTES, TokenizerParameters
from plinth.tokens.tokenizer.sample import BucketSample, sample, sampled_texts

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
    """The training step; the audit's bounds are no part of its identity."""
    return Step(
        name="tokens.tokenizer",
        version=VERSION,
        params=params.model_dump(mode="json", exclude=set(AUDIT_FIELDS)),
        libraries=fingerprint.libraries("tokenizers", "sentencepiece"),
    )


def run(ctx: Context, params: TokenizerParameters, curated: Mapping[str, Manifest]) -> Manifest:
    """Train on a sample of the buckets.

    Part `tokenizer.json`; stats: `vocab_size` (may stay below the recipe's on little text), `end_of_text`,
    `special_tokens` (name -> id), `sample_bytes` (bucket -> bytes).

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
    """The tokenizer of the model that a run begins from or learns from (the asset `initial` or `teacher`), as a
    manifest of this stage. `vocab_size` counts the rows of their embeddings, which may be more than there are tokens.

    Raises:
        MissingError, IntegrityError: absent, changed, or not a tokenizer.
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
    """The tokenizer of a manifest, verified. Special tokens are never read out of text.

    Raises:
        MissingError, IntegrityError: absent, changed, or not a tokenizer.
    """
    (part,) = tokenizer.named(FILE)
    return encode.load(store, part.blob)


def train(params: TokenizerParameters, corpus: Iterable[str] | Callable[[], Iterable[str]]) -> Tokenizer:
    """Train on texts. The same texts give the same bytes, on any number of threads.

    Args:
        corpus: the texts, or a function that returns them anew: kinds with an alphabet read them twice.

    Raises:
        StageError: too little text for the vocabulary.
    """
    again = corpus if callable(corpus) else _twice(corpus, params)
    if params.kind == "bpe-bytes":
        return trainers.train_bytes(params, _short(again()))
    free = params.vocab_size - BYTES - len(params.special_tokens)
    letters = trainers.choose(again(), params.character_coverage, int(free * ALPHABET_SHARE))
    trainer = trainers.train_characters if params.kind == "bpe-fallback" else trainers.train_unigram
    return trainer(params, _short(again()), letters)


def short_runs(text: str) -> list[str]:
    """The text in pieces, cut within runs of `MAX_RUN` characters or more; almost always the text itself."""
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

"""Byte-level BPE with Hugging Face tokenizers: train on a sample, load.

The pipeline is GPT-2's: no normaliser (text comes back byte for byte), the byte-level pre-tokenizer with its
word pattern, all 256 bytes in the vocabulary (nothing is unknown). Special tokens come first, so that the
end-of-text token is id 0 whatever the vocabulary. With `digits: single` every digit is a token of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from plinth.compute.stage import Item, manifest, run_items
from plinth.context import Context
from plinth.errors import StageError
from plinth.recipe import tokens as recipe
from plinth.records import Manifest, Part, Step
from plinth.storage.store import Store
from plinth.tokens import encode
from plinth.tokens.sample import Sampled, sample, texts

ASSET = "tokenizer"
VERSION = "1"
FILE = "tokenizer.json"

#: The first special token closes every document.
END_OF_TEXT = 0

#: The trainer's time grows with the square of the longest word, and a megabyte of `=` is one word. Longer runs
#: of letters or of spaces are learnt from in pieces of this many characters.
MAX_RUN = 256
_RUN = re.compile(rf"(\S{{{MAX_RUN}}}|\s{{{MAX_RUN}}})")
_BLANKS = re.compile(rf"\s{{{MAX_RUN}}}")

#: Parameters that judge a tokenizer and do not make it.
AUDIT_FIELDS = frozenset({"audit_bytes_per_part", "max_fertility", "min_bytes_per_token"})


@dataclass(frozen=True)
class _Task:
    params: recipe.Tokenizer
    sample: tuple[Sampled, ...]


def step(params: recipe.Tokenizer) -> Step:
    """The training step; the audit's bounds are no part of its identity."""
    return Step(
        name="tokens.tokenizer", version=VERSION, params=params.model_dump(mode="json", exclude=set(AUDIT_FIELDS))
    )


def run(ctx: Context, params: recipe.Tokenizer, curated: Mapping[str, Manifest]) -> Manifest:
    """Train on a sample of the buckets.

    Part `tokenizer.json`; stats: `vocab_size` (may stay below the recipe's on little text), `end_of_text`,
    `special_tokens` (name -> id), `sample_bytes` (bucket -> bytes).

    Raises:
        StageError: there is no text to train on.
    """
    sampled = tuple(sample(ctx, curated, params.sample_bytes, ASSET))
    if not any(found.budget_bytes for found in sampled):
        raise StageError(
            "the tokenizer has no text to train on",
            found=f"empty buckets {[found.bucket for found in sampled]}",
            expected="curated documents",
            remedy="`plinth funnel` shows where they were dropped",
        )
    inputs = [f"{found.bucket}:{found.budget_bytes}" for found in sampled]
    inputs += [part.blob.sha256 for found in sampled for part in found.parts]
    items = [Item(tuple(inputs), _Task(params, sampled))]
    ((part,),) = run_items(ctx, step(params), _train, items, label=f"{ASSET}: train")
    sources = {f"{bucket}/curated": source for bucket, source in sorted(curated.items())}
    return manifest(ASSET, step(params), sources, [part], part.stats)


def load(store: Store, tokenizer: Manifest) -> Tokenizer:
    """The tokenizer of a manifest, verified. Special tokens are never read out of text.

    Raises:
        MissingError, IntegrityError: absent, changed, or not a tokenizer.
    """
    (part,) = tokenizer.named(FILE)
    return encode.load(store, part.blob)


def untrained(params: recipe.Tokenizer) -> Tokenizer:
    """The pipeline with an empty vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words]) if params.digits == "single" else words
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(params: recipe.Tokenizer, corpus: Iterator[str]) -> Tokenizer:
    """Train on texts. The same texts in any order of threads give the same bytes."""
    tokenizer = untrained(params)
    trainer = trainers.BpeTrainer(
        vocab_size=params.vocab_size,
        min_frequency=params.min_frequency,
        special_tokens=list(params.special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with encode.parallel(True):
        tokenizer.train_from_iterator((piece for text in corpus for piece in short_runs(text)), trainer)
    return tokenizer


def short_runs(text: str) -> list[str]:
    """The text in pieces, cut within runs of `MAX_RUN` characters or more; almost always the text itself."""
    longest = max(map(len, text.split()), default=0)
    if longest < MAX_RUN and not _BLANKS.search(text):  # ten times faster than looking for where to cut
        return [text]
    return [piece for piece in _RUN.split(text) if piece]


def _train(store: Store, task: _Task) -> tuple[Part, ...]:
    trained = train(task.params, (text for found in task.sample for text in texts(store, found)))
    stats = {
        "vocab_size": trained.get_vocab_size(),
        "end_of_text": END_OF_TEXT,
        "special_tokens": {name: trained.token_to_id(name) for name in task.params.special_tokens},
        "sample_bytes": {found.bucket: found.budget_bytes for found in task.sample},
    }
    return (Part(name=FILE, blob=store.put_bytes(trained.to_str(pretty=True).encode()), stats=stats),)

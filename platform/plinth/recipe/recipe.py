"""The whole recipe, and the checks that need more than one section."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from plinth.evaluation.parameters import Evaluation
from plinth.recipe.corpus import Corpus
from plinth.recipe.release import Release
from plinth.records import Frozen
from plinth.tokens.mixture import selectors
from plinth.tokens.mixture.parameters import Mixture
from plinth.tokens.order import parameters
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer.parameters import Tokenizer
from plinth.training.parallel.parameters import problems as problems_of_parallel
from plinth.training.parameters import Training

#: Where a problem is, and what it is.
Found = tuple[tuple[str | int, ...], str]


class Recipe(Frozen):
    """From raw corpus to approved checkpoint. Nothing outside this file steers a run."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$", description="Name of the recipe and of its runs.")
    description: str = Field("", description="What it is for, in a sentence.")
    harvest: bool = Field(False, description="Demo: harvest this machine's own text into `input/` first.")
    corpus: Corpus
    tokenizer: Tokenizer = Tokenizer()
    shards: Shards = Shards()
    mixture: Mixture
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    release: Release

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        problems = [*_policies(self), *_samples(self), *_phases(self), *_rates(self), *_batches(self), *_parallel(self)]
        problems += _slices(self)
        if problems:
            text = "; ".join(f"{'.'.join(map(str, key))}: {message}" for key, message in problems)
            raise PydanticCustomError("recipe", "{text}", {"text": text, "problems": problems})
        return self


def _policies(recipe: Recipe) -> Iterator[Found]:
    for name, bucket in recipe.corpus.buckets.items():
        if bucket.policy not in recipe.corpus.policies:
            have = sorted(recipe.corpus.policies)
            yield ("corpus", "buckets", name, "policy"), f"no policy {bucket.policy!r}; have {have}"


def _samples(recipe: Recipe) -> Iterator[Found]:
    for bucket in recipe.tokenizer.sample_weights:
        if bucket not in recipe.corpus.buckets:
            found = f"no bucket {bucket!r}; have {sorted(recipe.corpus.buckets)}"
            yield ("tokenizer", "sample_weights", bucket), found


def _phases(recipe: Recipe) -> Iterator[Found]:
    for index, phase in enumerate(recipe.mixture.phases):
        at = ("mixture", "phases", index)
        for field, key in phase.named():
            for message in selectors.problems(key, recipe.corpus.buckets, recipe.shards.axes):
                yield (*at, field, key), message
        by = phase.curriculum.by if phase.curriculum else "bucket"
        for field, axis in (("temperature_over", phase.temperature_over), ("curriculum", by)):
            if axis not in ("stream", "bucket", *recipe.shards.axes):
                yield (*at, field), f"shards.axes has no axis {axis!r}{selectors.nearest(axis, recipe.shards.axes)}"
    for key in recipe.mixture.epoch_caps:
        for message in selectors.problems(key, recipe.corpus.buckets, recipe.shards.axes):
            yield ("mixture", "epoch_caps", key), message
    total = sum(phase.fraction for phase in recipe.mixture.phases)
    if abs(total - 1) > 1e-9:
        yield ("mixture", "phases"), f"fractions add up to {total:g}, expected 1"


def _rates(recipe: Recipe) -> Iterator[Found]:
    optimizer = recipe.training.optimizer
    if optimizer.min_lr > optimizer.lr:
        yield ("training", "optimizer", "min_lr"), f"{optimizer.min_lr:g} is above lr = {optimizer.lr:g}"
    total = recipe.mixture.total_tokens
    closing = optimizer.decay(total) if optimizer.schedule == "wsd" else 0.0
    share = (optimizer.warmup(total) + closing) / total
    if share > 1:
        key = "warmup_fraction" if optimizer.warmup_tokens is None else "warmup_tokens"
        yield (
            ("training", "optimizer", key),
            f"warm-up and decay take {share:g} of the run, expected at most 1",
        )


def _batches(recipe: Recipe) -> Iterator[Found]:
    training = recipe.training
    ranks, micro = max(1, training.parallel.data_ranks(training.launch.ranks)), training.micro_batch_sequences
    wrong = list(parameters.problems(training, ranks, micro, recipe.mixture.sequence_tokens))
    for key, message in wrong:
        yield ("training", *key), message
    for key, length in parameters.lengths(training):
        if length % training.parallel.sequence:
            yield ("training", *key), f"{length} does not divide over parallel.sequence = {training.parallel.sequence}"
    sequences = recipe.mixture.total_tokens // recipe.mixture.sequence_tokens
    if sequences < training.global_batch_sequences:
        yield (
            ("mixture", "total_tokens"),
            f"{recipe.mixture.total_tokens} tokens are {sequences} sequences of {recipe.mixture.sequence_tokens}, "
            f"fewer than one step's {training.global_batch_sequences}",
        )
    elif not wrong:
        yield from _misplaced(recipe, sequences)


def _misplaced(recipe: Recipe, sequences: int) -> Iterator[Found]:
    """The first change that never takes effect: later it would be found after days of work on the corpus."""
    from plinth.tokens.order.steps import Misplaced, schedule

    training = recipe.training
    changes = (training.batch_schedule, training.length_schedule, training.amendments)
    try:
        schedule(sequences, recipe.mixture.sequence_tokens, training.global_batch_sequences, *changes)
    except Misplaced as error:
        yield ("training", *error.key), error.why


def _slices(recipe: Recipe) -> Iterator[Found]:
    """Held-out slices are buckets."""
    validation, plateau, have = recipe.training.validation, recipe.training.stopping.plateau, recipe.corpus.buckets
    for section, key in ((validation, ("validation",)), (plateau, ("stopping", "plateau"))):
        for index, name in enumerate(section.slices if section else ()):
            if name not in have:
                yield ("training", *key, "slices", index), f"no bucket {name!r}{selectors.nearest(name, have)}"


def _parallel(recipe: Recipe) -> Iterator[Found]:
    training = recipe.training
    for key, message in problems_of_parallel(
        training.parallel,
        training.model,
        ranks=training.launch.ranks,
        sequence_tokens=recipe.mixture.sequence_tokens,
        precision=training.precision,
    ):
        yield ("training", "parallel", key), message

"""Warnings about settings that are legal but probably mistaken; never fatal."""

from __future__ import annotations

from collections.abc import Iterator

from plinth.recipe.recipe import Recipe

PER_DOCUMENT = "per-document"


def notes(recipe: Recipe) -> list[str]:
    """Sentences, each about one place of the recipe."""
    return [*_test(recipe), *_licences(recipe), *_never(recipe)]


def _test(recipe: Recipe) -> Iterator[str]:
    if recipe.test:
        yield "test: a test recipe; generated labelled sets and learned gates without evidence are let in"


def _never(recipe: Recipe) -> Iterator[str]:
    """Intervals longer than the run."""
    from plinth.tokens.order.steps import schedule

    training, mixture = recipe.training, recipe.mixture
    if mixture is None:
        return
    changes = (training.batch_schedule, training.length_schedule, training.amendments)
    sequences = mixture.total_tokens // mixture.sequence_tokens
    total = schedule(sequences, mixture.sequence_tokens, training.global_batch_sequences, *changes).total
    guard, looks = training.guard, training.validation
    seldom = [
        ("guard.window_steps / 4", guard.min_steps if guard.enabled else 0, "the guard judges none of them"),
        ("validation.every_steps", looks.every_steps if looks else 0, "held-out slices are measured at the end only"),
        ("checkpoints.every_steps", training.checkpoints.every_steps, "nothing is saved before the end"),
    ]
    for key, steps, so in seldom:
        if steps >= total:
            yield f"training.{key}: {steps:,}, and the run has {total:,} steps: {so}"


def _licences(recipe: Recipe) -> Iterator[str]:
    """Sources whose every document the licence gate stops."""
    from plinth.corpus.annotate.licence import judge

    permitted = tuple(sorted(recipe.corpus.permitted_licences))
    for name, bucket in recipe.corpus.buckets.items():
        for index, source in enumerate(bucket.sources):
            if source.licence != PER_DOCUMENT and not judge(source.licence, permitted)[1]:
                yield (
                    f"corpus.buckets.{name}.sources[{index}].licence: {source.licence} is not among "
                    "`corpus.permitted_licences`, so the licence gate stops every document of this source"
                )

"""Warnings about settings that are legal but probably mistaken, and checks of the user's lists and probes against
their files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from plinth.errors import PlinthError
from plinth.recipe.recipe import Recipe
from plinth.recipe.yaml_lines import Key

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


#: Larger lists take the run longer than a person waits for a check.
MAX_BYTES = 32 * 2**20


def list_files(recipe: Recipe, folder: Path) -> Iterator[tuple[Key, str, str]]:
    """Key, problem and hint of lists that an annotator or the gate of illegal content could not read.

    Args:
        folder: what paths are relative to; files that are not there are passed over, as the run reports them.
    """
    from plinth.corpus.annotate.base import annotator
    from plinth.corpus.illegal import lists as illegal

    corpus, faults = recipe.corpus, dict[Key, tuple[str, str]]()
    for name, raw in corpus.annotate.items():
        chosen = annotator(name)
        params = chosen.params.model_validate(raw)
        files = _files(corpus.lists.get(getattr(params, "lists", "")), folder)
        if files and chosen.prepare is not None:
            try:
                chosen.prepare(params, {f"lists/{params.lists}": files})  # type: ignore[attr-defined]
            except PlinthError as error:
                faults[("corpus", "lists", params.lists)] = _words(error)  # type: ignore[attr-defined]
    gate = corpus.illegal
    if gate.lists is not None and (files := _files(corpus.lists.get(gate.lists), folder)):
        try:
            illegal.read(files, f"lists/{gate.lists}", gate)
        except PlinthError as error:
            faults[("corpus", "lists", gate.lists)] = _words(error)
    yield from ((key, *words) for key, words in faults.items())


def _files(location: str | None, folder: Path) -> dict[str, Path]:
    """Files of a list by the names that the run gives them; none where they are elsewhere, or too many bytes."""
    if location is None or "://" in location or not (place := folder / location).exists():
        return {}
    found = [place] if place.is_file() else sorted(one for one in place.rglob("*") if one.is_file())
    if sum(one.stat().st_size for one in found) > MAX_BYTES:
        return {}
    return {one.name if place.is_file() else one.relative_to(place).as_posix(): one for one in found}


def _words(error: PlinthError) -> tuple[str, str]:
    return error.brief, f"expected {error.expected}" if error.expected else error.remedy or ""


def probe_files(recipe: Recipe, folder: Path) -> Iterator[tuple[Key, str, str]]:
    """Key, problem and hint of files that are no probes: too many bad lines, or fewer items than examples.

    Args:
        folder: what paths are relative to; files that are not there are passed over, as the run reports them.
    """
    from plinth.evaluation.probes import probe_sets

    for name, given in recipe.evaluation.probes.sets.items():
        data = None
        with suppress(OSError):
            data = (folder / given.path).read_bytes()
        if data is None:
            continue
        try:
            probe_sets.read(name, given, data)
        except PlinthError as error:
            yield ("evaluation", "probes", "sets", name), error.brief, error.remedy or ""

"""What is allowed in a recipe and seldom meant: said when a recipe is checked and when it is run, and nothing fails."""

from __future__ import annotations

from collections.abc import Iterator

from plinth.recipe.model import Recipe

PER_DOCUMENT = "per-document"


def notes(recipe: Recipe) -> list[str]:
    """Sentences, each about one place of the recipe."""
    return [*_licences(recipe)]


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

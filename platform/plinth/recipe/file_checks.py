"""Checks of the user's lists and probes against their files, where these are there already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from plinth.errors import PlinthError
from plinth.recipe.yaml_lines import Key

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe

#: Larger lists take the run longer than a person waits for a check.
MAX_BYTES = 32 * 2**20


def list_files(recipe: Recipe, folder: Path) -> Iterator[tuple[Key, str, str]]:
    """Key, problem and hint of lists that an annotator or the gate of illegal content could not read.

    Args:
        folder: what paths are relative to; files that are not there are passed over, as the run reports them.
    """
    from plinth.corpus.annotate.registry import annotator
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
    from plinth.evaluation.probes import user_set

    for name, given in recipe.evaluation.probes.sets.items():
        data = None
        with suppress(OSError):
            data = (folder / given.path).read_bytes()
        if data is None:
            continue
        try:
            user_set.read(name, given, data)
        except PlinthError as error:
            yield ("evaluation", "probes", "sets", name), error.brief, error.remedy or ""

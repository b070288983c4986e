"""Checks of the user's probes against their files, where these are there already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from plinth.errors import PlinthError
from plinth.recipe.yaml_lines import Key

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe


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

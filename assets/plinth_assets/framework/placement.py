"""DagsterPlacement of a recipe's definitions in a Dagster code location: the prefix of all keys and names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import dagster as dg

from plinth.errors import RecipeError

#: Part of a prefix. Two underscores separate the parts in names, so different prefixes never give the same name.
_PART = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*")


@dataclass(frozen=True)
class DagsterPlacement:
    """Key prefix of a recipe's definitions, and address of the workspace's pages.

    Several recipes in one code location need different prefixes. The prefix is part of Dagster's keys and names only:
    assets in the workspace, data versions and recipes do not contain it.

    Args:
        prefix: parts of the prefix; empty for a code location with one recipe.
        pages: address of the pages, to which every asset links; empty if they are not served.
    """

    prefix: tuple[str, ...] = ()
    pages: str = ""

    @classmethod
    def of(cls, key_prefix: str | Sequence[str] = "", pages: str = "") -> Self:
        """Return the placement for a prefix, given as its parts or as text with slashes.

        Raises:
            RecipeError: a part contains other characters than letters, digits and single underscores.
        """
        parts = key_prefix.split("/") if isinstance(key_prefix, str) else key_prefix
        prefix = tuple(parts) if key_prefix else ()
        if not all(map(_PART.fullmatch, prefix)):
            raise RecipeError(
                f"{'/'.join(prefix)!r} cannot be a key prefix",
                expected="parts of letters, digits and single underscores, separated by slashes, such as team_a/web",
                remedy="correct `key_prefix`",
            )
        return cls(prefix, pages)

    def key(self, asset: str) -> dg.AssetKey:
        """Return the Dagster key of an asset of the workspace."""
        return dg.AssetKey([*self.prefix, *asset.split("/")])

    def has(self, key: dg.AssetKey) -> bool:
        """Return True if a key has this prefix."""
        return tuple(key.path[: len(self.prefix)]) == self.prefix

    def asset(self, key: dg.AssetKey) -> str:
        """Return the workspace's asset for a Dagster key."""
        return "/".join(key.path[len(self.prefix) :])

    def name(self, name: str) -> str:
        """Return the Dagster name of a job, sensor, schedule, group, op or resource."""
        return "__".join((*self.prefix, name))


#: DagsterPlacement in a code location with one recipe.
ALONE = DagsterPlacement()

"""Entry points of installed packages in Plinth's groups. Reading them imports neither these packages nor pydantic.

`plinth.extensions` builds catalogs from these entry points.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import metadata, util
from typing import NamedTuple

from plinth.errors import RecipeError

PREFIX = "plinth."
#: Plinth's own distribution. Its entry points are the members from ring packages.
OWN = "plinth"


class Entry(NamedTuple):
    """Entry point of an installed package, not yet imported."""

    group: str
    name: str
    value: str
    distribution: str
    version: str

    @property
    def package(self) -> str:
        """Name and version of the package."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def top(self) -> str:
        """Top-level package of the entry point's module."""
        return self.value.partition(":")[0].partition(".")[0]


def entries() -> tuple[Entry, ...]:
    """Return every entry point of installed packages in groups that begin with `plinth.`, except entry points of ring
    packages that are not installed."""
    return _usable(tuple(sys.path))


def absent(group: str) -> dict[str, str]:
    """Return the members of a group that belong to absent ring packages: name -> package."""
    path = tuple(sys.path)
    every, gone = _entries(path), _absent(path)
    return {one.name: one.top for one in every if one.group == group and one.distribution == OWN and one.top in gone}


def not_here(what: str, package: str) -> RecipeError:
    """Return the error for a member of an absent ring package."""
    return RecipeError(
        f"{what} needs the package {package}, which is not installed",
        expected="an installation of Plinth with its ring",
        remedy="install the complete Plinth wheel, or avoid this feature",
    )


def name_and_version(distribution: metadata.Distribution) -> tuple[str, str]:
    """Return name and version of an installed distribution from the first lines of its metadata. The standard library
    would parse all metadata, including the package's whole description."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    head = dict(line.partition(": ")[::2] for line in text.partition("\n\n")[0].splitlines() if line[:1].isalpha())
    try:
        return head["Name"].strip(), head["Version"].strip()
    except KeyError:  # a distribution written by another tool
        return distribution.name, distribution.version


@lru_cache(maxsize=4)
def _entries(path: tuple[str, ...]) -> tuple[Entry, ...]:
    found, seen = list[Entry](), set[str]()
    for distribution in metadata.distributions(path=list(path)):
        name, version = name_and_version(distribution)
        if name not in seen:  # Python imports the first of two copies
            seen.add(name)
            for point in distribution.entry_points:
                if point.group.startswith(PREFIX):
                    value = point.value.partition("[")[0].replace(" ", "")
                    found.append(
                        Entry(group=point.group, name=point.name, value=value, distribution=name, version=version)
                    )
    return tuple(sorted(found, key=lambda entry: (entry.group, entry.name, entry.distribution)))


@lru_cache(maxsize=4)
def _absent(path: tuple[str, ...]) -> frozenset[str]:
    """Return the ring packages that are not installed."""
    ring = {entry.top for entry in _entries(path) if entry.distribution == OWN}
    return frozenset(top for top in ring if util.find_spec(top) is None)


@lru_cache(maxsize=4)
def _usable(path: tuple[str, ...]) -> tuple[Entry, ...]:
    gone = _absent(path)
    return tuple(entry for entry in _entries(path) if entry.distribution != OWN or entry.top not in gone)

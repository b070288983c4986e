"""A catalog with members that a test made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plinth.extensions import Catalogue, Origin


class Including(Catalogue[Any]):
    """A catalog whose own members are extended, or replaced where names are equal."""

    def __init__(self, known: Catalogue[Any], *members: Any) -> None:
        self.__dict__.update(known.__dict__)
        self._known, self._members = known, {member.name: member for member in members}

    def __contains__(self, name: object) -> bool:
        return name in self._members or name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._known, *self._members)))

    def _member(self, name: str) -> tuple[Any, Origin | None]:
        return (self._members[name], None) if name in self._members else self._known._member(name)

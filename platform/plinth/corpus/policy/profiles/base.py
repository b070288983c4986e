"""The record that describes a profile: rules and edits of one project, and the annotators that they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Profile:
    """The rules of a project, ready for a policy.

    Args:
        name: `family/project`.
        version: raise it when a rule changes. Rules are part of a policy's identity by themselves.
        description: one sentence for the catalogue.
        source: paper, and file of the project.
        rules: `(reason, drop)` in the project's order.
        edits: `(reason, spans)`: what is cut from the text of a kept document.
        annotators: those whose columns are read, each with the parameters that the counting of the project needs.
    """

    name: str
    version: str
    description: str
    source: str
    rules: tuple[tuple[str, str], ...]
    edits: tuple[tuple[str, str], ...] = ()
    annotators: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)

    @property
    def family(self) -> str:
        """The family of rules: `gopher` of `gopher/dolma`."""
        return self.name.partition("/")[0]

    @property
    def project(self) -> str:
        """The project that counts, as part of a reason: `dolma` of `gopher/dolma`, `v1_6` of `dolma/1.6`."""
        word = "".join(letter if letter.isalnum() else "_" for letter in self.name.partition("/")[2].lower())
        return f"v{word}" if word[:1].isdigit() else word

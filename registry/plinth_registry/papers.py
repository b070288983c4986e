"""Documents about a model, written by the packages in the entry point group `plinth.papers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.extensions import Catalogue
from plinth_registry.candidate import Candidate
from plinth_registry.releases import ReleaseRecord


class ReleasedModel(NamedTuple):
    """Verified release with its release record and candidate."""

    record: ReleaseRecord
    candidate: Candidate

    @property
    def name(self) -> str:
        return f"{self.record.model}/{self.record.version}"


class LeavingPapers(NamedTuple):
    """Documents of a release for an export: file contents by name, and signed statements by name with their signing
    role.
    """

    files: Mapping[str, bytes]
    evidence: Mapping[str, tuple[str, bytes]]


@dataclass(frozen=True)
class Papers:
    """Documents about a model, as a member of the entry point group `plinth.papers`.

    Args:
        name: name of the entry point.
        leaving: function that returns the documents of an export, given the context and the released model. It raises
            GateError if the policy requires a signature that is missing.
        card: function that returns the model card of a candidate, or of its release, in Markdown; MLflow shows it in
            the version's description. None if these documents have no model card.
    """

    name: str
    leaving: Callable[[Context, ReleasedModel], LeavingPapers]
    card: Callable[[Context, Candidate], str] | None = None


PAPERS = Catalogue("plinth.papers", "papers", Papers, {})


def model_card(ctx: Context, found: Candidate) -> str:
    """Return the model card of a candidate, or of its release, in Markdown. Return an empty string if no installed
    package writes one, or if its evidence is missing or was changed.
    """
    card = next((one.card for one in PAPERS.values() if one.card), None)
    try:
        return card(ctx, found) if card else ""
    except PlinthError:
        return ""

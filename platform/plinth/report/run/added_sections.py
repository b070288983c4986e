"""Sections that packages add to the page of a run: members of the group `plinth.run_sections`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plinth.extensions import Catalogue


@dataclass(frozen=True, kw_only=True)
class AddedSection:
    """A section of the page of a run, between its rank-seconds and its metrics.

    Args:
        name: its anchor.
        title: in the list of contents.
        html: `(context, configuration)` -> its HTML, a function of the run's files; empty where it has nothing to show.
        question: what its command answers, for the list of next steps.
        command: `plinth … RUN`, in which the page writes the id of the run for RUN.
    """

    name: str
    title: str
    html: Callable[[Any, Any], str]
    question: str
    command: str


SECTIONS = Catalogue("plinth.run_sections", "section of a run's page", AddedSection, {})

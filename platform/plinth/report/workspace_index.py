"""The index of a workspace: its state on one screen, its runs, and every page that was written; loads nothing.

Does not belong here: reading the workspace (`plinth_jobs.workspace_index`).
"""

from __future__ import annotations

from typing import Literal

from plinth.records import Frozen
from plinth.report.page import safe_link, template
from plinth.training.telemetry.run_figures import LABELS

#: How a part of the workspace stands. `unknown`: it could not be read, which is not `good`.
Standing = Literal["good", "attention", "bad", "unknown", "none"]

#: Each standing as a word, so that nothing is said by colour alone.
WORDS: dict[Standing, str] = {
    "good": "ok",
    "attention": "warning",
    "bad": "action required",
    "unknown": "unknown",
    "none": "",
}


class StateTile(Frozen):
    """One part of the workspace as it stands: `href` leads to its page, relative to the index."""

    label: str
    value: str
    note: str = ""
    standing: Standing = "none"
    href: str = ""


class RunLine(Frozen):
    """A training run; `state` is a word such as `running` or `finished`."""

    run: str
    state: str
    standing: Standing = "none"
    steps: int
    total_steps: int
    loss: float | None = None
    goodput: float | None = None
    updated: str = ""
    href: str = ""


class PageLine(Frozen):
    """A page beside the index: its title and when it was written (UTC)."""

    title: str
    href: str
    written: str


class PageGroup(Frozen):
    """Pages of one kind, newest first, and the command that writes one."""

    name: str
    command: str = ""
    pages: tuple[PageLine, ...] = ()


class ServerLink(Frozen):
    """A server of the workspace and where it answers now."""

    name: str
    url: str


class IndexData(Frozen):
    """Contents of the index: `title` names recipe and release, `workspace` is its folder; `older_runs` have no line."""

    title: str = "Plinth workspace"
    workspace: str
    recipe: str = ""
    servers: tuple[ServerLink, ...] = ()
    written: str
    tiles: tuple[StateTile, ...] = ()
    runs: tuple[RunLine, ...] = ()
    older_runs: int = 0
    groups: tuple[PageGroup, ...] = ()


def page(data: IndexData) -> str:
    """The index as HTML. The same data gives the same bytes."""
    return template("workspace_index.html.j2").render(
        data=data, words=WORDS, loss_label=LABELS["final_loss"], safe_link=safe_link
    )

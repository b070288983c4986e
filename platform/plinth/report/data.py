"""Contents of the page of results, as plain records. The page leaves absent sections out.

Statistics go in as their assets made them (`funnel`, `mixture.rows`, the run's timeline, `evaluation`), so
that a caller copies and does not compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from plinth.records import Frozen

Row = Mapping[str, Any]


class Fact(Frozen):
    """A number or word with its name; `note` explains it."""

    label: str
    value: str
    note: str = ""


class RunCard(Frozen):
    """A training run: `steps` and `events` of its timeline, and facts such as tokens per second."""

    run_id: str
    steps: tuple[Row, ...] = Field(description="Events `step`: step, loss, lr.")
    events: tuple[Row, ...] = Field((), description="All other events of the timeline, in order.")
    final_loss: float | None = Field(None, description="As `training.telemetry.run_figures` defines it.")
    facts: tuple[Fact, ...] = ()


class GateOutcome(Frozen):
    """State of one gate, with its reason."""

    name: str
    state: str
    tone: Literal["pass", "note", "fail"] = Field(description="Badge: `fail` blocks promotion, `note` is no pass.")
    reason: str


class ReleaseCard(Frozen):
    """What became of a candidate: its version of the release, the place of that now, and its approvals."""

    name: str
    version: str = Field(description="Empty where the candidate was never released.")
    alias: str = Field("", description="Such as `champion` or `rolled back`; empty where it was never released.")
    approved_by: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()


class Ancestor(Frozen):
    """A line of the lineage summary: a kind of asset, how many there are, and a digest when it is one."""

    asset: str
    digest: str = ""
    note: str = ""


class Next(Frozen):
    """A next step: a command to type, or a page to open."""

    what: str
    command: str = ""
    link: str = ""


class ReportData(Frozen):
    """A page of results."""

    title: str
    subtitle: str = ""
    written: str = Field("", description="When the page was written, for what may change afterwards.")
    headline: tuple[Fact, ...] = ()
    release: ReleaseCard | None = None
    gates: tuple[GateOutcome, ...] = ()
    gates_summary: str = Field("", description="Outcome and number of gates by state.")
    slices: Mapping[str, Row] = Field(default_factory=dict, description="`stats['slices']` of the evaluation.")
    languages: Mapping[str, Row] = Field(default_factory=dict, description="The same by language.")
    run: RunCard | None = None
    funnel: Row | None = Field(None, description="Statistics of the asset `funnel`.")
    mixture: tuple[Row, ...] = Field((), description="`plinth.tokens.mixture.mixture.rows` of the mixture.")
    lineage: tuple[Ancestor, ...] = ()
    next: tuple[Next, ...] = ()

"""One self-contained page: HTML and inline SVG, nothing loaded, nothing executed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plinth.records import Frozen
from plinth.report import figures, sankey, style
from plinth.report.style import svg

if TYPE_CHECKING:
    from jinja2 import Template

# Contents of the page of results, as plain records. The page leaves absent sections out.
#
# Statistics go in as their assets made them (`funnel`, `mixture.rows`, the run's timeline, `evaluation`), so
# that a caller copies and does not compute.

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


REASONS_SHOWN = 12
LINK_SCHEMES = ("http://", "https://")  # a served page cannot open `file://`
#: A page next to this one, or the Data Docs of the workspace.
_BESIDE = re.compile(r"(\.\./gx/([a-z_]+/)+)?[A-Za-z0-9][A-Za-z0-9_.-]*\.html")


def page(data: ReportData) -> str:
    """The page as HTML. The same data gives the same bytes."""
    return template("page.html.j2").render(
        data=data,
        plots=_plots(data),
        reasons=reasons(data.funnel) if data.funnel else [],
        rules=rules(data.funnel) if data.funnel else [],
        factors=_factors(data.funnel) if data.funnel else [],
        safe_link=safe_link,
    )


def reasons(funnel: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Why documents were removed, most frequent first: stage, reason, documents, share of all that came in."""
    stages = funnel["total"]["stages"]
    total = stages[0]["documents_in"] or 1
    rows = [
        {"stage": row["stage"], "reason": reason, "documents": found["documents"], "share": found["documents"] / total}
        for row in stages
        for reason, found in row["reasons"].items()
        if found["documents"] and row["stage"] != "curated"  # what is edited there stays
    ]
    return sorted(rows, key=lambda row: (-row["documents"], row["stage"], row["reason"]))[:REASONS_SHOWN]


def rules(funnel: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rules of the policies that fired, most frequent first: documents they fire on, take first, take alone."""
    found = funnel["total"].get("rules", {})
    rows = [{"rule": rule, **counts} for rule, counts in found.items() if counts["fired"]]
    return sorted(rows, key=lambda row: (-row["fired"], row["rule"]))


def _factors(funnel: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The effective token budget and what it is made of."""
    effective = funnel["total"].get("effective", {})
    shown = {
        "nominal_bytes": ("text the sources would hold", style.size),
        "rho_parse": ("share that parsed", style.percent),
        "rho_quality": ("share that the policy keeps", style.percent),
        "r_dup": ("share that was duplicated", style.percent),
        "rho_rest": ("share of that for training, not held out or cut", style.percent),
        "r_pad": ("padding ratio", style.percent),
        "effective_bytes": ("effective text", style.size),
        "effective_tokens": ("effective tokens", style.count),
    }
    return [(label, form(float(effective[name]))) for name, (label, form) in shown.items() if name in effective]


def _plots(data: ReportData) -> dict[str, str]:
    made = {}
    if data.funnel:
        made["funnel"] = svg(figures.funnel, data.funnel, title="Documents left after each stage, by bucket")
        made["sankey"] = svg(sankey.figure, data.funnel, title="What each stage and reason took, by bucket")
    if data.mixture:
        made["mixture"] = svg(figures.mixture, data.mixture, title="Planned and realised shares of the buckets")
    if data.run and data.run.steps:
        drawn = data.run.steps, data.run.events, data.run.final_loss
        made["loss"] = svg(figures.loss, *drawn, title="Training loss by optimizer step")
    if data.slices:
        made["slices"] = svg(figures.bits_per_byte, data.slices, title="Bits per byte by slice, against baselines")
    return made


def safe_link(link: str) -> str:
    """A link as it is, or nothing when it is one that a browser would execute; a page beside this one has no scheme."""
    return link if link.startswith(LINK_SCHEMES) or _BESIDE.fullmatch(link) else ""


@cache
def template(name: str, package: str = "plinth.report") -> Template:
    """A page's template, by its path inside a package; what it includes is found there or in this package."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(one, ".") for one in (package, "plinth.report")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": style.count, "size": style.size, "percent": style.percent}
    return environment.get_template(name)

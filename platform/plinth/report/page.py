"""The page of results, the data card and the index of a workspace. Pages are HTML and inline SVG, without scripts or
external resources.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape, unescape
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup
from pydantic import Field

from plinth.records import Frozen
from plinth.report import figures, sankey, style
from plinth.report.style import svg
from plinth.text import counted, markdown_code, markdown_text
from plinth.training.telemetry.timeline import LABELS

if TYPE_CHECKING:
    from jinja2 import Template

# Contents of the page of results, as plain records. The page leaves absent sections out.
#
# Statistics are passed unchanged from their assets (`funnel`, `mixture.rows`, the run's timeline, `evaluation`), so
# callers need not compute anything.

Row = Mapping[str, Any]


class Fact(Frozen):
    """A number or word with a label. `note` explains the value."""

    label: str
    value: str
    note: str = ""


class RunCard(Frozen):
    """A training run: its `steps`, the other `events` of its timeline, and facts such as tokens per second."""

    run_id: str
    steps: tuple[Row, ...] = Field(description="The events named `step`, with step, loss and learning rate.")
    events: tuple[Row, ...] = Field((), description="All other events of the timeline, in order.")
    final_loss: float | None = Field(None, description="Final loss, as defined in `training.telemetry.timeline`.")
    facts: tuple[Fact, ...] = ()


class GateOutcome(Frozen):
    """State of one gate, with its reason."""

    name: str
    state: str
    tone: Literal["pass", "note", "fail"] = Field(
        description="Badge color. A gate with `fail` blocks promotion; a gate with `note` is not passed."
    )
    reason: str
    requires: str = Field("", description="Requirement of the gate, as a sentence.")


class ReleaseCard(Frozen):
    """Release state of a candidate: its version, current alias and approvals."""

    name: str
    version: str = Field(description="Version of the candidate; empty if the candidate was never released.")
    alias: str = Field("", description="Alias, such as `champion` or `rolled back`; empty if there was no release.")
    approved_by: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()


class Ancestor(Frozen):
    """Line of the lineage table: a kind of asset, the number of its manifests, and the digest if there is only one
    manifest."""

    asset: str
    digest: str = ""
    note: str = ""


class Next(Frozen):
    """A next step: a command to type, or a page to open."""

    what: str
    command: str = ""
    link: str = ""


class ReportData(Frozen):
    """Contents of a page of results."""

    title: str
    subtitle: str = ""
    written: str = Field("", description="Time when the page was written. Release and gate states may change later.")
    headline: tuple[Fact, ...] = ()
    release: ReleaseCard | None = None
    gates: tuple[GateOutcome, ...] = ()
    gates_summary: str = Field("", description="Overall outcome, and the number of gates by state.")
    slices: Mapping[str, Row] = Field(default_factory=dict, description="`stats['slices']` of the evaluation.")
    languages: Mapping[str, Row] = Field(default_factory=dict, description="Statistics as in `slices`, by language.")
    run: RunCard | None = None
    funnel: Row | None = Field(None, description="Statistics of the asset `funnel`.")
    mixture: tuple[Row, ...] = Field((), description="`plinth.tokens.mixture.mixture.rows` of the mixture.")
    lineage: tuple[Ancestor, ...] = ()
    next: tuple[Next, ...] = ()


REASONS_SHOWN = 12
#: State of a gate that waits for a person or a measurement: a warning, not a failure.
PENDING = "pending"
LINK_SCHEMES = ("http://", "https://")  # a served page cannot open `file://`
#: A page next to this one, or the Data Docs of the workspace.
_BESIDE = re.compile(r"(\.\./gx/([a-z_]+/)+)?[A-Za-z0-9][A-Za-z0-9_.-]*\.html")


def page(data: ReportData) -> str:
    """Return the page of results as HTML. The same data gives the same bytes."""
    verdict, tone = _verdict(data)
    return template("page.html.j2").render(
        data=data,
        verdict=verdict,
        tone=tone,
        findings=_findings(data),
        plots=_plots(data),
        reasons=reasons(data.funnel) if data.funnel else [],
        reasons_shown=REASONS_SHOWN,
        stage_notes=STAGE_NOTES,
        lineage_notes=LINEAGE_NOTES,
        rules=rules(data.funnel) if data.funnel else [],
        factors=_factors(data.funnel) if data.funnel else [],
        safe_link=safe_link,
    )


def _verdict(data: ReportData) -> tuple[str, str]:
    """Return a sentence on the release decision for the candidate, and its tone. Both are empty if no gate was
    evaluated."""
    failed = ", ".join(gate.name for gate in data.gates if gate.tone == "fail" and gate.state != PENDING)
    pending = ", ".join(gate.name for gate in data.gates if gate.tone == "fail" and gate.state == PENDING)
    alias = data.release.alias if data.release else ""
    if failed:
        return f"May not be released: blocked by {failed}.", "fail"
    if pending:
        return f"May not be released yet: {pending} pending.", "look"
    if alias == "rolled back":
        return "Rolled back.", "fail"
    if alias:
        return f"Released as {alias}: all required gates passed.", "pass"
    return ("May be released: all required gates passed.", "pass") if data.gates else ("", "")


def _findings(data: ReportData) -> dict[str, str]:
    """Return headings by section, for the sections that have a finding."""
    found = {}
    if data.gates:
        found["gates"] = _gates(data.gates)
    if data.slices:
        fewest = sum(row["model"] <= min(row["trigram"], row["gzip"]) for row in data.slices.values())
        found["slices"] = (
            f"The model needs fewer bits per byte than gzip and a trigram model on {fewest} of "
            f"{counted(len(data.slices), 'bucket')}"
        )
    if data.mixture:
        gap = max(abs(row["share"] - row["weight"]) for row in data.mixture)
        found["mixture"] = f"Realized bucket shares differ from the plan by at most {100 * gap:.2g} percentage points"
    if data.run and data.run.steps:
        first, last = data.run.steps[0]["loss"], data.run.final_loss
        found["run"] = style.change("Training loss", first, last, len(data.run.steps))
    if data.funnel:
        stages = data.funnel["total"]["stages"]
        read, kept = stages[0]["documents_in"], stages[-1]["documents_out"]
        found["funnel"] = f"{style.percent(kept / (read or 1))} of {read:,} records remain for training"
    return {name: text for name, text in found.items() if text}


def _gates(gates: Sequence[GateOutcome]) -> str:
    """Count the gates by outcome: `18 release gates passed, none failed, 3 do not apply`."""
    of = Counter(gate.state for gate in gates)
    failed = sum(gate.tone == "fail" and gate.state != PENDING for gate in gates)
    parts = [f"{counted(of['passed'], 'release gate')} passed", f"{failed or 'none'} failed"]
    parts += [f"{of[state]} {state}" for state in (PENDING, "waived", "skipped") if of[state]]
    if idle := of["not applicable"]:
        parts.append("1 does not apply" if idle == 1 else f"{idle} do not apply")
    return ", ".join(parts)


#: Explanations of funnel stages, for the page of results.
STAGE_NOTES: Mapping[str, str] = {
    "documents": "the record is not a document, or is damaged",
    "policy": "a rule of the bucket's document policy matches, or the license is not permitted",
    "exact": "an identical document is kept",
    "near": "a nearly identical document is kept",
    "semantic": "a document with a similar meaning is kept",
    "lines": "most lines occur in other documents",
    "substring": "most of the text occurs in other documents",
    "holdout": "kept for evaluation only",
    "contamination": "too little text or too many pieces remain when passages shared with held-out text are cut",
    "protected": "the document contains a benchmark or probe item (leaked), comes from an address that publishes such "
    "items (benchmark_source), or resembles one and is not in the fixed share of such documents that is kept "
    "(downweighted)",
}

#: Explanations of kinds of manifests, for the page of results.
LINEAGE_NOTES: Mapping[str, str] = {
    "protected": "matches of each document with benchmark and probe items",
    "verdicts": "the decision on each document of a bucket, with the reason",
}


def reasons(funnel: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reasons for removal, most frequent first, each with stage, number of documents, and share of all input
    documents."""
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
    """Return the policy rules that matched, most frequent first, with the number of documents that each rule matched,
    matched first, and matched as the only rule."""
    found = funnel["total"].get("rules", {})
    rows = [{"rule": rule, **counts} for rule, counts in found.items() if counts["fired"]]
    return sorted(rows, key=lambda row: (-row["fired"], row["rule"]))


def _factors(funnel: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the factors of the effective token budget, as labels and values."""
    effective = funnel["total"].get("effective", {})
    shown = {
        "nominal_bytes": ("nominal text of the sources", style.size),
        "rho_parse": ("share of records that parse", style.percent),
        "rho_quality": ("share of text that the policy keeps", style.percent),
        "r_dup": ("share of kept text that is duplicated", style.percent),
        "rho_rest": ("share left after held-out text, overlaps with it and edited spans are removed", style.percent),
        "r_pad": ("padding ratio", style.percent),
        "effective_bytes": ("effective text", style.size),
        "effective_tokens": ("effective tokens", style.count),
    }
    return [(label, form(float(effective[name]))) for name, (label, form) in shown.items() if name in effective]


def _plots(data: ReportData) -> dict[str, str]:
    made = {}
    if data.funnel:
        made["funnel"] = svg(figures.funnel, data.funnel, title="Documents left after each stage, by bucket")
        made["sankey"] = svg(sankey.figure, data.funnel, title="Documents removed by each stage and reason, by bucket")
    if data.mixture:
        made["mixture"] = svg(figures.mixture, data.mixture, title="Planned and realized shares of the buckets")
    if data.run and data.run.steps:
        drawn = data.run.steps, data.run.events, data.run.final_loss
        made["loss"] = svg(figures.loss, *drawn, title="Training loss by optimizer step")
    if data.slices:
        made["slices"] = svg(figures.bits_per_byte, data.slices, title="Bits per byte by slice, against baselines")
    return made


def safe_link(link: str) -> str:
    """Return a link unchanged, or an empty string if a browser could execute it.

    Links to pages in the same folder, which have no scheme, are allowed.
    """
    return link if link.startswith(LINK_SCHEMES) or _BESIDE.fullmatch(link) else ""


@cache
def template(name: str, package: str = "plinth.report") -> Template:
    """Load a page's template by its path in a package. Included templates come from that package or from this one."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(one, ".") for one in (package, "plinth.report")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": style.count, "size": style.size, "percent": style.percent}
    environment.filters |= {"contents": contents, "stacked": stacked}
    return environment.get_template(name)


_SECTION = re.compile(
    r'<section\b(?=[^>]* id="([^"]+)")(?:[^>]* aria-label="([^"]+)")?[^>]*>\s*<h2>(.*?)</h2>', re.DOTALL
)
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEAD = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
#: Columns of the widest table that fits a phone.
NARROW = 3


def contents(body: str) -> list[tuple[str, Markup]]:
    """Return the anchor and the name of each section of a page. The name is the section's `aria-label`, or else its
    heading."""
    return [(place, Markup(_TAG.sub("", label or heading).strip())) for place, label, heading in _SECTION.findall(body)]


def stacked(body: str) -> Markup:
    """Add column names to the cells of wide tables. On a phone, each row becomes a block of cells with these names."""
    return Markup(_TABLE.sub(_stacked, body))


def _stacked(found: re.Match[str]) -> str:
    table = found[0]
    names = [_TAG.sub("", name) for name in _HEAD.findall(table)]
    if len(names) <= NARROW:
        return table
    first, *rows = table.split("<tr")
    labels = [f' data-label="{escape(unescape(name))}"' if name else "" for name in ["", *names[1:]]]
    cells = [row.split("<td") for row in rows]
    rows = [row[0] + "".join(map("<td{}{}".format, [*labels, *[""] * len(row)], row[1:])) for row in cells]
    return "<tr".join([first.replace("<table", '<table class="stack"', 1), *rows])


# The data card of a corpus in Markdown: its text by bucket, and the subjects that it was screened for.
#
# A subject without a screening rule is always listed as not screened.

NOT_SCREENED = "not screened"
TEST = "**This is a test recipe**: labelled sets may be generated, and gates may be without evidence."


@dataclass(frozen=True)
class CardBucket:
    """Facts about the text of one bucket.

    Args:
        licences: licenses of its sources, as declared in the recipe.
        documents, curated: number of documents before and after all stages.
        text_bytes: size of the curated text.
    """

    name: str
    description: str
    licences: tuple[str, ...]
    documents: int
    curated: int
    text_bytes: int


@dataclass(frozen=True)
class Screening:
    """Screening of a corpus for one subject: the rules by bucket, and the evidence for their precision and recall."""

    subject: str
    rules: Mapping[str, tuple[str, ...]]
    evidence: tuple[str, ...] = ()

    def state(self, buckets: Sequence[str]) -> str:
        """Return `screened`, `not screened`, or the names of the buckets that are not screened."""
        missing = [name for name in buckets if not self.rules.get(name)]
        if not missing:
            return "screened"
        return NOT_SCREENED if len(missing) == len(buckets) else f"{NOT_SCREENED} in {', '.join(missing)}"


def card(
    name: str, description: str, buckets: Sequence[CardBucket], screenings: Sequence[Screening], test: bool = False
) -> str:
    """Return the data card in Markdown. The same arguments give the same bytes."""
    names = [bucket.name for bucket in buckets]
    lines = [f"# Data card: {markdown_text(name)}", "", *([markdown_text(description), ""] if description else [])]
    lines += [TEST, ""] if test else []
    lines += ["## Text", "", *_table(("bucket", "what", "licences", "documents", "curated", "curated text, bytes"))]
    for one in buckets:
        counts = (one.documents, one.curated, one.text_bytes)
        lines.append(_row((*map(markdown_text, (one.name, one.description, ", ".join(one.licences))), *counts)))
    lines += ["", "## Screening", "", *_table(("subject", "state", "rules", "how often they are right"))]
    for screening in screenings:
        rules = dict.fromkeys(rule for own in screening.rules.values() for rule in own)
        shown = "; ".join(map(markdown_code, rules)) or "-"
        evidence = markdown_text("; ".join(screening.evidence)) or "-"
        subject, state = markdown_text(screening.subject), f"**{markdown_text(screening.state(names))}**"
        lines.append(_row((subject, state, shown, evidence)))
    return "\n".join([*lines, ""])


def _table(header: Sequence[str]) -> list[str]:
    return [_row(header), "|---" * len(header) + "|"]


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |"


# The index of a workspace: its state on one screen, its runs, and every page that was written. It loads no external
# resources.
#
# Does not belong here: reading the workspace (`plinth_jobs.workspace_index`).

#: State of a part of the workspace. `unknown`: it could not be read, which is not `good`.
Standing = Literal["good", "attention", "bad", "unknown", "none"]

#: Each state as a word, because color alone is not enough.
WORDS: dict[Standing, str] = {
    "good": "ok",
    "attention": "warning",
    "bad": "action required",
    "unknown": "unknown",
    "none": "",
}


class StateTile(Frozen):
    """State of one part of the workspace. `href` is the link to the part's page, relative to the index."""

    label: str
    value: str
    note: str = ""
    standing: Standing = "none"
    href: str = ""


class RunLine(Frozen):
    """A training run on the index page; `state` is a word such as `running` or `finished`."""

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
    """A page that the index links to: its title and the time when it was written (UTC)."""

    title: str
    href: str
    written: str


class PageGroup(Frozen):
    """Pages of one kind, newest first, and the command that writes such a page."""

    name: str
    command: str = ""
    pages: tuple[PageLine, ...] = ()


class ServerLink(Frozen):
    """A server of the workspace and its current URL."""

    name: str
    url: str


class IndexData(Frozen):
    """Contents of the index page. `title` names recipe and release. `older_runs` is the number of runs that are not
    listed."""

    title: str = "Plinth workspace"
    workspace: str
    recipe: str = ""
    servers: tuple[ServerLink, ...] = ()
    written: str
    tiles: tuple[StateTile, ...] = ()
    runs: tuple[RunLine, ...] = ()
    older_runs: int = 0
    groups: tuple[PageGroup, ...] = ()


def index_page(data: IndexData) -> str:
    """Return the index page as HTML. The same data gives the same bytes."""
    return template("workspace_index.html.j2").render(
        data=data, words=WORDS, loss_label=LABELS["final_loss"], safe_link=safe_link
    )

"""The page of results: funnel, mixture, loss, bits per byte, gates, release, and commands to try next."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from assets import comparison, evaluation_page
from assets.framework.expectations import docs_index
from plinth.compute.context import Context
from plinth.evaluation.slices.totals import interval
from plinth.provenance import lineage
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.report import data as report
from plinth.report.page import page
from plinth.storage.atomic import write_bytes
from plinth.tokens.mixture import mixture
from plinth.training import config, manifests
from plinth.training.telemetry.timeline import timeline
from registry import api

#: Pages of `plinth compare` that the page leads to, the newest.
COMPARISONS_SHOWN = 5


def write(ctx: Context, recipe: Recipe) -> Path:
    """Write `reports/<recipe>.html` from the published assets. Returns its path.

    Raises:
        MissingError: the funnel has not been made yet.
    """
    found = {name: ctx.refs.published(name) for name in ("funnel", "mixture", "run", "evaluation", "candidate")}
    run, evaluation, funnel = found["run"], found["evaluation"], found["funnel"]
    content = report.ReportData(
        title=f"{recipe.name}: from raw corpus to {_end(recipe)}",
        subtitle=recipe.description,
        headline=_headline(ctx, found),
        release=_release(ctx, recipe),
        gates=_gates(ctx, recipe, found["candidate"]),
        slices=evaluation.stats["slices"] if evaluation else {},
        languages=evaluation.stats.get("axes", {}).get("language", {}) if evaluation else {},
        run=_training(ctx, run) if run else None,
        funnel=funnel.stats if funnel else ctx.refs.current("funnel").stats,
        mixture=tuple(mixture.rows(found["mixture"])) if found["mixture"] else (),
        lineage=_ancestors(ctx, evaluation) if evaluation else (),
        next=_next(ctx, recipe),
    )
    target = ctx.workspace.reports / f"{recipe.name}.html"
    write_bytes(target, page(content).encode())
    return target


def _end(recipe: Recipe) -> str:
    return "curated text" if recipe.mixture is None else "checkpoint" if recipe.release is None else "release"


def _headline(ctx: Context, found: dict[str, Manifest | None]) -> tuple[report.Fact, ...]:
    facts = []
    funnel, run, evaluation = found["funnel"], found["run"], found["evaluation"]
    if funnel:
        total = funnel.stats["total"]
        facts.append(report.Fact(label="documents in", value=f"{total['stages'][0]['documents_in']:,}"))
        if found["mixture"] is None:
            facts.append(report.Fact(label="documents kept", value=f"{total['trained']['documents']:,}"))
        else:
            facts.append(report.Fact(label="documents trained on", value=f"{total['trained']['documents']:,}"))
            facts.append(report.Fact(label="tokens in shards", value=f"{total['trained']['tokens']:,}"))
    if run:
        facts.append(report.Fact(label="tokens trained", value=f"{run.stats['tokens']:,}"))
    if evaluation:
        overall = evaluation.stats["overall"]
        note = f"95%: {interval(overall, 3)}; gzip -9 {overall['gzip']:.2f}, byte trigram {overall['trigram']:.2f}"
        facts.append(report.Fact(label="bits per byte, held out", value=f"{overall['model']:.3f}", note=note))
    return tuple(facts)


def _release(ctx: Context, recipe: Recipe) -> report.ReleaseCard | None:
    history = api.history(ctx, recipe) if recipe.release else ()
    if not history or history[-1].version is None:
        return None
    last = history[-1]
    facts = {
        "by": last.by,
        "reason": last.reason,
        "checkpoint": last.candidate.get("checkpoint", "")[:16],
        "at": last.at,
    }
    return report.ReleaseCard(
        name=last.model,
        version=last.version,
        alias=last.action,
        approved_by=tuple(approval.by for approval in last.approvals),
        facts=tuple(report.Fact(label=name, value=value) for name, value in facts.items()),
    )


def _gates(ctx: Context, recipe: Recipe, candidate: Manifest | None) -> tuple[report.GateOutcome, ...]:
    """The gates of the published candidate, judged now."""
    if candidate is None or recipe.release is None:
        return ()
    gates = api.status(ctx, recipe, candidate.stats["version"]).gates
    return tuple(report.GateOutcome(name=gate.name, passed=gate.passed, reason=gate.reason) for gate in gates)


def _training(ctx: Context, run: Manifest) -> report.RunCard:
    prepared = config.load(ctx.workspace.runs / run.stats["run_id"] / "config.json")
    events = timeline(prepared.directory.events)
    steps = list(events.steps.values())
    facts = manifests.facts(ctx, prepared)
    return report.RunCard(
        run_id=prepared.run_id,
        steps=tuple(steps),
        events=tuple(events.events),
        facts=tuple(report.Fact(label=name.replace("_", " "), value=_shown(value)) for name, value in facts.items()),
    )


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _ancestors(ctx: Context, evaluation: Manifest) -> tuple[report.Ancestor, ...]:
    """The chain by kind: how many manifests of each, and the digest where there is one."""
    kinds: Counter[str] = Counter()
    digests: dict[str, str] = {}
    for link in lineage.walk(ctx, evaluation.digest).links:
        bucket, _, stage = link.asset.partition("/")
        kind = stage if stage and bucket not in ("dedup", "tokenizer") else link.asset
        kinds[kind] += 1
        digests[kind] = link.digest
    return tuple(
        report.Ancestor(asset=kind, digest=digests[kind] if n == 1 else "", note=f"{n} manifests" if n > 1 else "")
        for kind, n in kinds.items()
    )


def _next(ctx: Context, recipe: Recipe) -> tuple[report.Next, ...]:
    at = f"-w {ctx.workspace.root.name}"
    rows = [
        ("every asset in a browser, and MLflow beside it", f"plinth up {at}", True),
        ("the training run on one page, by the clock", f"plinth timeline {at} latest", recipe.mixture),
        ("bits per byte by slice, and the documents that cost most", f"plinth evaluation {at}", recipe.mixture),
        ("the documents of a training step", f"plinth batch {at} latest 1", recipe.mixture),
        ("one document through every stage", f"plinth explain {at} URI", True),
        ("the ledger as Parquet, for any query engine", f"plinth ledger export {at} ledger", recipe.mixture is None),
        ("every link back to the sources, every byte hashed", f"plinth verify {at} champion", recipe.release),
    ]
    commands = tuple(report.Next(what=what, command=command) for what, command, there in rows if there)
    pages = (
        ("every measure of the checkpoint, with intervals", evaluation_page.path(ctx, recipe)),
        (f"the checkpoint beside {recipe.evaluation.against}", comparison.path(ctx, recipe)),
        *(("two models side by side", path) for path in _compared(ctx)),
        ("every check of every stage, as Data Docs", docs_index(ctx.workspace)),
    )
    return commands + tuple(report.Next(what=what, link=path.as_uri()) for what, path in pages if path.exists())


def _compared(ctx: Context) -> list[Path]:
    """The newest pages of `plinth compare`."""
    found = ctx.workspace.reports.glob("comparison-*.html")
    return sorted(found, key=lambda path: (-path.stat().st_mtime, path.name))[:COMPARISONS_SHOWN]

"""Results pages, `reports/<recipe>-candidate-<version>.html`: funnel, mixture, loss, bits per byte, gates, release.

The subject of a page is a candidate, a checkpoint or a corpus. A page shows data of its subject. Data of other
subjects, such as the champion at that time, is labeled. File name and title contain the subject, so a later candidate
never overwrites an earlier page.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.evaluation.measurement import GATES
from plinth.evaluation.slices.job import interval
from plinth.provenance import lineage
from plinth.provenance.impact import downstream
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.report import page as report
from plinth.report.page import page
from plinth.storage.atomic import write_bytes
from plinth.tokens.mixture import mixture
from plinth.training import config, manifests
from plinth.training.telemetry.timeline import LABELS, of_history, timeline
from plinth_assets.candidate import page_path
from plinth_assets.framework import docs_index
from plinth_assets.measurements import comparison_stage
from plinth_registry import decisions
from plinth_registry.candidate import model_name
from plinth_registry.gates import GateResult, summary
from plinth_registry.releases import ReleaseRecord

#: Digest characters in file names.
DIGITS = 12
#: File names of results pages of all recipes. The index sorts them by candidate version.
FILE = re.compile(r".+-(?:candidate-(?P<version>\d+)|checkpoint-[0-9a-f]{12}|corpus-[0-9a-f]{12})\.html")
#: The index of the workspace's pages, next to them.
INDEX = "index.html"
#: Workspace paths whose content a page shows: published assets, decisions with evidence, linked pages.
SHOWN = (
    *("refs/**/*.json", "releases/*", "approvals/**/*", "attestations/**/*", "policies/**/*", "taint/**/*"),
    *("audit/**/*", "trust/**/*", "reports/*.html"),
)


class Subject(NamedTuple):
    """Subject of a results page: a candidate, a checkpoint or a corpus. `name` is used in the file name and `title` on
    the page. `version` is the version of a candidate."""

    name: str
    title: str
    funnel: Manifest | None
    mixture: Manifest | None = None
    run: Manifest | None = None
    checkpoint: Manifest | None = None
    evaluation: Manifest | None = None
    version: str | None = None


def path(ctx: Context, recipe: Recipe, subject: str) -> Path:
    """Return the path of the results page of a subject with this name, such as `candidate-2`."""
    return ctx.workspace.reports / file_name(recipe, subject)


def write(ctx: Context, recipe: Recipe, version: str | None = None) -> Path:
    """Write the results page of a candidate, and return its path. By default, write the page of the newest subject.

    Raises:
        MissingError: there is no funnel yet, or the candidate does not exist.
    """
    about = newest(ctx, recipe) if version is None else of_candidate(ctx, recipe, version)
    gates = _gates(ctx, recipe, about)
    content = report.ReportData(
        title=f"{recipe.name}: {about.title}",
        subtitle=recipe.description,
        written=f"{datetime.fromtimestamp(time.time(), UTC):%Y-%m-%d %H:%M} UTC",
        headline=_headline(about),
        release=_release(ctx, recipe, about),
        gates=tuple(map(_gate, gates)),
        gates_summary=summary(gates) if gates else "",
        slices=about.evaluation.stats["slices"] if about.evaluation else {},
        languages=about.evaluation.stats.get("axes", {}).get("language", {}) if about.evaluation else {},
        run=_training(ctx, about.run) if about.run else None,
        funnel=about.funnel.stats if about.funnel else None,
        mixture=tuple(mixture.rows(about.mixture)) if about.mixture else (),
        lineage=_ancestors(ctx, about.evaluation) if about.evaluation else (),
        next=_next(ctx, recipe, about),
    )
    target = path(ctx, recipe, about.name)
    write_bytes(target, page(content).encode())
    return target


def current(ctx: Context, recipe: Recipe) -> Path | None:
    """Return the results page of the newest subject. Return None if the page is older than the data that it shows."""
    if recipe.release is not None and decisions.pending(ctx, recipe):  # a page evaluates the gates when it is written
        return None
    found = path(ctx, recipe, newest(ctx, recipe).name)
    if not found.exists():
        return None
    own = (found, found.with_name(INDEX))
    shown = (file for pattern in SHOWN for file in ctx.workspace.root.glob(pattern) if file not in own)
    written = found.stat().st_mtime_ns
    return found if all(file.stat().st_mtime_ns < written for file in shown) else None


def renew(ctx: Context, recipe: Recipe) -> tuple[Path, ...]:
    """Rewrite the results page of each candidate that was promoted, rolled back or withdrawn after the page was
    written. Return the paths of these pages, in the order of version numbers."""
    if recipe.release is None:
        return ()
    history = decisions.history(ctx, recipe)
    candidates = {record.version: record.candidate_version for record in history}
    moved = set[str]()
    for record in history:
        at = datetime.fromisoformat(record.at).timestamp()
        for version in filter(None, {record.candidate_version, candidates.get(record.previous)}):
            target = path(ctx, recipe, candidate_name(version))
            if target.exists() and target.stat().st_mtime < at:
                moved.add(version)
    return tuple(write(ctx, recipe, version) for version in sorted(moved, key=int))


def _headline(about: Subject) -> tuple[report.Fact, ...]:
    facts = []
    if about.funnel:
        total = about.funnel.stats["total"]
        facts.append(report.Fact(label="records in", value=f"{total['stages'][0]['documents_in']:,}"))
        kept = "documents kept" if about.mixture is None else "documents available for training"
        facts.append(report.Fact(label=kept, value=f"{total['trained']['documents']:,}"))
        if about.mixture is not None:
            facts.append(report.Fact(label="tokens available for training", value=f"{total['trained']['tokens']:,}"))
    if about.run:
        facts.append(report.Fact(label="tokens trained", value=f"{about.run.stats['tokens']:,}"))
    if about.evaluation:
        overall = about.evaluation.stats["overall"]
        note = f"95%: {interval(overall, 3)}; gzip -9 {overall['gzip']:.2f}, byte trigram {overall['trigram']:.2f}"
        facts.append(report.Fact(label="bits per byte of held-out text", value=f"{overall['model']:.3f}", note=note))
    return tuple(facts)


def _release(ctx: Context, recipe: Recipe, about: Subject) -> report.ReleaseCard | None:
    """Return the candidate's state in the signed history, or None if the subject is not a candidate."""
    if recipe.release is None or about.version is None or about.checkpoint is None:
        return None
    history = decisions.history(ctx, recipe)
    held = history.standing
    own = [one for one in history if _is_of(one, about)]
    champion = [one for one in history if one.version == held.champion]
    facts = _movement(own[-1]) if own else {}
    if champion and not _is_of(champion[-1], about):
        other = champion[-1].candidate_version
        facts["champion when this page was written"] = f"version {held.champion}, candidate {other}"
    version = own[-1].version or "" if own else ""
    return report.ReleaseCard(
        name=recipe.release.name,
        version=version,
        alias=held.place(version) or "" if version else "",
        approved_by=tuple(_approver(recipe, approval.by) for approval in own[-1].approvals) if own else (),
        facts=tuple(report.Fact(label=name, value=value) for name, value in facts.items()),
    )


def _approver(recipe: Recipe, by: str) -> str:
    """Return an approver, labeled if the recipe signs approvals as this person."""
    automatic = recipe.release is not None and by == recipe.release.auto_approve_as
    return f"{by} (signed by the recipe, release.auto_approve_as)" if automatic else by


def _is_of(record: ReleaseRecord, about: Subject) -> bool:
    assert about.checkpoint is not None
    same = record.candidate.get("checkpoint") == about.checkpoint.digest
    return same and record.candidate_version == about.version and record.action in ("canary", "champion", "rollback")


def _movement(last: ReleaseRecord) -> dict[str, str]:
    """Return the facts about the last promotion or rollback that gave this candidate an alias."""
    return {
        "promoted by": last.by,
        "reason": last.reason,
        "at": f"{datetime.fromisoformat(last.at).astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        "checkpoint": last.candidate.get("checkpoint", "")[:16],
    }


def _gates(ctx: Context, recipe: Recipe, about: Subject) -> tuple[GateResult, ...]:
    """Evaluate all gates of the candidate now."""
    if about.version is None or recipe.release is None:
        return ()
    return decisions.status(ctx, recipe, about.version).gates


def _gate(one: GateResult) -> report.GateOutcome:
    tone: Literal["pass", "note", "fail"] = "fail" if one.blocks else "pass" if one.passed else "note"
    requires = GATES[one.name].description if one.name in GATES else ""
    return report.GateOutcome(name=one.name, state=one.state, tone=tone, reason=one.detail, requires=requires)


def _training(ctx: Context, run: Manifest) -> report.RunCard:
    prepared = config.load(ctx.workspace.runs / run.stats["run_id"] / "config.json")
    events = timeline(prepared.directory.events)
    steps = list(events.steps.values())
    figures, facts = of_history(events), manifests.facts(ctx, prepared)
    quoted = [report.Fact(label=LABELS[name], value=value) for name, value in figures.rounded().items()]
    return report.RunCard(
        run_id=prepared.run_id,
        steps=tuple(steps),
        events=tuple(events.events),
        final_loss=figures.final_loss,
        facts=(*quoted, *(_fact(name, it) for name, it in facts.items())),
    )


#: Explanations of facts of a run.
NOTES = {
    "data_wait_share": "share of the step time",
    "interventions": "of the training guard: skipped updates, lower learning rates, rollbacks, stops",
    "refused_checkpoints": "failed verification, or trained on a batch that was later skipped",
}


def _fact(name: str, value: object) -> report.Fact:
    label = "rejected checkpoints" if name == "refused_checkpoints" else name.replace("_", " ")
    label = f"{label.removesuffix(' s')} seconds" if name.endswith("_s") else label
    return report.Fact(label=label, value=_shown(value), note=NOTES.get(name, ""))


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _ancestors(ctx: Context, evaluation: Manifest) -> tuple[report.Ancestor, ...]:
    """Return the lineage of an evaluation by kind of manifest. A kind with one manifest shows its digest, and any other
    kind shows the number of manifests."""
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


def _next(ctx: Context, recipe: Recipe, about: Subject) -> tuple[report.Next, ...]:
    at = f"-w {ctx.workspace.root.name}"
    run, digest = about.run.stats["run_id"] if about.run else "", about.checkpoint.digest if about.checkpoint else ""
    rows: Sequence[tuple[str, str, object]] = [
        ("Dagster, MLflow and all pages in a browser", "plinth up", True),
        ("the training run on one page", f"plinth run timeline {run}", run),
        ("the documents of a training step", f"plinth run batch {run} 1", run),
        (f"one document through every stage{' (of a URI in that list)' if run else ''}", "plinth explain URI", True),
        ("the ledger as Parquet, for any query engine", "plinth corpus ledger export ledger", recipe.mixture is None),
        ("verification of every link to the sources", f"plinth verify {digest[:16]}", digest),
    ]
    commands = tuple(report.Next(what=what, command=f"{command} {at}") for what, command, there in rows if there)
    pages = [("index of this workspace", Path(INDEX))]
    if digest:
        compared = comparison_stage.path(ctx, recipe, digest)
        pages += [("all measurements of the checkpoint, with intervals", page_path(ctx, recipe, digest)),
                  (f"the checkpoint and {recipe.evaluation.against}, compared", compared),
                  ("the training run", ctx.workspace.reports / f"{run}.html")]  # fmt: skip
    links = [report.Next(what=what, link=path.name) for what, path in pages if (ctx.workspace.reports / path).exists()]
    docs = docs_index(ctx.workspace)
    if docs.exists():
        place = Path("..", docs.relative_to(ctx.workspace.root)).as_posix()
        links.append(report.Next(what="all checks of all stages", link=place))
    return (*commands, *links)


def newest(ctx: Context, recipe: Recipe) -> Subject:
    """Return the subject of the published candidate. If the published checkpoint differs from the candidate's, return
    the checkpoint. If nothing is published, return the corpus.

    Raises:
        MissingError: there is no funnel yet.
    """
    checkpoint, made = ctx.refs.published("checkpoint"), ctx.refs.published("candidate")
    if made is not None and (checkpoint is None or made.inputs["checkpoint"] == checkpoint.digest):
        return _candidate(ctx, made)
    if checkpoint is None:
        return _corpus(ctx)
    evaluation = ctx.refs.published("evaluation")
    own = evaluation is not None and checkpoint.digest in evaluation.inputs.values()
    return _trained(ctx, checkpoint, evaluation if own else None)


def of_candidate(ctx: Context, recipe: Recipe, version: str) -> Subject:
    """Return the subject of a candidate that was registered from this workspace.

    Raises:
        MissingError: this workspace has no manifest of that candidate.
    """
    for made in _candidates(ctx, recipe):
        if made.stats["version"] == version:
            return _candidate(ctx, made)
    raise MissingError(
        f"no manifest of candidate {version} of {recipe.name} is in this workspace",
        remedy="list candidates with `plinth release log`; write the page in the workspace that registered the "
        "candidate",
    )


def file_name(recipe: Recipe, subject: str) -> str:
    """Return the file name of a subject's results page."""
    return f"{recipe.name}-{subject}.html"


def candidate_name(version: str) -> str:
    """Return the subject name of a candidate, such as `candidate-2`."""
    return f"candidate-{version}"


def _candidates(ctx: Context, recipe: Recipe) -> Iterator[Manifest]:
    """Yield every saved manifest of a candidate of the recipe's release, the published manifest first."""
    published = ctx.refs.published("candidate")
    known = {published.digest: None} if published else {}
    known |= {one.digest: None for one in downstream(ctx, ["candidate"])
              if one.asset == "candidate" and one.state != "deleted"}  # fmt: skip
    found = (ctx.refs.load(digest) for digest in known)
    yield from (made for made in found if made.stats["model"] == model_name(recipe))


def _candidate(ctx: Context, made: Manifest) -> Subject:
    version = str(made.stats["version"])
    checkpoint, evaluation = (ctx.refs.load(made.inputs[name]) for name in ("checkpoint", "evaluation"))
    about = _trained(ctx, checkpoint, evaluation)
    return about._replace(name=candidate_name(version), title=f"candidate {version}", version=version)


def _trained(ctx: Context, checkpoint: Manifest, evaluation: Manifest | None) -> Subject:
    run = ctx.refs.load(checkpoint.inputs["run"])
    mixture = ctx.refs.load(run.inputs["mixture"])
    return Subject(
        name=f"checkpoint-{checkpoint.digest[:DIGITS]}",
        title=f"checkpoint {checkpoint.digest[:DIGITS]}",
        funnel=_funnel(ctx, mixture),
        mixture=mixture,
        run=run,
        checkpoint=checkpoint,
        evaluation=evaluation,
    )


def _corpus(ctx: Context) -> Subject:
    funnel = ctx.refs.current("funnel")
    mixture = funnel.inputs.get("mixture")
    name = funnel.digest[:DIGITS]
    return Subject(f"corpus-{name}", f"corpus {name}", funnel, ctx.refs.load(mixture) if mixture else None)


def _funnel(ctx: Context, mixture: Manifest) -> Manifest | None:
    """Return the funnel of the corpus from which a mixture draws. Return None if it does not exist or was deleted."""
    published = ctx.refs.published("funnel")
    if published is not None and published.inputs.get("mixture") == mixture.digest:
        return published
    for one in downstream(ctx, [mixture.digest]):
        if one.asset == "funnel" and one.state != "deleted":
            return ctx.refs.load(one.digest)
    return None

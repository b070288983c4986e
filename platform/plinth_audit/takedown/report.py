"""Signed report on the removal of documents.

    proof     no published document matches a rule, including near duplicates, and everything downstream was rebuilt
              (`downstream`)
    remains   remaining copies with place and expiry (`remaining`)
    models    extraction and exposure of the removed text by checkpoint (`exposed_runs`)

The report is signed only if the proof succeeds. The report is a DSSE envelope, signed by `compliance`. It contains an
in-toto statement about the documents' manifests and the exclusions. The pages next to it are rendered from the
statement.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.corpus import exclusions
from plinth.corpus.exclusions import Exclusion, numbers
from plinth.errors import CheckFailedError, MissingError
from plinth.provenance.document_rows import DOCUMENTS, SEARCHED_ASSETS, published
from plinth.provenance.impact import Descendant
from plinth.provenance.lineage import current
from plinth.storage.atomic import write_bytes
from plinth.text import counted
from plinth.trust import dsse
from plinth.trust.dsse import COMPLIANCE
from plinth.trust.root import Trust
from plinth_assets.catalog import stages
from plinth_assets.framework import Stage
from plinth_audit.takedown import page
from plinth_audit.takedown.exposed_runs import ExposedRun, TakedownMeasure, runs_of, texts_of
from plinth_audit.takedown.page import UP_TO_DATE
from plinth_audit.takedown.remaining import (
    UNRECORDED,
    Remaining,
    descendants_of,
    near_duplicates_left,
    not_rebuilt,
    remaining,
    snapshots_with,
    traces,
)
from plinth_audit.takedown.removal_statement import (
    BucketProof,
    DownstreamAsset,
    RebuiltAsset,
    RemovedDocuments,
    ReportedRule,
    ReportedRun,
    TakedownRoot,
    TakedownStatement,
)
from plinth_audit.takedown.search import LISTED, FoundDocuments, hits, of_entry
from plinth_jobs.asset_states import status
from plinth_jobs.recipes import load

NOT_MADE = "not made"
#: First asset derived from a trained model.
TRAINED = "run"
#: Asset group with decisions of people, which the report reads from the signed history.
DECIDED = "release"


def downstream(ctx: Context, recipe_path: Path) -> tuple[DownstreamAsset, ...]:
    """Return every asset that reads documents, directly or indirectly, with its state.

    An asset that was never materialized is usually skipped. It is listed if it has earlier versions, or if a takedown
    search needs the asset and the asset's inputs exist: without the asset, the search is incomplete.
    """
    recipe = load(recipe_path)
    catalog = [stage for stage in stages(recipe) if stage.group != DECIDED]
    rows = {row["asset"]: row for row in status(ctx, recipe)}
    made = {asset for asset, row in rows.items() if row["state"] != NOT_MADE}
    saved = frozenset(current(ctx).edges.assets)
    reading = _reading(catalog, [stage.asset for stage in catalog if stage.asset.endswith(DOCUMENTS)])
    models = _reading(catalog, [TRAINED])
    return tuple(
        DownstreamAsset(
            asset=stage.asset,
            state=_state(rows[stage.asset]["state"]),
            digest=rows[stage.asset]["digest"],
            model=stage.asset in models,
        )
        for stage in catalog
        if stage.asset in reading and (stage.asset in made or stage.asset in saved or _is_searched(stage, made))
    )


def _reading(catalog: Collection[Stage], origins: Collection[str]) -> frozenset[str]:
    """Return the origin assets and all assets that depend on them. The catalog must list inputs first."""
    found = set(origins)
    for stage in catalog:
        if found.intersection(stage.deps):
            found.add(stage.asset)
    return frozenset(found)


def _is_searched(stage: Stage, made: Collection[str]) -> bool:
    """Return True if a takedown search reads the asset and the asset's inputs exist."""
    return bool(SEARCHED_ASSETS.fullmatch(stage.asset)) and all(dep in made for dep in stage.deps)


def _state(shown: str) -> str:
    return "never materialized" if shown == NOT_MADE else shown


def behind(assets: Sequence[DownstreamAsset], runs: Sequence[ExposedRun], *, models: bool) -> Iterator[str]:
    """Yield lines that name the stale assets by state, and the runs whose steps are unknown.

    Args:
        models: False to skip trained models, which are listed as remaining copies.
    """
    late = [one for one in assets if one.state != UP_TO_DATE and (models or not one.model)]
    for state in dict.fromkeys(one.state for one in late):
        yield f"{state}: {', '.join(one.asset for one in late if one.state == state)}"
    if models:
        yield from (f"unknown: run {run.run} ({run.unknown})" for run in runs if run.unknown)


def rebuilt(assets: Sequence[DownstreamAsset], descendants: Sequence[Descendant]) -> tuple[RebuiltAsset, ...]:
    """Return up-to-date assets whose earlier versions were derived from removed text."""
    held = [(one.asset, one.digest) for one in descendants]
    return tuple(
        RebuiltAsset(asset=one.asset, digest=one.digest, earlier=sum(asset == one.asset for asset, _ in held))
        for one in assets
        if one.state == UP_TO_DATE and one.digest and _once_held(one, held)
    )


def _once_held(one: DownstreamAsset, held: Collection[tuple[str, str]]) -> bool:
    return any(asset == one.asset for asset, _ in held) and (one.asset, one.digest) not in held


PREDICATE = "urn:plinth:takedown:v1"
FOLDER = "takedown"


@dataclass(frozen=True)
class RemovalProof:
    """Exclusion entries in a takedown report, and the results of their checks.

    Args:
        held_by: digests of all manifests derived from a snapshot with the text.
        rebuilt: assets whose earlier versions were derived from the text.
        downstream: state of every asset that reads documents.
    """

    entries: tuple[Exclusion, ...]
    found: tuple[FoundDocuments, ...]
    buckets: tuple[BucketProof, ...]
    runs: tuple[ExposedRun, ...]
    remains: tuple[Remaining, ...]
    held_by: frozenset[str]
    rebuilt: tuple[RebuiltAsset, ...] = ()
    downstream: tuple[DownstreamAsset, ...] = ()

    @property
    def removed(self) -> list[str]:
        """IDs of the listed documents that only earlier snapshots contain."""
        return sorted({one.id for each in self.found for one in each.documents if not one.published})

    @property
    def complete(self) -> bool:
        """True if the search results list all matching documents, without any cut off by the limit `LISTED`."""
        return all(each.count + each.earlier <= LISTED for each in self.found)


def prove(
    ctx: Context,
    only: Sequence[int] = (),
    downstream: Sequence[DownstreamAsset] = (),
    tainted: Collection[str] = (),
    *,
    models: bool = True,
) -> RemovalProof:
    """Check that no published asset contains excluded documents.

    Args:
        only: numbers of the exclusion entries to report; if empty, all entries.
        downstream: state of every asset that reads documents.
        tainted: digests of tainted manifests.
        models: True to require that models are rebuilt and that no run has unknown steps.

    Raises:
        MissingError: the exclusion list has no such entry, or is empty.
        CheckFailedError: the corpus still contains excluded documents, or a downstream asset is stale or unknown.
        SignatureError: the exclusion list fails verification.
    """
    listed = exclusions.read(ctx)
    entries = tuple(entry for entry in listed if not only or entry.number in only)
    if not entries or len(entries) < len(set(only)):
        raise MissingError(
            "the exclusion list has no such entry",
            found=numbers(listed),
            expected=", ".join(map(str, only)) or "at least one entry",
            remedy="list the entries with `plinth corpus takedown list`",
        )
    buckets = _checked(ctx, listed)
    problems = [
        f"{counted(one.hits, 'excluded document', 'be')} still in {one.bucket}{DOCUMENTS}"
        for one in buckets
        if one.hits
    ]
    try:
        known = tuple(of_entry(ctx, entry) for entry in entries)
    except MissingError as error:  # without a ledger, nothing can be searched
        raise _not_removed([*problems, *behind(downstream, (), models=models)] or [error.what]) from error
    runs, snapshots = runs_of(ctx, known), snapshots_with(ctx, known)
    descendants = descendants_of(ctx, snapshots)
    problems += behind(downstream, runs, models=models)
    others = [asset for asset in not_rebuilt(descendants) if asset not in {one.asset for one in downstream}]
    problems += [f"derived from a snapshot with the text: {', '.join(others)}"] if others else []
    if problems:
        raise _not_removed(problems)
    numbered = {str(entry.number) for entry in entries}
    reading = [one.bucket for one in buckets if numbered & one.taken.keys()]
    left = [
        *near_duplicates_left(known),
        *remaining(ctx, snapshots, descendants, runs, tainted, reading),
        *traces(ctx, texts_of(ctx, known)),
    ]
    held_by = frozenset(one.digest for one in descendants)
    done = rebuilt(downstream, descendants)
    return RemovalProof(entries, known, buckets, runs, tuple(left), held_by, done, tuple(downstream))


def facts(
    ctx: Context, proof: RemovalProof, models: Sequence[Remaining] = (), measured: Sequence[TakedownMeasure] = ()
) -> dict[str, Any]:
    """Return the content of the takedown report, which is the predicate of the signed statement.

    Args:
        models: candidates, releases and exports of checkpoints that read the removed text.
    """
    root = Trust.of(ctx.workspace).root
    stated = TakedownStatement(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        root=TakedownRoot(name=root.name, version=root.version, demo=root.demo),
        list=exclusions.digest(ctx),
        entries=tuple(map(ReportedRule.of, proof.entries)),
        documents=RemovedDocuments(count=len(proof.removed), complete=proof.complete, ids=tuple(proof.removed)),
        corpus=proof.buckets,
        downstream=proof.downstream,
        rebuilt=proof.rebuilt,
        runs=tuple(map(ReportedRun.of, proof.runs)),
        remains=(*proof.remains, *models, UNRECORDED),
        measured=tuple(measured),
    )
    return stated.model_dump(mode="json")


def write(ctx: Context, proof: RemovalProof, content: dict[str, Any]) -> Path:
    """Sign the takedown report and write it with its pages. Return the folder with `report.json`, `.md` and `.html`.

    Raises:
        SignatureError: this machine has no `compliance` key.
    """
    signer = Trust.of(ctx.workspace).signer(COMPLIANCE)
    subjects = {f"{one.bucket}{DOCUMENTS}": one.manifest for one in proof.buckets}
    subjects |= {f"exclusion-{entry.number}": entry.digest for entry in proof.entries}
    folder = ctx.workspace.root / FOLDER
    earlier = [int(path.name) for path in folder.glob("*") if re.fullmatch(r"\d{5}", path.name)]
    target = folder / f"{max(earlier, default=0) + 1:05d}"
    write_bytes(target / "report.md", page.markdown(content).encode())
    write_bytes(target / "report.html", page.html(content).encode())
    dsse.write(target / "report.json", dsse.statement(PREDICATE, subjects, content), signer)
    return target


def read(ctx: Context, path: Path) -> dict[str, Any]:
    """Verify a signed takedown report and return its content.

    Raises:
        SignatureError: the report is missing, was changed, or is not signed by `compliance`.
    """
    content: dict[str, Any] = dsse.read(path, Trust.of(ctx.workspace).authority(COMPLIANCE), PREDICATE)["predicate"]
    return content


def _checked(ctx: Context, listed: Sequence[Exclusion]) -> tuple[BucketProof, ...]:
    counts = hits(ctx, listed)
    return tuple(
        BucketProof(
            bucket=bucket,
            manifest=made.digest,
            parts=len(made.named("part-")),
            documents=sum(part.rows for part in made.named("part-")),
            hits=sum(counts[bucket]),
            taken=dict(made.stats.get("takedown", {})),
        )
        for bucket, made in published(ctx, DOCUMENTS)
    )


def _not_removed(problems: Sequence[str]) -> CheckFailedError:
    return CheckFailedError(
        "the removal is not complete",
        found="; ".join(problems),
        expected="a corpus without the text, and up-to-date downstream assets (`plinth status`)",
        remedy="rebuild with `plinth run`, then run the report again; or pass --without-retraining to list stale "
        "models in the report",
    )

"""Remaining copies of removed text, with place and expiry, including copies that cannot be deleted.

Removing text does not make a model forget it. Therefore every checkpoint that read the text is listed until the
checkpoint is deleted. Copies without a record in Plinth are listed as unknown.

Copies outside the content store (pages, MLflow, Dagster, logs and run files) are found by a byte search for excerpts of
the removed text, which come from an earlier snapshot. The search includes JSON and HTML escapes. Copies in the content
store are found by manifests, and raw input is found by sources. Model weights are not searched.
"""

from __future__ import annotations

import html
import json
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from plinth.compute.context import Context
from plinth.compute.progress import metered
from plinth.provenance.document_rows import DOCUMENTS
from plinth.provenance.impact import Descendant, downstream
from plinth.records import Frozen, bucket_of
from plinth.storage.objects import files_below
from plinth.text import counted
from plinth.training.config import load
from plinth_audit.takedown.exposed_runs import HERE, PUBLISHED, REFUSED, RETIRED, ExposedRun
from plinth_audit.takedown.search import NEAR, FoundDocuments, snapshots_of
from plinth_registry import releases
from plinth_registry.exports import noted
from plinth_registry.signing import directory_of

#: Stages whose published state must be free of the text before it counts as removed.
TEXT_STAGES = ("documents", "sampled", "curated", "shards", "trace_index", "index", "ledger", "mixture", "minhash")
#: Stages listed with their model.
_MODEL_STAGES = ("run", "checkpoint", "candidate", "release")
_UNTIL_GC = "until `plinth ops gc --delete` deletes it, once no run, candidate, signed record or pin needs it"
HOLDS_TEXT, MAY_HOLD_TEXT, UNKNOWN = "still holds the text", "may still hold the text", "unknown"
TAINTED, NOT_TAINTED = "trained on the text: tainted", "trained on the text: not tainted"

#: Maximum documents to search, excerpts per document, and excerpt length in characters.
SEARCHED, EXCERPTS, LENGTH = 50, 3, 48
#: Minimum line length; shorter lines occur in many documents.
_SHORTEST: Final = 24
#: Minimum distinct characters of an excerpt, to skip rulers and table borders.
_LETTERS: Final = 8
_CHUNK_BYTES: Final = 16 * 2**20
_CONTENT: Final = frozenset(("store", "records", "manifests", "refs", "input", "impact", "exclusions", "takedown"))
#: Folders in which weights are skipped.
_WEIGHTY: Final = frozenset(("runs", "models"))
_TEXTS: Final = frozenset((".json", ".jsonl", ".yaml", ".yml", ".txt", ".md", ".html", ".log", ".csv", ""))
_UNTIL: Final = {
    "reports": "until the page is written again (`plinth report`, `plinth report pages`), or you delete it",
    "mlflow": "until the artifact or run is deleted in MLflow (`mlflow gc` removes its bytes)",
    "dagster": "until the Dagster run is deleted (`dagster run delete`)",
}
#: Maximum number of files listed; all are counted.
LISTED: Final = 50


class Remaining(Frozen):
    """Remaining copy of removed text, or a model that read the text.

    Args:
        state: state of the copy; for a model, tainted or not tainted.
        model: True for a model that was trained on the text.
    """

    what: str
    where: str
    until: str
    state: str = HOLDS_TEXT
    model: bool = False


UNRECORDED = Remaining(
    what="copies that Plinth has no record of",
    where="backups, DVC remotes, copies of exports, downloads of a release",
    until="unknown: ask the people who made the copies; a restored backup contains the text until the next `plinth "
    "run`",
    state=MAY_HOLD_TEXT,
)


def taint_state(digests: Collection[str], tainted: Collection[str]) -> str:
    """Return `TAINTED` if there are model manifests and all are tainted, otherwise `NOT_TAINTED`."""
    return TAINTED if digests and all(one in tainted for one in digests) else NOT_TAINTED


def snapshots_with(ctx: Context, found: Sequence[FoundDocuments], *, published: bool = False) -> dict[str, str]:
    """Return the snapshots that contain documents from takedown searches: asset names by digest.

    Args:
        published: True to include the published corpus and published snapshots.
    """
    documents = [one for each in found for one in each.documents if published or not one.published]
    by_ledgers = {(one.bucket, one.ledgers): one for one in documents}
    snapshots = {made.digest: made.asset for one in by_ledgers.values() for made in snapshots_of(ctx, one)}
    current = set() if published else {ref.digest for ref in ctx.refs.all() if ref.asset.endswith(DOCUMENTS)}
    return {digest: asset for digest, asset in sorted(snapshots.items()) if digest not in current}


def derived_from(ctx: Context, found: FoundDocuments) -> frozenset[str]:
    """Return the digests of all manifests derived from a snapshot that contains one of the documents found."""
    return frozenset(one.digest for one in descendants_of(ctx, snapshots_with(ctx, [found], published=True)))


def not_rebuilt(descendants: Sequence[Descendant]) -> list[str]:
    """Return the published text assets that are still derived from a snapshot with the removed text."""
    behind = {one.asset for one in descendants if one.state == "published"}
    return sorted(asset for asset in behind if asset.rsplit("/", 1)[-1] in TEXT_STAGES)


def near_duplicates_left(found: Sequence[FoundDocuments]) -> Iterator[Remaining]:
    """Yield near duplicates that stay in the corpus because an exclusion rule does not include texts."""
    for each in found:
        left = [one for one in each.documents if one.published and one.how == NEAR]
        if left:
            shards = "".join(f"; {name}: {tokens:,} tokens" for name, tokens in each.shards.items())
            yield Remaining(
                what=f"{counted(len(left), 'near duplicate')} of {each.kind} {each.value} under other addresses",
                where="the published corpus: " + ", ".join(one.id for one in left[:10]) + shards,
                until="until the near duplicates are excluded as well (`plinth corpus takedown exclude --texts`)",
            )


def descendants_of(ctx: Context, snapshots: dict[str, str]) -> tuple[Descendant, ...]:
    """Return all manifests derived from the snapshots, or nothing if there are no snapshots."""
    return downstream(ctx, snapshots) if snapshots else ()


def remaining(
    ctx: Context,
    snapshots: dict[str, str],
    descendants: Sequence[Descendant],
    runs: Sequence[ExposedRun],
    tainted: Collection[str] = (),
    reading: Collection[str] = (),
) -> list[Remaining]:
    """Return all remaining copies of removed text in sources, snapshots, published assets and checkpoints.

    Args:
        tainted: digests of tainted manifests.
        reading: buckets whose last build excluded some of the documents.
    """
    buckets = {bucket_of(asset) for asset in snapshots.values()}.union(reading)
    return [*_sources(ctx, buckets), *_stored(descendants, tainted), *_checkpoints(ctx, runs, tainted)]


def _sources(ctx: Context, buckets: Collection[str]) -> Iterator[Remaining]:
    for bucket in sorted(buckets):
        documents = ctx.refs.published(f"{bucket}{DOCUMENTS}")
        inventory = documents.inputs.get(f"{bucket}/sources", "") if documents else ""
        yield Remaining(
            what=f"the raw sources of {bucket}",
            where=f"at the location in the recipe (inventory {inventory[:12]})",
            until="until the owner of the source deletes the text; Plinth never changes a source, but skips the text "
            "when it reads it",
        )


def _stored(descendants: Sequence[Descendant], tainted: Collection[str]) -> Iterator[Remaining]:
    """Yield earlier snapshots that contain the text, and published assets that were not rebuilt without it."""
    saved = [one for one in descendants if one.state == "saved" and _stage(one) not in _MODEL_STAGES]
    if saved:
        assets = ", ".join(sorted({one.asset for one in saved}))
        what = f"{counted(len(saved), 'manifest')} of earlier snapshots, with their blobs"
        yield Remaining(what=what, where=f"the workspace's content store: {assets}", until=_UNTIL_GC)
    for one in descendants:
        if one.state == "published" and _stage(one) not in TEXT_STAGES:
            model = _stage(one) in _MODEL_STAGES
            yield Remaining(
                what=f"{one.asset}, derived from an earlier snapshot and still published",
                where=f"manifest {one.digest[:12]}",
                until="until the asset is rebuilt with `plinth run`",
                state=taint_state([one.digest], tainted) if model else MAY_HOLD_TEXT,
                model=model,
            )


def _stage(one: Descendant) -> str:
    return one.asset.rsplit("/", 1)[-1]


def _checkpoints(ctx: Context, runs: Sequence[ExposedRun], tainted: Collection[str]) -> Iterator[Remaining]:
    for run in runs:
        if run.unknown:
            what = f"run {run.run}: unknown, {run.unknown}"
            yield Remaining(what=what, where=f"runs/{run.run}", until="unknown", state=UNKNOWN, model=True)
            continue
        config = load(ctx.workspace.runs / run.run / "config.json")
        state = taint_state(run.digests, tainted)
        origin = ""
        if run.inherits:
            origin = f" (starts or learns from the model {run.inherits[:12]}, which was trained on the text)"
        places = {place for one in run.checkpoints for place in one.places} - {RETIRED}
        for place in sorted(places):
            steps = ", ".join(f"{one.step:,}" for one in run.checkpoints if place in one.places)
            where, until = _place(place, run.run, config.directory.result.exists(), config.checkpoints.keep_last)
            what = f"run {run.run}{origin}, checkpoints {steps}"
            yield Remaining(what=what, where=where, until=until, state=state, model=True)


def _place(place: str, run: str, ended: bool, keep_last: int) -> tuple[str, str]:
    folder = f"runs/{run}/checkpoints in this workspace"
    if place == HERE:
        kept = "until you delete the checkpoint: the run has ended, and retention acts only while a run trains"
        deleted = f"until retention deletes the checkpoint; retention keeps the last {keep_last} checkpoints"
        return folder, kept if ended else deleted
    if place == REFUSED:
        return folder, "until the step is saved again, or you delete it"
    if place == PUBLISHED:
        return "the workspace's content store", _UNTIL_GC
    return place, "until you delete it in the bucket, or a lifecycle rule of the bucket deletes it"


def traces(ctx: Context, texts: Sequence[str]) -> Iterator[Remaining]:
    """Yield files that contain an excerpt of a removed text, and places that cannot be searched.

    Args:
        texts: removed texts that are still in an earlier snapshot.
    """
    wanted = [excerpt for text in texts[:SEARCHED] for excerpt in excerpts(text)]
    found = dict(_holding(ctx, forms(wanted))) if wanted else {}
    for path, count in sorted(found.items())[:LISTED]:
        until = _UNTIL.get(path.partition("/")[0], "until you delete it")
        yield Remaining(what=f"{path}: {counted(count, 'excerpt')} of the removed text", where="the workspace",
                        until=until, state=HOLDS_TEXT)  # fmt: skip
    if len(found) > LISTED:
        where = f"the workspace: {counted(len(found) - LISTED, 'file')} more"
        yield Remaining(what="files with excerpts of the removed text", where=where, until="until you delete them")
    searched = (
        f"searched for {counted(len(wanted), 'excerpt')} of {counted(min(len(texts), SEARCHED), 'removed text')}, "
        f"found in {counted(len(found), 'file')}"
    )
    yield Remaining(
        what="pages, MLflow, Dagster, logs and files of runs",
        where=f"the workspace, {searched if wanted else 'not searched: the removed text is no longer in the store'}",
        until="until you delete the files that contain an excerpt",
        state=MAY_HOLD_TEXT,
    )
    yield Remaining(
        what="intermediate results in the step cache",
        where=f"records and store of {ctx.workspace.uri or 'the workspace'}",
        until="until `plinth ops gc --delete` deletes them, after two checks a day apart found them unused for 30 days",
        state=MAY_HOLD_TEXT,
    )
    if ctx.workspace.uri:
        yield Remaining(
            what="caches of the store on other machines",
            where="PLINTH_CACHE on every machine that used the workspace",
            until="until newer blobs replace them, or you delete the folder on that machine",
            state=MAY_HOLD_TEXT,
        )


def excerpts(text: str) -> tuple[str, ...]:
    """Return excerpts of a text, from the middle of its longest lines. Short lines and table rulers are skipped."""
    lines = sorted({line.strip() for line in text.splitlines()}, key=lambda line: (-len(line), line))
    middles = (line[max(0, (len(line) - LENGTH) // 2) :][:LENGTH] for line in lines if len(line) >= _SHORTEST)
    return tuple(islice((one for one in middles if len(set(one)) >= _LETTERS), EXCERPTS))


def forms(wanted: Sequence[str]) -> tuple[bytes, ...]:
    """Return the bytes to search for: excerpts raw, and escaped for HTML, JSON and nested JSON (Dagster's events)."""
    escaped = (form for one in wanted for form in (one, *_in_json(one), *_in_html(one)))
    return tuple(dict.fromkeys(form.encode(errors="surrogatepass") for form in escaped))


def _in_json(one: str) -> tuple[str, ...]:
    once = [json.dumps(one, ensure_ascii=ascii)[1:-1] for ascii in (True, False)]
    return (*once, *(json.dumps(form)[1:-1] for form in once))


def _in_html(one: str) -> tuple[str, ...]:
    bare = html.escape(one, quote=False)
    return bare, html.escape(one), bare.replace('"', "&#34;").replace("'", "&#39;")


def _holding(ctx: Context, wanted: Sequence[bytes]) -> Iterator[tuple[str, int]]:
    """Yield path and number of excerpts for every regular file with excerpts. Symbolic links are not followed."""
    root = ctx.workspace.root
    for name, facts in metered(ctx.progress, "searching files", files_below(root), 0):
        top, _, rest = name.partition("/")
        skipped = top in _CONTENT or (top in _WEIGHTY and Path(rest).suffix not in _TEXTS)
        if not skipped and stat.S_ISREG(facts.st_mode) and (count := _count(root / name, wanted)):
            yield name, count


def _count(path: Path, wanted: Sequence[bytes]) -> int:
    """Return the number of different excerpts in a file, or 0 if the file no longer exists."""
    longest, found, before = max(map(len, wanted)), set[bytes](), b""
    with suppress(FileNotFoundError), path.open("rb") as stream:
        while data := stream.read(_CHUNK_BYTES):
            found |= {one for one in wanted if one not in found and one in before + data}
            before = data[-longest:]
    return len(found)


# Candidates, releases and exports of checkpoints. Only the workspace is read: the signed history determines releases,
# not MLflow.


class HeldModel(Frozen):
    """Candidate, release version or export derived from an exposed checkpoint.

    Args:
        now: place of a release (`champion`, `canary`, `superseded`, `rolled back`), or folder of an export.
        text: True for an export of text or tokens.
    """

    kind: str
    name: str
    checkpoint: str
    now: str = ""
    text: bool = False


def models_of(ctx: Context, runs: Sequence[ExposedRun], manifests: Iterable[str] = ()) -> list[HeldModel]:
    """Return the candidates, releases and exports that are derived from the runs' checkpoints.

    Exports of text or tokens are included if they are derived from one of `manifests`.

    Raises:
        SignatureError: the release history fails verification.
        IntegrityError: the record of an export cannot be read.
    """
    digests = {digest for run in runs for digest in run.digests}
    steps = {f"{run.run}:{one.step}" for run in runs for one in run.checkpoints}
    candidates = [
        HeldModel(kind="candidate", name=path.name, checkpoint=digest)
        for digest in sorted(digests)
        if (path := directory_of(ctx, digest)).is_dir()
    ]
    released = _releases(ctx, digests) if digests else ()
    return [*candidates, *released, *_exports(ctx, digests, steps, {*manifests})]


def remaining_models(models: Sequence[HeldModel], tainted: Collection[str] = ()) -> list[Remaining]:
    """Return an entry in the list of remaining copies for each candidate, release and export.

    Args:
        tainted: digests of tainted manifests.
    """
    return [
        Remaining(
            what=f"{one.kind} {one.name}",
            where=_where(one),
            until=_until(one),
            state=HOLDS_TEXT if one.text else taint_state([one.checkpoint], tainted),
            model=not one.text,
        )
        for one in models
    ]


def _releases(ctx: Context, digests: set[str]) -> Iterator[HeldModel]:
    history = releases.history(ctx)
    versions = {
        (record.model, record.version): record.candidate["checkpoint"]
        for record in history
        if record.version is not None and record.candidate.get("checkpoint") in digests
    }
    for (model, version), digest in versions.items():
        place = history.of(model).standing.place(version)
        yield HeldModel(kind="release", name=f"{model}/{version}", checkpoint=digest, now=place or "never released")


def _exports(ctx: Context, digests: set[str], steps: set[str], manifests: set[str]) -> Iterator[HeldModel]:
    for note in noted(ctx):
        text = note.status == "data"
        if note.is_of(digests | manifests if text else digests, steps):
            yield HeldModel(kind="export", name=note.name, checkpoint=note.subject, now=note.to, text=text)


def _where(one: HeldModel) -> str:
    if one.kind == "candidate":
        return f"models/{one.name} in this workspace, and every registry to which it was copied"
    if one.kind == "export":
        return f"{one.now}, and copies of it" if _is_there(one) else f"copies of {one.now}, which no longer exists"
    return f"{one.now}, and every machine that loaded the model"


def _is_there(one: HeldModel) -> bool:
    """Return True if an export is still in its folder.

    An export in a bucket also counts, because its existence cannot be checked.
    """
    return "://" in one.now or Path(one.now).exists()


def _until(one: HeldModel) -> str:
    if one.kind == "release" and one.now == "rolled back":
        return "until consumers that loaded the model earlier delete it; new loads are rejected"
    if one.kind == "release":
        return (
            "until consumers stop using the model: promote a successor, or mark the model tainted (`plinth release "
            "taint`)"
        )
    if one.kind == "export" and not _is_there(one):
        return "unknown: ask the people who received the export"
    return "until you delete it"

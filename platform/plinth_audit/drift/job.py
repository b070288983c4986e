"""Asset `drift`: scores of a released model on newer held-out text, and the slices that drift.

The asset depends on the current time and the signed release history, and on no run of the recipe. A schedule and
`plinth model drift --score` materialize the asset; `plinth run` does not.

In Dagster: the asset, a job with a daily schedule, and a sensor that raises alarms.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth import fingerprint
from plinth.compute import context
from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.parameters import BUILT_IN, Evaluation
from plinth.evaluation.slices import choice
from plinth.evaluation.slices.tables import AXIS, on_grid
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Step
from plinth.report.style import ACCENT, MUTED, WARNING, WIDTH_INCHES
from plinth.storage.parts import iter_batches, read_table, write_table
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from plinth_assets.framework import Inputs, Say, Stage, Suite, between, by_bucket, each, shared_owner
from plinth_assets.framework.build import asset
from plinth_assets.framework.placement import DagsterPlacement
from plinth_assets.framework.present import markdown, picture, table
from plinth_assets.measurements.comparison_stage import text_of
from plinth_audit.drift import judge
from plinth_audit.drift.judge import SliceDrift, in_words
from plinth_jobs.definitions import AddedDefinitions, AssetJob, with_schedule
from plinth_jobs.instance import record_failure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASSET, VERSION = "drift", "1"
SCORES = "scores.parquet"
#: Maximum documents per bucket and analysis, for the reference and for newer ones; smallest IDs first.
MOST = 400
#: Maximum scored bytes of a document.
CUT_BYTES = 2**15

#: Function that returns the bits of documents under the model.
Score = Callable[[Sequence[str]], NDArray[np.float64]]

#: One row per document; analysis 0 is the reference. Columns of axes follow.
SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("look", pa.int64(), nullable=False),
        pa.field("uri", pa.string(), nullable=False),
        pa.field("snapshot", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
        *(pa.field(name, pa.string(), nullable=False) for name in BUILT_IN),
    ]
)


class NewDocument(NamedTuple):
    """Held-out document to score with the champion.

    `text` may be a prefix of the document. `known` is True if the champion's own run held the document out.
    """

    id: bytes
    bucket: str
    uri: str
    snapshot: str
    text: str
    known: bool


def run(
    ctx: Context,
    params: Evaluation,
    champion: Manifest | None,
    own: Mapping[str, Manifest],
    curated: Mapping[str, Manifest],
    ledger: Manifest,
    earlier: Manifest | None = None,
    score: Score | None = None,
) -> Manifest:
    """Score a model on held-out documents that no earlier analysis scored.

    Stats: `champion`, `looks` (analyses with snapshots and documents), `slices` (`judge.SliceDrift`).

    Args:
        champion: released checkpoint; if None, nothing is scored.
        own: curated text of the champion's run, by bucket.
        earlier: published manifest of the last analysis. Its scores are kept if champion and axes are the same. The
            manifest is not an input by digest, because its content is copied to the result.
        score: function that scores documents in place of a separate model process.

    Raises:
        CheckpointError, TrainingError: the model cannot be loaded or evaluated.
        IntegrityError: a document is not in the ledger.
    """
    step = Step(name=ASSET, version=VERSION, params={"slices": dict(params.slices)})
    inputs = {f"{bucket}/curated": made for bucket, made in sorted(curated.items())} | {"ledger": ledger}
    if champion is None:
        return context.manifest(ASSET, step, inputs, [], {"champion": "", "looks": [], "slices": []})
    before = _before(ctx, step, champion, earlier)
    scored = frozenset(before["id"].to_pylist()) if before is not None else frozenset[bytes]()
    fresh = choose(ctx.store, curated, heldout_ids(ctx.store, own), scored)
    tables = [one for one in (before, _scored(ctx, params, champion, ledger, fresh, before, score)) if one is not None]
    if not tables:
        return context.manifest(ASSET, step, inputs, [], {"champion": champion.digest, "looks": [], "slices": []})
    table = pa.concat_tables(tables)
    part = write_table(ctx.store, SCORES, table)
    found = judge.judged(table)
    stats = {
        "champion": champion.digest,
        "looks": _looks(table),
        "slices": [one.model_dump(mode="json") for one in found],
    }
    return context.manifest(ASSET, step, {"checkpoint": champion, **inputs}, [part], stats)


def slices(made: Manifest) -> list[SliceDrift]:
    """Return the drift of each slice, as recorded in the manifest's stats."""
    return [SliceDrift.model_validate(one) for one in made.stats["slices"]]


def _before(ctx: Context, step: Step, champion: Manifest, earlier: Manifest | None) -> pa.Table | None:
    if earlier is None or earlier.stats["champion"] != champion.digest or not earlier.parts:
        return None
    same = (earlier.version, earlier.params) == (step.version, step.params)
    return read_table(ctx.store, earlier.parts[0]) if same else None


def _scored(
    ctx: Context,
    params: Evaluation,
    champion: Manifest,
    ledger: Manifest,
    fresh: Sequence[NewDocument],
    before: pa.Table | None,
    score: Score | None,
) -> pa.Table | None:
    """Score the new documents of the current analysis.

    In the first analysis, reference documents get the analysis number 0 and newer documents get the number 1.
    """
    if not fresh:
        return None
    number = 1 if before is None else max(before["look"].to_pylist()) + 1
    bits = (score or _by_model(ctx, champion))([one.text for one in fresh])
    sizes = [len(one.text.encode()) for one in fresh]
    asked = pa.table(
        {
            "id": pa.array([one.id for one in fresh], pa.binary(16)),
            "bucket": [one.bucket for one in fresh],
            "bytes": pa.array(sizes, pa.int64()),
        }
    )
    labels = choice.labels(ctx.store, ledger, asked, params.slices)
    own = sorted(set(labels) - {"uri", *BUILT_IN})
    columns: dict[str, Any] = {
        "id": [one.id for one in fresh],
        "look": [0 if one.known else number for one in fresh],
        "uri": [one.uri for one in fresh],
        "snapshot": [one.snapshot for one in fresh],
        "bytes": sizes,
        "bits": on_grid(np.asarray(bits, dtype=np.float64)),
        **{name: labels[name] for name in BUILT_IN},
        **{f"{AXIS}{name}": labels[name] for name in own},
    }
    schema = pa.schema([*SCHEMA, *(pa.field(f"{AXIS}{name}", pa.string(), nullable=False) for name in own)])
    return pa.Table.from_pydict(columns, schema)


def _by_model(ctx: Context, champion: Manifest) -> Score:
    def score(texts: Sequence[str]) -> NDArray[np.float64]:
        with ModelEngine.of(ctx, champion, label=ASSET) as engine:
            return engine.documents(texts).bits

    return score


def _looks(table: pa.Table) -> list[dict[str, Any]]:
    found: dict[int, tuple[set[str], list[int]]] = {}
    for look, snapshot in zip(table["look"].to_pylist(), table["snapshot"].to_pylist(), strict=True):
        snapshots, count = found.setdefault(look, (set(), [0]))
        snapshots.add(snapshot)
        count[0] += 1
    return [
        {"look": look, "snapshots": sorted(snapshots), "documents": count[0]}
        for look, (snapshots, count) in sorted(found.items())
    ]


def heldout_ids(store: Store, curated: Mapping[str, Manifest]) -> frozenset[bytes]:
    """Return the IDs of all held-out documents in the curated text."""
    parts = (part for made in curated.values() for part in made.named("heldout-"))
    return frozenset(
        id_ for part in parts for batch in iter_batches(store, part, ["id"]) for id_ in batch[0].to_pylist()
    )


def choose(
    store: Store, curated: Mapping[str, Manifest], own: frozenset[bytes], scored: frozenset[bytes], most: int = MOST
) -> list[NewDocument]:
    """Return held-out documents to score, sorted by bucket (reference documents first), then by ID.

    The reference is chosen once, in the first analysis; later analyses have only newer documents.

    Args:
        own: IDs held out by the model's run.
        scored: IDs scored by earlier analyses; empty in the first analysis.
        most: maximum number of documents per bucket.
    """
    found = []
    for bucket in sorted(curated):
        kinds = (True, False) if not scored else (False,)
        for known in kinds:
            rows = (one for one in _rows(store, bucket, curated[bucket], own) if one.known == known)
            found += heapq.nsmallest(most, (one for one in rows if one.id not in scored), key=lambda one: one.id)
    return found


def _rows(store: Store, bucket: str, curated: Manifest, own: frozenset[bytes]) -> Iterator[NewDocument]:
    for part in curated.named("heldout-"):
        for batch in iter_batches(store, part, ["id", "uri", "snapshot", "text"]):
            for row in batch.to_pylist():
                text = row["text"].encode()[:CUT_BYTES].decode(errors="ignore")
                if text:
                    yield NewDocument(row["id"], bucket, row["uri"], row["snapshot"], text, row["id"] in own)


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that measures drift, or no stage if the recipe has no release."""
    if recipe.release is None or recipe.mixture is None:
        return []
    return [
        Stage(
            asset=ASSET,
            deps=(*each(recipe, "curated"), "ledger"),
            make=partial(_make, recipe),
            version=VERSION,
            params={"slices": dict(recipe.evaluation.slices)},
            outside=partial(_champion, recipe),
            group="operation",
            description="Bits per byte of the champion on newer held-out documents, by slice, compared with the "
            "held-out documents of its own run in an anytime-valid drift test.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            schema=SCHEMA,
            suite=_suite,
            present=_present,
            pool="training",
        )
    ]


def _champion(recipe: Recipe, ctx: Context) -> str:
    from plinth_registry.evidence import champion

    return champion(ctx, recipe.required_release().name, "")


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    digest, earlier = _champion(recipe, ctx), ctx.refs.published(ASSET)
    champion = ctx.refs.load(digest) if digest else None
    if champion is None:
        say(f"{recipe.required_release().name} has no champion to score")
    own = {} if champion is None else text_of(ctx, champion)
    curated = by_bucket(recipe, inputs, "curated")
    return run(ctx, recipe.evaluation, champion, own, curated, inputs["ledger"], earlier)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Return the checks of the asset, which warn if a slice drifts and never block."""
    drifting = sum(one["drifts"] for one in made.stats["slices"])
    return Suite(ASSET, [{"drifting": drifting}], [between("drifting", None, 0, "warning")])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    found = slices(made)
    if not found:
        return {"slices": "no result: there is no champion, or no slice has enough held-out documents"}
    header = ["slice", "reference documents", "newer", "reference", "latest", "p (corrected)", "drifts"]
    moved = [document for one in found if one.drifts for document in one.moved]
    named = [[each.uri, each.snapshot, each.bytes, each.model, each.excess_bits] for each in moved]
    return {
        "drift": picture(figure, found),
        "drifting": sum(one.drifts for one in found),
        "slices": markdown(table(header, [_row(one) for one in found])),
        "moved": markdown(table(["document", "snapshot", "bytes", "bits per byte", "bits above the reference"], named)),
        "proposal": markdown("`plinth model drift --propose continued.yaml` writes a recipe without starting a run"),
    }


def _row(one: SliceDrift) -> list[Any]:
    latest = "-" if one.latest is None else f"{one.latest[0]:.3f} ({one.latest[1]:.3f} to {one.latest[2]:.3f})"
    reference = f"{one.reference[0]:.3f} ({one.reference[1]:.3f} to {one.reference[2]:.3f})"
    return [
        one.label,
        one.documents,
        one.later,
        reference,
        latest,
        one.adjusted,
        f"since analysis {one.look}" if one.drifts else "",
    ]


#: Maximum number of slices in the chart. Slices that drift come first.
DRAWN = 24


def figure(found: Sequence[SliceDrift]) -> Figure:
    """Plot bits per byte by slice.

    The reference is gray. The latest analysis is orange if the slice drifts, and has the accent color if not.
    """
    from matplotlib.figure import Figure

    rows = list(found[:DRAWN])
    fig = Figure(figsize=(WIDTH_INCHES, 0.32 * max(1, len(rows)) + 0.9), layout="constrained")
    axes = fig.subplots()
    for place, one in enumerate(rows):
        for value, colour, shift in ((one.reference, MUTED, -0.13), (one.latest, _colour(one), 0.13)):
            if value is not None:
                axes.plot(value[1:], [place + shift] * 2, color=colour, alpha=0.4, linewidth=4)
                axes.plot(value[:1], [place + shift], "o", color=colour, markersize=5)
    axes.set_yticks(range(len(rows)), [f"{one.label} ({one.later:,} later)" for one in rows])
    axes.invert_yaxis()
    axes.set_xlabel("bits per byte; gray: reference, color: latest measurement, orange: slices that drift")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    return fig


def _colour(one: SliceDrift) -> str:
    return WARNING if one.drifts else ACCENT


JOB = "score_drift"
INTERVAL_S = 60


def build(recipe: Recipe, workspace: Path, place: DagsterPlacement) -> dg.Definitions:
    """Return the Dagster definitions for drift, which are empty if the recipe has no release."""
    own = stages(recipe)
    if not own:
        return dg.Definitions()
    daily = AssetJob(
        name=JOB,
        selection=dg.AssetSelection.assets(place.key(ASSET)),
        description="Score the champion on new held-out text.",
        schedule="drift_daily",
        cron="0 5 * * *",
        scheduled="Score the champion on new held-out documents daily at 05:00.",
    )
    parts = dg.Definitions(assets=[asset(stage, place) for stage in own], sensors=[sensor(workspace, place)])
    return dg.Definitions.merge(parts, with_schedule(daily, place))


def sensor(workspace: Path, place: DagsterPlacement) -> dg.SensorDefinition:
    """Return a Dagster sensor that raises one alarm per drifting slice when the set of drifting slices changes."""

    @dg.sensor(
        name=place.name("drift"), minimum_interval_seconds=INTERVAL_S, default_status=dg.DefaultSensorStatus.RUNNING
    )
    def _drift(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        """Raise alarms for slices that drift in the latest analysis."""
        ctx = Context(Workspace(workspace))
        try:
            published = ctx.refs.published(ASSET)
            found = slices(published) if published else []
        except PlinthError as error:
            return dg.SkipReason(str(error))
        drifting = [one for one in found if one.drifts]
        seen = fingerprint.digest(sorted(f"{one.label} {one.look}" for one in drifting)) if drifting else ""
        if seen != (context.cursor or ""):
            context.update_cursor(seen)
            for one in drifting:
                message = f"{in_words(one)}. Next: `plinth model drift --propose continued.yaml`"
                record_failure(workspace, "", "drift", message)
        return dg.SkipReason(f"{len(drifting)} of {len(found)} slices drift")

    return _drift


DEFINITIONS = AddedDefinitions("drift", build)

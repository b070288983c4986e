"""A stage as a Dagster asset: resolve inputs once, compute, check, publish, present; and the resources of a run.

Dagster records a materialization even when its blocking check fails, so the check runs *before* the
manifest is published and before anything is yielded: a failure publishes nothing and records nothing
but the failed check.
"""

import inspect
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple, Self

import dagster as dg
from dagster import BetaWarning
from pydantic import PrivateAttr

from plinth.compute import context
from plinth.compute.context import Context, TaskShare
from plinth.compute.engine import Engine
from plinth.compute.progress import Meter, Progress, ProgressLines, SilentMeter
from plinth.compute.select_engine import Compute
from plinth.errors import CheckFailedError, PlinthError
from plinth.evaluation.engine.client import SPARE
from plinth.operation import admission, asset_listeners, workspace_files
from plinth.operation.asset_listeners import AssetUpdate
from plinth.operation.workspace_files import CHECKED, PUBLISHED
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.text import markdown_text
from plinth_assets.framework import Inputs, Say, Stage, Suite, SuiteOutcome, data_docs, evaluate, up_to_date
from plinth_assets.framework.arrow_reader import ArrowReader
from plinth_assets.framework.pipes import PipesAnnotator, PipesReport
from plinth_assets.framework.placement import ALONE, DagsterPlacement
from plinth_assets.framework.present import metadata, page_link, picture

CHECK = "expectations"
PRIORITY = "dagster/priority"
#: Dagster run tag with the requester, who cannot approve under two-person approval.
REQUESTED_BY = "plinth/requested_by"

#: Group of the sidecars of annotators.
ANNOTATIONS = "annotations"
#: Groups outside the corpus. Their jobs reserve rank cost; other costs are negligible.
NOT_CORPUS = frozenset({"training", "evaluation", "report", "registry", "release"})

#: Request a run when the data version of an input changed and its blocking checks passed; latched, so that an
#: update during a run is not lost. `up_to_date` decides if the run has work to do.
ON_NEW_DATA = (
    dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed()).since(
        dg.AutomationCondition.newly_requested() | dg.AutomationCondition.newly_updated()
    )
    & dg.AutomationCondition.all_deps_blocking_checks_passed()
    & ~dg.AutomationCondition.in_progress()
    & ~dg.AutomationCondition.any_deps_in_progress()
)


#: Freshness of nightly assets: late after two hours, failed after a missed night.
NIGHTLY = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=50), warn_window=timedelta(hours=26))


@dataclass
class Session:
    """Objects shared by the caller of a run in this process and the assets of that run.

    Dagster rebuilds configured resources, and keeps the message of an error but not its type: this object passes
    unchanged.

    Args:
        progress: display of progress; lines end up in the logs that Dagster captures.
        assets: counter of the run's assets.
        failures: errors of the assets that failed, in order.
        warnings: lines of the checks that failed without blocking, in order.
    """

    progress: Progress = field(default_factory=ProgressLines)
    assets: Meter = field(default_factory=SilentMeter)
    failures: list[PlinthError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class PlinthResource(dg.ConfigurableResource["PlinthResource"]):
    """Resource that opens the workspace and a pool of workers; neither affects identities."""

    workspace: str
    engine: str = "local"
    workers: int = 2
    ray_address: str = ""
    share: str = ""
    recipe: str = ""

    _engine: Engine | None = PrivateAttr(default=None)
    _session: Session | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        Workspace(self.workspace).ensure()
        self._engine = self._compute.open()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        if self._session:
            self._session.assets.advance(0, "Great Expectations")
        for line in (*data_docs.finish(), *asset_listeners.finish()):
            if self._session:
                self._session.warnings.append(line)
        if self._engine:
            self._engine.close()
            self._engine = None
        SPARE.end()

    def context(self, session: Session) -> Context:
        """Return a stage's runtime context."""
        self._session = session
        engine = self._engine or self._compute.open()
        share = TaskShare.parse(self.share)
        return Context(Workspace(self.workspace), engine, session.progress, share, recipe=self.recipe)

    @property
    def _compute(self) -> Compute:
        return Compute(self.engine, self.workers, self.ray_address, self.share)

    @classmethod
    def over(cls, workspace: str, compute: Compute, recipe: str = "") -> Self:
        """Return the resource of a workspace, with the chosen engine and the name of the recipe."""
        return cls(
            workspace=workspace,
            engine=compute.engine,
            workers=compute.workers,
            ray_address=compute.address,
            share=compute.share,
            recipe=recipe,
        )


#: Keys of Plinth's Dagster resources; a user's project has others.
RESOURCE, SESSION, READER = "plinth", "plinth_session", "plinth_reader"


def resources_of(
    workspace: str,
    compute: Compute,
    session: Session | None = None,
    recipe: str = "",
    place: DagsterPlacement = ALONE,
) -> dict[str, Any]:
    """Return the resources that assets of stages need, by key."""
    return {
        place.name(RESOURCE): PlinthResource.over(workspace, compute, recipe),
        place.name(SESSION): session or Session(),
        place.name(READER): ArrowReader(workspace=workspace, key_prefix=list(place.prefix)),
    }


def needed(place: DagsterPlacement) -> tuple[str, ...]:
    """Return the keys of the resources that `opened` reads."""
    return place.name(RESOURCE), place.name(SESSION)


def opened(context: dg.AssetExecutionContext, place: DagsterPlacement) -> Context:
    """Return the runtime context of an asset, from the resources of its Dagster run."""
    plinth, session = (getattr(context.resources, key) for key in needed(place))
    ctx: Context = plinth.context(session)
    return ctx


def asset(
    stage: Stage,
    place: DagsterPlacement = ALONE,
    *,
    group: str = "",
    nightly: bool = False,
    upstream: Sequence[str] = (),
    expected: Mapping[str, Any] = MappingProxyType({}),
    pipes: Mapping[str, PipesAnnotator] = MappingProxyType({}),
) -> dg.AssetsDefinition:
    """Return the Dagster asset of a stage.

    Args:
        group: replaces the stage's own group if that is too large.
        nightly: True if the nightly corpus job includes it.
        upstream: keys of assets of the user's project that write the files this stage reads.
        expected: metadata about the cost of the next materialization.
        pipes: annotators that run in an external process.
    """
    key = place.key(stage.asset)
    annotator = stage.asset.rpartition("/")[2] if stage.group == ANNOTATIONS else ""
    external = pipes.get(annotator)
    checks = [
        dg.AssetCheckSpec(
            CHECK,
            asset=key,
            blocking=True,
            description="Evaluate the asset's expectations on its statistics. A critical failure blocks publication.",
        )
    ] * bool(stage.suite)
    reported = external.checks if external else ()
    checks += [
        dg.AssetCheckSpec(name, asset=key, description="Reported by the annotator's program.") for name in reported
    ]

    @dg.asset(
        key=key,
        deps=[*map(place.key, stage.deps), *map(ALONE.key, upstream)],
        group_name=group or place.name(stage.group),
        kinds=set(stage.kinds),
        owners=[stage.owner if "@" in stage.owner else f"team:{stage.owner}"],
        description=stage.description,
        code_version=stage.code_version,
        check_specs=checks,
        pool=stage.pool,
        tags=dict(stage.tags),
        op_tags={PRIORITY: str(stage.priority)} if stage.priority else None,
        metadata={**_code_reference(stage), **page_link(place.pages), **expected},
        freshness_policy=NIGHTLY if nightly else None,
        automation_condition=ON_NEW_DATA if stage.pool == "corpus" and (stage.deps or upstream) else None,
        io_manager_key=place.name(READER),
        required_resource_keys={*needed(place), *([external.client] if external else [])},
    )
    def definition(context: dg.AssetExecutionContext) -> Iterator[Any]:
        session: Session = getattr(context.resources, place.name(SESSION))
        reports = {name: PipesReport(name, one, context) for name, one in pipes.items()}
        report = reports.get(annotator)
        try:
            ctx = opened(context, place)
            ctx.requested_by, ctx.run = context.run.tags.get(REQUESTED_BY), context.run.run_id
            session.assets.advance(0, f"now: {stage.asset}")
            ctx.programs = {name: one.run for name, one in reports.items()}
            for event in execute(stage, ctx, context.log.info, session.warnings.append):
                yield report.shown(event) if report else event
            session.assets.advance()
            for evaluation in marks_of_new(ctx, stage.asset, place):
                context.instance.report_runless_asset_event(evaluation)
        except PlinthError as error:
            session.failures.append(error)
            if report:
                yield from report.pending()
            raise dg.Failure(description=str(error), allow_retries=False) from error

    return definition


def execute(stage: Stage, ctx: Context, say: Say, warn: Say = lambda line: None) -> Iterator[Any]:
    """Make, check and publish a stage; yield Dagster events.

    Args:
        warn: called with a line for each check that failed without blocking.

    Raises:
        MissingError: an input was never materialized.
        CheckFailedError: a blocking expectation failed; nothing was published.
    """
    with asset_listeners.announced(ctx, _update(stage, ctx)) as update:
        made = bring(stage, ctx, say)
        update.inputs, update.manifest, update.reused = made.inputs, made.manifest, made.cached
        if made.outcome:
            failures = len(made.outcome.failures)
            workspace_files.append(
                ctx, CHECKED, stage.asset, passed=not made.blocked, evaluated=made.outcome.evaluated, failures=failures
            )
        if made.blocked and made.suite and made.outcome:
            yield _check_result(made.suite, made.outcome)
        manifest = publish(stage, ctx, made)
    for line in made.outcome.warnings if made.outcome else ():
        warn(f"{stage.asset}: {line}")
    yield dg.MaterializeResult(
        data_version=dg.DataVersion(manifest.digest),
        metadata=metadata(stage, ctx, manifest, made.inputs, cached=made.cached),
        check_results=[_check_result(made.suite, made.outcome)] if made.suite and made.outcome else [],
    )


def _update(stage: Stage, ctx: Context) -> AssetUpdate:
    place = ctx.workspace.uri or ctx.workspace.root.resolve().as_uri()
    return AssetUpdate(stage.asset, place, stage.code_version, stage.schema)


class CheckedManifest(NamedTuple):
    """Stage's manifest with the outcome of its expectations, before publication. `cached`: it was up to date."""

    manifest: Manifest
    inputs: Inputs
    suite: Suite | None
    outcome: SuiteOutcome | None
    cached: bool = False

    @property
    def blocked(self) -> bool:
        """True if a blocking expectation failed."""
        return self.outcome is not None and self.outcome.blocked


def bring(stage: Stage, ctx: Context, say: Say) -> CheckedManifest:
    """Find or make a stage's manifest from the published inputs, and check it.

    Raises:
        MissingError: an input was never materialized.
    """
    inputs = {dep: ctx.refs.current(dep) for dep in stage.deps}
    found = up_to_date(stage, ctx, _digests(inputs))
    if found is not None:
        say(f"{stage.asset} is up to date")
    manifest = found or _made(stage, ctx, inputs, say)
    suite = stage.suite(manifest, inputs) if stage.suite else None
    outcome = evaluate(suite) if suite else None
    if suite and ctx.share is None:  # else several processes evaluate the same suites
        data_docs.file(ctx.workspace, suite)
    return CheckedManifest(manifest, inputs, suite, outcome, cached=found is not None)


def publish(stage: Stage, ctx: Context, made: CheckedManifest) -> Manifest:
    """Sign the required statement about a stage's manifest, and make it the current one.

    Raises:
        CheckFailedError: a blocking expectation failed; nothing was published.
    """
    manifest, digests = made.manifest, _digests(made.inputs)
    if made.blocked and made.outcome:
        raise CheckFailedError(
            f"{stage.asset} failed its checks and was not published",
            found="; ".join(made.outcome.failures),
            expected="all blocking checks to pass",
            remedy="fix the input or the recipe, and rerun",
        )
    if stage.statement and not stage.statement.holds(ctx, digests, manifest):
        stage.statement.sign(ctx, digests, manifest)
    ctx.refs.publish(manifest, stage.key(ctx, digests))
    workspace_files.append(ctx, PUBLISHED, stage.asset, digest=manifest.digest)
    return manifest


def _digests(inputs: Inputs) -> dict[str, str]:
    return {dep: manifest.digest for dep, manifest in inputs.items()}


def _made(stage: Stage, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    """Do the work within the budget, and record its cost. A job's ranks are reserved when it is submitted."""
    read = admission.input_bytes(inputs.values())
    held = None if stage.group in NOT_CORPUS else admission.reserve_stage(ctx, stage.asset, read, stage.max_price)
    wall_s, cpu_s = time.monotonic(), time.process_time()
    try:
        manifest = stage.make(ctx, inputs, say)
    finally:
        own, wall = time.process_time() - cpu_s, time.monotonic() - wall_s
        cost = context.AssetCost(
            asset=stage.asset, steps=ctx.costs, driver_cpu_s=own, wall_s=wall, input_bytes=read, run=ctx.run
        )
        admission.settle_stage(ctx, held, cost)
    context.save(ctx.workspace, cost)
    return manifest


def _check_result(suite: Suite, outcome: SuiteOutcome) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=CHECK,
        passed=not outcome.blocked and not outcome.warnings,
        severity=dg.AssetCheckSeverity.ERROR if outcome.blocked else dg.AssetCheckSeverity.WARN,
        metadata={
            "suite": suite.name,
            "evaluated": outcome.evaluated,
            "failures": _listed(outcome.failures),
            "warnings": _listed(outcome.warnings),
        },
    )


def _listed(lines: Iterable[str]) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md("\n".join(f"- {markdown_text(line)}" for line in lines) or "none")


def _code_reference(stage: Stage) -> dict[str, Any]:
    path, line = _place(inspect.unwrap(getattr(stage.make, "func", stage.make)))
    if path is None:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=BetaWarning)
        reference = dg.LocalFileCodeReference(file_path=path, line_number=line, label=stage.asset)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}


@cache
def _place(function: FunctionType) -> tuple[str | None, int]:
    """Return the file and line of a function. Results are cached, because many stages share a function."""
    return inspect.getsourcefile(function), function.__code__.co_firstlineno


# The check `marks` of assets fails if the asset or an upstream artifact is tainted, and lists the taints. The check of
# a tainted asset also draws everything derived from it. Gates and loaders read the taint log, never this check.

MARKS = "marks"


def mark_evaluations(
    ctx: Context, assets: Collection[str], place: DagsterPlacement
) -> Iterator[dg.AssetCheckEvaluation]:
    """Evaluate the check of these assets now.

    Raises:
        SignatureError: the taint log does not verify.
    """
    from plinth_registry import taint

    marks = taint.records(ctx)
    frozen = [{each.digest: each.steps for each in taint.affected(ctx, mark)} for mark in marks]
    for asset in sorted(assets):
        ref = ctx.refs.ref(asset)
        hit = [n for n, steps in enumerate(frozen) if ref is not None and ref.digest in steps]
        said = [f"{marks[n].kind} {marks[n].target[:16]} is tainted by {marks[n].by}: {marks[n].reason}" for n in hit]
        # A picture is about 100 KB, so only the tainted asset has it.
        here = [n for n in hit if ref is not None and frozen[n][ref.digest] == 0]
        yield dg.AssetCheckEvaluation(
            asset_key=place.key(asset),
            check_name=MARKS,
            passed=not hit,
            description="; ".join(said) or "no mark",
            metadata={f"downstream of taint {n + 1}": _drawn(ctx, marks[n].target) for n in here},
        )


def _drawn(ctx: Context, target: str) -> dg.MarkdownMetadataValue:
    from plinth_registry import consumers, impact_page

    found = consumers.impact(ctx, target)
    return picture(impact_page.impact_figure, impact_page.boxes(found), found.links)


def marks_of_new(ctx: Context, asset: str, place: DagsterPlacement) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the check of an asset that was just materialized; nothing in a workspace without taints.

    Raises:
        SignatureError: the taint log does not verify.
    """
    from plinth_registry import taint

    if taint.statements(ctx):
        yield from mark_evaluations(ctx, [asset], place)

"""Run the pipeline: skip assets that are up to date, run the rest through Dagster in this process.

    harvest (demo) -> plan -> Dagster run -> approval -> Dagster run of the release -> results page

The same assets, checks and instance serve the Dagster UI; this module only selects assets, and imports Dagster
only if one must be materialized.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from plinth.compute.context import Context
from plinth.compute.context import load as last_cost
from plinth.compute.progress import Progress, for_terminal
from plinth.compute.select_engine import DEFAULT, Compute
from plinth.corpus.sources.record import Account, published
from plinth.errors import PlinthError, RecipeError, not_installed
from plinth.operation import admission, settlement, spending
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth_assets.catalog import selected, stages
from plinth_assets.framework import Decision, Stage, data_docs, decide
from plinth_jobs import CANDIDATE, RELEASE, policies, results, workspace_index
from plinth_jobs.asset_states import elsewhere
from plinth_jobs.recipes import load, remember

RELEASE_GROUP = "release"
CORPUS_POOL = "corpus"


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run: assets that it materialized and assets that were up to date, warnings of non-blocking checks,
    and counts of files and records by bucket."""

    done: tuple[str, ...]
    fresh: tuple[str, ...]
    seconds: float
    page: Path | None = None
    release: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    accounts: dict[str, Account] = field(default_factory=dict)


def run(
    workspace: Path,
    recipe_path: Path,
    select: tuple[str, ...] = (),
    compute: Compute = DEFAULT,
    *,
    harvest: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> RunSummary:
    """Bring the recipe's assets (or selected ones and their inputs) up to date.

    Args:
        compute: workers and engine. With a `share`, this is one of several processes that build only corpus assets, and
            all processes publish the same result.
        harvest: True to replace an earlier harvest of the demo.
        say: function that receives messages at the start about gates that will block a candidate.

    Raises:
        RecipeError, MissingError: the recipe or the selection is invalid.
        SignatureError: a release is requested and no root of trust is pinned, or its policy does not verify.
        StageError: a stage failed; assets finished before it are kept.
    """
    started = time.monotonic()
    recipe = load(recipe_path)
    catalog = stages(recipe)
    chosen = selected(catalog, select)
    space = Workspace(workspace).ensure()
    with nullcontext() if compute.share else space.locked(f"plinth run -r {recipe_path}"):
        remember(space.root, recipe_path)
        progress = for_terminal()
        take_harvest(space, recipe, progress, again=harvest)
        if compute.share:
            chosen = tuple(stage for stage in chosen if stage.pool == CORPUS_POOL)
        ctx = Context(space, progress=progress)
        for sentence in _policy(ctx, recipe, chosen):
            say(sentence)
        todo = decide(ctx, chosen)
        if others := [ref for asset in todo.stale if (ref := ctx.refs.seen(asset)) and not ctx.refs.own(ref)]:
            say(elsewhere(len(others)))
        making = [asset for asset in todo.stale if _group(chosen, asset) != RELEASE_GROUP]
        check_installed(recipe, making, {_group(chosen, asset) for asset in making})
        if not compute.share and any(stage.suite for stage in chosen if stage.asset in making):
            data_docs.begin()
        warned = _execute(ctx, recipe, making, compute) if making else ()
        released = any(stage.group == RELEASE_GROUP for stage in chosen)
        with progress.meter("release and pages", 3) as meter:
            meter.advance(0, "deciding on the release")
            release = _release(ctx, recipe, compute) if released else {}
            meter.advance(1, "results")
            whole = released or len(chosen) == len(catalog)
            page = (results.current(ctx, recipe) or results.write(ctx, recipe)) if whole else None
            meter.advance(1, "index")
            if not compute.share:
                workspace_index.refresh(space, say)
            meter.advance()
    accounts = dict(_accounts(ctx, recipe, chosen))
    return RunSummary(tuple(making), todo.fresh, time.monotonic() - started, page, release, warned, accounts)


# Preview of a run, without work: the assets that it would materialize, the reason for each, and the expected cost.

RUN = "run"


class ExpectedWork(NamedTuple):
    """Asset that would be materialized. Costs are None if no earlier materialization tells them.

    Args:
        reason: what changed since the last materialization.
        cpu_hours: CPU hours of corpus stages and of other work outside the ranks.
        rank_hours: rank-hours of the training run.
        cost_usd: price of both.
    """

    asset: str
    group: str
    reason: str
    cpu_hours: float | None
    rank_hours: float | None
    cost_usd: float | None


def expected(ctx: Context, stages: Sequence[Stage], decision: Decision) -> list[ExpectedWork]:
    """Return the stale assets of these stages, upstream first.

    The cost is that of the last materialization, for all items, scaled to the current size of the inputs. The real cost
    is lower if the step cache has some of the items, and higher if the parameters ask for more work per byte.
    """
    known = dict(decision.manifests)
    settings = spending.load(ctx.workspace)
    stale = set(decision.stale)
    found = []
    for stage in stages:
        if stage.asset not in stale:
            continue
        last = _published(ctx, stage.asset)
        reason = _reason(stage, last, known, stale)
        size = admission.input_bytes(known[dep] for dep in stage.deps if dep in known)
        corpus = admission.expected_cost(last_cost(ctx.workspace, stage.asset), size, settings.prices)
        cpu_hours, cost = corpus or (None, None)
        rank_hours = None
        if stage.asset == RUN and last is not None:
            spent = settlement.run_spend(ctx, str(last.stats["run_id"]))
            rank_hours = spent.rank_hours if spent else None
            cost = cost if spent is None else (cost or 0.0) + spent.spent
        found.append(ExpectedWork(stage.asset, stage.group, reason, cpu_hours, rank_hours, cost))
        if last is not None:
            known[stage.asset] = last  # its size is the best guess for the stages after it
    return found


def _published(ctx: Context, asset: str) -> Manifest | None:
    ref = ctx.refs.seen(asset)
    try:
        return ctx.refs.load(ref.digest) if ref else None
    except PlinthError:  # an unreadable manifest is made again
        return None


def _reason(stage: Stage, last: Manifest | None, known: Mapping[str, Manifest], stale: set[str]) -> str:
    if last is None:
        return "never materialized"
    upstream = [dep for dep in stage.deps if dep in stale]
    if upstream:
        return f"upstream: {', '.join(upstream[:3])}" + (f" and {len(upstream) - 3} more" if len(upstream) > 3 else "")
    # An asset does not record all its dependencies: a run records the mixture, not the shards behind it.
    recorded = [dep for dep in stage.deps if dep in known and dep in last.inputs]
    changed = [dep for dep in recorded if known[dep].digest != last.inputs[dep]]
    if changed:
        return f"new data in {', '.join(changed[:3])}"
    return "source files, recipe or code changed" if stage.outside else "recipe or code changed"


def dry_run(workspace: Path, recipe_path: Path, select: tuple[str, ...] = ()) -> tuple[list[ExpectedWork], int]:
    """Return the assets that `run` would materialize, with reasons and expected costs, and the number of assets that
    are up to date. Nothing is written.

    Raises:
        RecipeError, MissingError: the recipe or the selection is invalid.
    """
    recipe = load(recipe_path)
    chosen = selected(stages(recipe), select)
    ctx = Context(Workspace(workspace), progress=for_terminal())
    try:
        todo = decide(ctx, chosen)
    except PlinthError:
        if not recipe.harvest:
            raise
        todo = Decision((), tuple(stage.asset for stage in chosen))  # `run` collects the sources first
    return expected(ctx, chosen, todo), len(todo.fresh)


def check_installed(recipe: Recipe, making: Iterable[str], groups: set[str]) -> None:
    """Check that the packages for training and evaluation are installed, before days of corpus work start.

    Raises:
        MissingError: a package in `errors.EXTRAS` is needed but not installed.
    """
    here = recipe.training is not None and recipe.training.launch.kind == "local"
    needed = {
        "torch": here and not {"training", "evaluation"}.isdisjoint(groups),
        "lm_eval": here and any(asset.startswith("tasks/") for asset in making),
    }
    for package in (package for package, used in needed.items() if used and find_spec(package) is None):
        raise not_installed(package)


def _release(ctx: Context, recipe: Recipe, compute: Compute) -> dict[str, Any]:
    """Run the release job that the approval sensor would request now."""
    from plinth_jobs.asset_states import requests
    from plinth_registry import decisions
    from plinth_registry.gates import summary

    if person := recipe.required_release().auto_approve_as:
        for status in decisions.pending(ctx, recipe):
            if status.waits_for_approval:
                reason = f"approved by the recipe; gates before approval: {summary(status.gates)}"
                decisions.approve(ctx, recipe, status.version, person, reason)
    try:
        wanted = requests(ctx, recipe)
    except PlinthError:  # the sensor also skips these errors; `describe_release` reports them
        wanted = ()
    for _ in wanted:
        _execute(ctx, recipe, ["release"], compute, job=RELEASE)
    return describe_release(ctx, recipe)


def describe_release(ctx: Context, recipe: Recipe) -> dict[str, Any]:
    """Describe the champion, the last change of the release, and the gates that block candidates."""
    from plinth_assets.candidate import waiting
    from plinth_registry import decisions

    history = decisions.history(ctx, recipe)
    held = waiting(ctx, recipe)
    shown = {"waiting": held} if held != "no candidate" else {}
    if not history:
        return shown
    last, places = history[-1], history.standing
    version = places.champion or places.canary
    return {
        "release": f"{last.model} version {version}" if version else f"{last.model}: no version",
        "alias": (places.place(version) if version else None) or "none",
        "last_action": last.action,
        "by": last.by,
        **shown,
    }


def _policy(ctx: Context, recipe: Recipe, chosen: tuple[Stage, ...]) -> Iterator[str]:
    """Warn about gates that will block a candidate of this recipe, before days of work are spent on one."""
    from plinth_registry import policy

    if not any(stage.group in ("registry", RELEASE_GROUP) for stage in chosen):
        return
    signed = policies.ensure(ctx, recipe)
    if signed is None:
        name = recipe.required_release().name
        yield f"no signed gate policy for {name}: every candidate will be blocked (`plinth gates sign FILE`)"
        return
    for gate in policy.unmeasured(signed.policy, recipe):
        yield f"policy {signed.title} requires a gate for which this recipe produces no evidence: {gate}"


def _accounts(ctx: Context, recipe: Recipe, chosen: tuple[Stage, ...]) -> Iterator[tuple[str, Account]]:
    """Yield the counts of each bucket whose document stage was chosen."""
    assets = {stage.asset for stage in chosen}
    for bucket in recipe.corpus.buckets:
        keys = [f"{bucket}/{kind}" for kind in ("sources", "documents")]
        made = [ctx.refs.current(key) for key in keys if key in assets and ctx.refs.ref(key)]
        if len(made) == len(keys) and (found := published(*made)):
            yield bucket, found


def _group(chosen: tuple[Stage, ...], asset: str) -> str:
    return next(stage.group for stage in chosen if stage.asset == asset)


def take_harvest(space: Workspace, recipe: Recipe, progress: Progress, *, again: bool = False) -> None:
    """Harvest this machine's text if the recipe uses it.

    Raises:
        RecipeError: the workspace is shared, or `--harvest` is given for a recipe without a harvest.
    """
    if recipe.harvest:
        from plinth_jobs.harvest.run import harvest

        if not isinstance(space.input, Path):
            raise RecipeError(
                f"recipe {recipe.name} harvests this machine",
                found=f"the shared workspace {space.uri}",
                expected="a local workspace",
                remedy="use --workspace DIR; in a shared workspace, all machines must see the same sources",
            )
        harvest(space.input, again=again, progress=progress)
    elif again:
        raise RecipeError(
            f"recipe {recipe.name} does not collect text from this machine",
            expected="`harvest: true`, as in the demo recipe",
            remedy="run without --harvest",
        )


def _execute(
    ctx: Context, recipe: Recipe, assets: list[str], compute: Compute, job: str = CANDIDATE
) -> tuple[str, ...]:
    from plinth_jobs import definitions

    return definitions.execute(ctx.workspace, recipe, assets, compute, job, ctx.progress)

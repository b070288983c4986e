"""The assets `run` and `checkpoint`. The asset `run` submits a detached training job, or finds its running job, and
follows it.

The job outlives the orchestrator. The events of its timeline are relayed to the step's log, to MLflow in batches, and
to plots at the end.
"""

from __future__ import annotations

import contextlib
import getpass
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.canaries import BUCKET as CANARIES
from plinth.corpus.protected import protected
from plinth.errors import PlinthError
from plinth.evaluation.probes import probe_sets
from plinth.model import architectures
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.text import markdown_text
from plinth.training import attempts, config, hooks, initial, job, manifests, preparation
from plinth.training.checkpoint import checkpoint, mean_record
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.preparation import notices
from plinth.training.shared_run.shipping import is_shared
from plinth.training.telemetry.timeline import LABELS, of_history, read_events, timeline
from plinth.training.validation import probe_curves
from plinth.training.validation.probe_curves import curves
from plinth_assets.framework import Inputs, Say, Stage, by_bucket, each, planted, read_by_run, shared_owner
from plinth_assets.framework.present import markdown, page_value, picture, table
from plinth_assets.initial import initial_weights
from plinth_registry import api
from plinth_registry.registration import NOTE

RELAY_INTERVAL_S = 10.0
LOGGED_EVENTS = frozenset(
    {"checkpoint", "save_failed", "refused", "upload_failed", "downloaded", "audited", "replayed", "amended"}
    | {"restart", "vanished", "lost", "rank_failed", "resumed", "reshaped", "signal", "intervention", "rolled_back"}
    | {"node_replaced", "spare_lost", "averaged", "allowance", "allowance_spent", "stopped_by_rule", "forecast_missed"}
    | {"upgraded", "upgrade_refused"}
    | {"finished", "failed", "stopped"}
)


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stages of the training run and of its final checkpoint."""
    owner = shared_owner(recipe)
    model, own = recipe.training.model, recipe.training.trainer
    kinds = ("deepspeed", "pytorch") if own is None else ("pytorch",)
    how = f"ZeRO stage {recipe.training.parallel.zero_stage}" if own is None else f"trained by `{own.command[0]}`"
    return [
        Stage(
            asset="run",
            deps=(
                *("mixture", "tokenizer", *each(recipe, "shards")),
                *(*_canaries(recipe), *_heldout(recipe), *_probes(recipe), *initial_weights(recipe)),
                *hooks.assets(recipe.training),
            ),
            make=partial(_run, recipe),
            intact=_has_last_checkpoint,
            version=config.VERSION,
            params=config.identified(recipe.training, "amendments"),
            group="training",
            description=f"Training run: {model.layers} layers of width {model.dim}, {how}.",
            owner=owner,
            kinds=kinds,
            present=partial(_present_run, recipe),
            pool="training",
        ),
        Stage(
            asset="checkpoint",
            deps=("run", "tokenizer"),
            make=partial(_checkpoint, recipe),
            version=config.VERSION,
            params=_average(recipe),
            group="training",
            description="Final committed checkpoint, or an averaged checkpoint: weights, configuration, state, and the "
            "proof that training can be resumed.",
            owner=owner,
            kinds=kinds,
            present=_present_checkpoint,
            pool="training",
        ),
    ]


def _has_last_checkpoint(ctx: Context, run: Manifest) -> bool:
    """Return False if a run lost its last checkpoint and must be resumed. A run without a folder was discarded on
    purpose and counts as intact."""
    directory = RunDirectory(ctx.workspace.runs / str(run.stats["run_id"]))
    steps = checkpoint.committed if is_shared(directory) else checkpoint.kept  # others' files are in the bucket
    return not directory.root.exists() or int(run.stats["steps"]) in steps(directory)


def _average(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's settings for averaging checkpoints, as parameters of the asset `checkpoint`. The result is
    empty if the recipe averages nothing."""
    average = recipe.training.checkpoints.average
    return {} if average is None else {"average": average.model_dump(mode="json")}


def _prepared(recipe: Recipe, ctx: Context, inputs: Inputs) -> RunConfig:
    shards = read_by_run(recipe, inputs, "shards") | initial.shards_of(ctx, inputs["mixture"])
    curated = by_bucket(recipe, inputs, "curated") if _heldout(recipe) else None
    data = (inputs["mixture"], shards, inputs["tokenizer"], curated, inputs.get(f"{CANARIES}/curated"))
    scored = {name: inputs[name] for name in _probes(recipe)}
    read = {asset: inputs[asset] for asset in hooks.assets(recipe.training)}
    return preparation.prepare(ctx, recipe.name, recipe.training, *data, scored, inputs.get(initial.ASSET), read)


def _canaries(recipe: Recipe) -> tuple[str, ...]:
    """Return the assets of the canary texts, which the run must read in full."""
    return planted(recipe, "curated", "shards")


def _heldout(recipe: Recipe) -> tuple[str, ...]:
    """Return the assets with held-out text, if the run is validated on it."""
    return each(recipe, "curated") if recipe.training.validation is not None else ()


def _probes(recipe: Recipe) -> tuple[str, ...]:
    """Return the assets with the probe items and their comparison with training text, if the run scores probes."""
    validation = recipe.training.validation
    scores = recipe.probes is not None and validation is not None and validation.probes_share
    return (probe_sets.ASSET, protected.ASSET) if scores else ()


def _run(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    from plinth.operation import admission, settlement
    from plinth.report.run_metrics import words

    prepared = _prepared(recipe, ctx, inputs)
    told = notices(ctx, prepared)
    handle = admission.submit(ctx, prepared)
    say(f"run {prepared.run_id}: job {handle.id}, log {prepared.directory.log}")
    relay = TimelineRelay(ctx, recipe, prepared.run_id, say)
    api.describe_run(ctx, recipe, prepared.run_id, run_params(prepared), _run_tags(ctx, recipe, prepared))
    with ctx.progress.meter("run", prepared.total_steps) as meter:
        seen = 0
        job_name = f"process {handle.id}" if handle.launcher == "local" else f"{handle.launcher} job {handle.id}"
        meter.tell(f"training runs as {job_name}; the first step follows when data and model are loaded")
        for line in told:
            say(line)
            meter.tell(line)

        def on_event(event: dict[str, Any]) -> None:
            nonlocal seen
            relay.add(event)
            if event["event"] == "step" and event["step"] > seen:
                meter.advance(event["step"] - seen, f"loss {event['loss']:.3f}  {event['tokens_per_s']:,.0f} tokens/s")
                seen = event["step"]
                if seen == prepared.total_steps:
                    meter.tell("last step taken; saving it and auditing the resume")
            elif event["event"] in LOGGED_EVENTS:
                line = f"{event['event']}: {words(event)}"
                say(line)
                if event["event"] != "checkpoint":
                    meter.tell(line)

        try:
            job.follow(ctx, prepared, on_event)
        except PlinthError:
            with contextlib.suppress(PlinthError):  # an error of the page must not hide that of the run
                meter.tell(f"page: {_page(ctx, prepared)}")
            raise
        finally:
            with contextlib.suppress(PlinthError):  # `plinth ops cost` settles what is not settled here
                settlement.settle(ctx)
    relay.finish([_page(ctx, prepared), prepared.directory.events])
    figures = of_history(timeline(prepared.directory.events)).known()
    api.describe_run(ctx, recipe, prepared.run_id, {}, _run_tags(ctx, recipe, prepared), figures)
    return manifests.run_manifest(ctx, prepared)


def run_params(prepared: RunConfig) -> dict[str, Any]:
    """Return the parameters by which users sort and compare training runs in MLflow."""
    model, optimizer = prepared.model, prepared.optimizer
    own = {"trainer": " ".join(prepared.trainer.command)} if prepared.trainer else {
        "lr": optimizer.lr,
        "lr_schedule": optimizer.schedule,
        "precision": prepared.precision,
        "seed": prepared.seed,
    }  # fmt: skip
    return {
        "layers": model.layers,
        "dim": model.dim,
        "heads": model.heads,
        "parameters": architectures.parameters(model, prepared.vocab_size).total,
        "vocab_size": prepared.vocab_size,
        "global_batch_sequences": prepared.global_batch_sequences,
        "sequence_tokens": prepared.sequence_tokens,
        "total_steps": prepared.total_steps,
        "total_tokens": prepared.tokens_through(prepared.total_steps),
        "ranks": prepared.ranks,
        **own,
    }


def _run_tags(ctx: Context, recipe: Recipe, prepared: RunConfig) -> dict[str, str]:
    """Return the tags that MLflow shows on a run: the user, the source with its commit, and a description that defines
    the metrics."""
    hosts = [host for one in attempts.known(prepared.directory) for host in
             attempts.stated(one, prepared.run_id).hosts if host.commit]  # fmt: skip
    figures = "\n".join(f"- `{name}`: {label}" for name, label in LABELS.items())
    tags = {
        "mlflow.user": ctx.requested_by or getpass.getuser(),
        "mlflow.source.type": "JOB",
        "mlflow.source.name": f"plinth run, recipe {recipe.name}",
        NOTE: f"Training run `{prepared.run_id}`. {markdown_text(recipe.description)}\n\n"
        f"Figures of the whole run:\n\n{figures}",
    }
    return tags | ({"mlflow.source.git.commit": hosts[-1].commit} if hosts else {})


class TimelineRelay:
    """Thread that sends timeline events to MLflow in batches. A slow or absent server delays the metrics, but neither
    the training nor its log."""

    def __init__(
        self, ctx: Context, recipe: Recipe, run_id: str, say: Say, interval_s: float = RELAY_INTERVAL_S
    ) -> None:
        self.ctx, self.recipe, self.run_id, self.say = ctx, recipe, run_id, say
        self.interval_s = interval_s
        self.waiting: list[dict[str, Any]] = []
        self.sent = time.monotonic()
        self._under_way: tuple[threading.Thread, list[Exception], int] | None = None

    def add(self, event: dict[str, Any]) -> None:
        self.waiting.append(event)
        if self._under_way is not None and not self._under_way[0].is_alive():
            self.drain()
        if self._under_way is None and time.monotonic() - self.sent > self.interval_s:
            self._send()

    def finish(self, files: list[Path]) -> None:
        """Send the remaining events and the given files of the run to MLflow.

        Raises:
            RegistryError: the server is unreachable; the next materialization of the asset sends them.
        """
        self.drain()
        self._relay(self.waiting)
        api.keep_files(self.ctx, self.recipe, self.run_id, files)

    def _send(self) -> None:
        self.sent, events, errors = time.monotonic(), list(self.waiting), list[Exception]()

        def send() -> None:
            try:
                self._relay(events)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=send, name="relay", daemon=True)
        self._under_way = thread, errors, len(events)
        thread.start()

    def drain(self) -> None:
        """Wait until the current batch of events is sent. Expected errors are only logged, because the next batch sends
        the events again."""
        if self._under_way is None:
            return
        (thread, errors, count), self._under_way = self._under_way, None
        thread.join()
        if not errors:
            del self.waiting[:count]
        elif isinstance(errors[0], PlinthError):
            self.say(f"MLflow did not accept {count} events, which will be sent again: {errors[0].what}")
        else:
            raise errors[0]

    def _relay(self, events: list[dict[str, Any]]) -> None:
        api.relay_timeline(self.ctx, self.recipe, self.run_id, events)


def _checkpoint(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    run = inputs["run"]
    prepared = config.load(ctx.workspace.runs / run.stats["run_id"] / "config.json")
    average = recipe.training.checkpoints.average
    if average is None:
        return manifests.checkpoint_manifest(ctx, prepared, run)
    from plinth.training.averaging import asked  # imports torch

    made = asked(ctx, prepared, average)
    say(f"the checkpoint is a {mean_record.in_words(made)}")
    return made


def _present_checkpoint(ctx: Context, made: Manifest) -> dict[str, Any]:
    kind = mean_record.in_words(made) if mean_record.is_mean(made) else f"step {made.stats['step']}"
    return {"checkpoint": kind, "run": made.stats["run_id"]}


def _present_run(recipe: Recipe, ctx: Context, made: Manifest) -> dict[str, Any]:
    import dagster as dg

    from plinth.report import figures as report_figures
    from plinth.report.run_metrics import words

    prepared = config.load(ctx.workspace.runs / made.stats["run_id"] / "config.json")
    events = timeline(prepared.directory.events)
    figures = of_history(events)
    facts = {LABELS[name]: value for name, value in figures.rounded().items()} | manifests.facts(ctx, prepared)
    logged = [event for kind in sorted(LOGGED_EVENTS) for event in events.of(kind)]
    logged.sort(key=lambda event: event["seq"])
    rows = [[event["event"], words(event)] for event in logged]
    return _present_probes(prepared) | {
        "run": made.stats["run_id"],
        **figures.known(),
        "loss": picture(report_figures.loss, list(events.steps.values()), logged, figures.final_loss),
        "facts": markdown(table(["fact", "value"], [list(item) for item in facts.items()])),
        "timeline": markdown(table(["event", "what"], rows)),
        **_present_cost(ctx, prepared),
        "page": page_value(ctx, _page(ctx, prepared)),
        "log": dg.MetadataValue.path(prepared.directory.log),
        "events": dg.MetadataValue.path(prepared.directory.events),
    }


def _page(ctx: Context, prepared: RunConfig) -> Path:
    """Write the run's page with the price from the spending ledger, and return the path of its file."""
    from plinth.operation import spending
    from plinth.report import run_page

    price = spending.load(ctx.workspace).price(prepared.stopping.price_per_rank_hour)
    return run_page.write(ctx, prepared, price_per_rank_hour=price or None)


def _present_cost(ctx: Context, prepared: RunConfig) -> dict[str, Any]:
    """Return the cost and energy of the run's jobs. The result is empty if there is no spending ledger."""
    from plinth.operation import settlement
    from plinth.operation.settlement import Energy

    try:
        row = settlement.run_spend(ctx, prepared.run_id)
    except PlinthError:
        return {}
    if row is None or not row.rank_hours:
        return {}
    energy = Energy(row.kwh, row.measured)
    spent = [[cause, f"{money:,.2f}"] for cause, money in row.causes.items()]
    return {
        "cost": row.spent,
        "rank_hours": row.rank_hours,
        "cost_by_cause": markdown(table(["cause", "cost"], spent)),
        "energy": f"{row.kwh:,.3g} kWh, {energy.source}" if row.kwh is not None else energy.source,
        **({"co2_kg": row.co2_kg} if row.co2_kg is not None else {}),
    }


def _present_probes(prepared: RunConfig) -> dict[str, Any]:
    """Return a table with the last evaluation of each probe, and whether the probe may stop the run or decide a gate.
    The result is empty if there are no probes."""
    from plinth.report import run_sections as sections
    from plinth.report.run_metrics import run_metrics

    measured = run_metrics(read_events(prepared.directory.events))
    rows = sections.rows(measured, probe_curves.over_seeds(prepared, curves(measured.events)))
    header = ["probe", "items", "bits per byte", "noise", "control", "signal", "signal / noise", ""]
    shown = ("name", "count", "score", "noise", "control", "signal", "ratio", "words")
    return {"probes": markdown(table(header, [[row[key] for key in shown] for row in rows]))} if rows else {}

"""Scores of a model on the test text of an experiment, and the manifest of a finished or failed run.

Test text is scored one document at a time, like the items of protected sets. Every arm is scored on the same documents.

A run's manifest also has its critical batch, from gradient noise (McCandlish et al., arXiv:1812.06162, appendix A.1):

    B_simple = tr(S) / |G|^2,  S the covariance of one token's gradient, G the true gradient

The squared gradient norms of a micro batch with b tokens and of a step with B tokens differ by noise alone:

    |G|^2 ~ (B |G_B|^2 - b |G_b|^2) / (B - b)        tr(S) ~ (|G_b|^2 - |G_B|^2) / (1/b - 1/B)

Both estimates are noisy and are averaged over steps before they are divided. Both norms are in the timeline. The micro
batch norm is recorded by layer for every tenth step, before accumulation. The step norm is recorded for every step,
before clipping. Tokens in a row depend on each other, so the noise scale is valid for rows of the run's own length.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute import context
from plinth.compute.context import Context
from plinth.corpus.protected import comparison
from plinth.evaluation.comparison import pairs
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.slices.tables import on_grid
from plinth.evaluation.statistics import Estimate, ratio
from plinth.records import Frozen, Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.training import config, manifests
from plinth.training.checkpoint.checkpoint import committed
from plinth.training.config import RunConfig
from plinth.training.telemetry.timeline import timeline
from plinth_lab.experiments.arms import Arm
from plinth_lab.experiments.effects import FINISHED, ArmScores, Status

#: Minimum number of measured steps to report a noise scale.
FEWEST = 5


class NoiseScale(Frozen):
    """Gradient noise scale B_simple of a run in tokens, over the second half of its steps, and its batch size."""

    tokens: Estimate
    batch_tokens: int


def of_steps(steps: Iterable[tuple[Mapping[str, Any], int]], micro_tokens: int) -> NoiseScale | None:
    """Return the gradient noise scale of a run, from its step events.

    Args:
        steps: step events of the timeline, each with the number of tokens in its batch.
        micro_tokens: tokens in one forward pass on one rank.

    Returns:
        None if too few steps were measured, a step has only one micro batch, or noise hides the gradient.
    """
    noise, signal, batch = [], [], 0
    for event, tokens in steps:
        norms = event.get("layers", {}).get("grad_norm", ())
        if not norms or tokens <= micro_tokens or any(one is None or not math.isfinite(one) for one in norms):
            continue
        found = pair(sum(one**2 for one in norms), float(event["grad_norm"]) ** 2, micro_tokens, tokens)
        noise.append(found[0])
        signal.append(found[1])
        batch = tokens
    if len(noise) < FEWEST or sum(signal) <= 0:
        return None
    return NoiseScale(tokens=ratio(noise, signal), batch_tokens=batch)


def pair(small: float, big: float, small_tokens: int, big_tokens: int) -> tuple[float, float]:
    """Return unbiased estimates of tr(S) and |G|^2 from the squared gradient norms of two batches."""
    noise = (small - big) / (1 / small_tokens - 1 / big_tokens)
    signal = (big_tokens * big - small_tokens * small) / (big_tokens - small_tokens)
    return noise, signal


VERSION = "4"
SCORES_VERSION = "3"
SCORES = "scores.parquet"
#: Statuses of items that are certainly not in training text: no copy was found, or all copies were removed.
KNOWN = (comparison.CLEAN, comparison.CONTAMINATED)
#: The same for a run with initial weights, which may have trained on text removed here.
UNSEEN = (comparison.CLEAN,)
#: Columns of the scores: one row per document of the test text, in the order of its sets and their items.
COLUMNS = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in ("document", "slice", "item")),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
    ]
)


def score(ctx: Context, checkpoint: Manifest, sets: Mapping[str, Manifest]) -> Part:
    """Return the loss in bits of every test document under a checkpoint, as a data file with `COLUMNS`.

    A cached result is reused.

    Raises:
        CheckpointError, TrainingError: the model could not be loaded or evaluated.
    """
    step = Step(name="experiment/scores", version=SCORES_VERSION)

    def scored() -> list[Part]:
        items = _items(ctx, sets)
        with ModelEngine.of(ctx, checkpoint, label="test text") as engine:
            found = engine.documents(items.column("text").to_pylist())
        data = [text.encode() for text in items.column("text").to_pylist()]
        table = items.drop_columns(["text"]).append_column("bytes", pa.array([len(one) for one in data], pa.int64()))
        table = table.append_column("bits", pa.array(on_grid(found.bits)))
        return [write_table(ctx.store, SCORES, table.cast(COLUMNS))]

    return context.cached(ctx, step, (checkpoint, *(sets[name] for name in sorted(sets))), scored)[0]


def texts(ctx: Context, sets: Mapping[str, Manifest]) -> list[str]:
    """Return the text of all test documents."""
    found: list[str] = _items(ctx, sets).column("text").to_pylist()
    return found


def _items(ctx: Context, sets: Mapping[str, Manifest]) -> pa.Table:
    tables = []
    for name in sorted(sets):
        (part,) = sets[name].parts
        own = read_table(ctx.store, part)
        ids = [_id(name, at, item) for at, item in enumerate(own.column("item").to_pylist())]
        columns = {"document": ids, "slice": [name] * len(ids), "item": own.column("item"), "text": own.column("text")}
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def measured(ctx: Context, arm: Arm, points: int, made: Mapping[str, Manifest], test: Sequence[str]) -> Manifest:
    """Return the manifest of a finished run: the scores of its last checkpoint, and its curve.

    Args:
        points: maximum number of checkpoints to score, evenly spaced over the kept checkpoints. For a run with
            horizons, all checkpoints kept at a horizon are scored.
        made: assets of the run: `run`, `checkpoint`, the sets of the test text, the comparison of training text with
            these sets, and other measurements of the checkpoint.
        test: names of the test sets.

    Raises:
        CheckpointError, TrainingError: the checkpoint cannot be loaded or scored.
    """
    sets = {name: made[f"protected/{name}"] for name in test}
    last = score(ctx, made["checkpoint"], sets)
    end, curve = made["checkpoint"].stats, []
    noise: NoiseScale | None = None
    if prepared := configuration(ctx, made["run"]):
        kept_steps = [step for step in committed(prepared.directory) if step < end["step"]]
        if len(arm.horizons) > 1:  # between two horizons the rate is high, and a score is not comparable
            chosen = [one for one in kept_steps if prepared.tokens_through(one) in arm.horizons]
        else:
            chosen = _spread(kept_steps, points - 1)
        for step in chosen:
            part = score(ctx, manifests.committed_manifest(ctx, prepared, step), sets)
            curve.append((step, prepared.tokens_through(step), _bits_per_byte(ctx, part)))
        noise = _noise(prepared)
    curve.append((end["step"], end["tokens"], _bits_per_byte(ctx, last)))
    inputs = {name: made[name] for name in ("run", "checkpoint", "protected")} | _named(sets)
    inputs |= {name: one for name, one in made.items() if pairs.reader(name)}
    unsure = _unsure(ctx, made["protected"], test, KNOWN if arm.recipe.training.initial is None else UNSEEN)
    measured = {"curve": curve, "unsure": unsure, "noise": noise.model_dump(mode="json") if noise else None}
    return kept(arm, FINISHED, "", inputs, [last], tokens=end["tokens"], **measured)


def _noise(config: RunConfig) -> NoiseScale | None:
    """Return the gradient noise scale over the second half of the run. Early steps are left out, because the noise
    scale grows while the loss falls."""
    steps = timeline(config.directory.events).steps
    later = [(event, config.step_tokens(step)) for step, event in steps.items() if 2 * step > max(steps)]
    return of_steps(later, config.micro_batch_sequences * config.sequence_tokens)


def configuration(ctx: Context, run: Manifest) -> RunConfig | None:
    """Return the configuration of a run, or None if the run's folder is not on this machine."""
    path = ctx.workspace.runs / run.stats["run_id"] / "config.json"
    return config.load(path) if path.exists() else None


def _unsure(ctx: Context, protected: Manifest, test: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return IDs of test documents that may be in the run's training text.

    The search cannot exclude them: the text is too short or too common to search for, or a near match was found.
    """
    (part,) = protected.named(comparison.FILE)
    rows = read_table(ctx.store, part, ["set", "item", "status"]).to_pylist()
    found = []
    for name in sorted(test):
        own = [row for row in rows if row["set"] == name]
        found += [_id(name, at, row["item"]) for at, row in enumerate(own) if row["status"] not in known]
    return found


def _id(name: str, at: int, item: str) -> str:
    """Return a test document's ID. The ID includes the document's position, because items may share a name."""
    return hashlib.sha256(f"{name}\0{at}\0{item}".encode()).hexdigest()[:32]


def kept(
    arm: Arm, status: Status, reason: str, inputs: Mapping[str, Manifest], parts: list[Part], **stats: Any
) -> Manifest:
    """Return the manifest of a finished or failed run of an experiment."""
    step = Step(name="experiment/arm", version=VERSION, params={"arm": arm.arm, "size": arm.size, "seed": arm.seed})
    spent = arm.flops * stats.get("tokens", 0) / arm.tokens
    return context.manifest(
        arm.asset, step, inputs, parts, {"status": status, "reason": reason, "flops": spent, **stats}
    )


def common_scores(ctx: Context, runs: Sequence[Manifest]) -> list[ArmScores]:
    """Return the scores of all runs on the same documents, which are those that no run can have trained on.

    The filters of a run decide which documents its training text may contain. If a document may be in the training text
    of one run, it is left out for all runs.
    """
    unsure = {document for one in runs for document in one.stats.get("unsure", ())}
    return [scores_of(ctx, one, unsure) for one in runs]


def scores_of(ctx: Context, made: Manifest, without: Collection[str] = ()) -> ArmScores:
    """Return the scores of a run from its manifest. `seconds` is 0, because manifests do not record times.

    Args:
        without: IDs of documents to leave out.
    """
    stats, run = made.stats, made.params
    columns: dict[str, Any] = {}
    if made.parts:
        table = read_table(ctx.store, made.parts[0])
        table = table.filter(pa.array([one not in without for one in table.column("document").to_pylist()]))
        columns = {name: np.array(table.column(name).to_pylist()) for name in ("bytes", "bits")}
        columns = {name: column.astype(np.float64) for name, column in columns.items()}
        columns["documents"], columns["slices"] = (
            np.array(table.column(name).to_pylist()) for name in ("document", "slice")
        )
    return ArmScores(
        arm=run["arm"],
        size=run["size"],
        seed=run["seed"],
        status=stats["status"],
        reason=stats["reason"],
        tokens=stats.get("tokens", 0),
        flops=stats["flops"],
        curve=tuple((step, tokens, bits) for step, tokens, bits in stats.get("curve", ())),
        **columns,
    )


def _named(sets: Mapping[str, Manifest]) -> dict[str, Manifest]:
    return {made.asset: made for made in sets.values()}


def _spread(steps: list[int], count: int) -> list[int]:
    """Return at most `count` of the steps, evenly spaced, including the earliest step."""
    if count <= 0 or not steps:
        return []
    return [steps[at] for at in sorted({round(at) for at in np.linspace(0, len(steps) - 1, min(count, len(steps)))})]


def _bits_per_byte(ctx: Context, part: Part) -> float:
    table = read_table(ctx.store, part, ["bytes", "bits"])
    return float(np.sum(table.column("bits").to_numpy()) / np.sum(table.column("bytes").to_numpy()))

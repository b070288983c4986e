"""Teacher model on a rank (whole, in the run's precision, without gradients), and the job that stores the teacher's
logits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plinth.compute.context import Context, Item, manifest, renamed, run_items
from plinth.compute.engine import LocalEngine, torch_threads
from plinth.errors import TrainingError
from plinth.model.decoder import Decoder
from plinth.model.folder import described_model, load_weights, read_config
from plinth.model.loss import Teacher, TopTokens, chunk_rows, logits_of, top_tokens
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen, Manifest, Part, Step
from plinth.storage.shared_store import open_store
from plinth.storage.state import Refs, checkout
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from plinth.tokens.order.order import Order
from plinth.tokens.reading.loader import Loader
from plinth.training.config import RunConfig
from plinth.training.data import open_loader
from plinth.training.engine.batches import ModelInput, expand_batch, signed, to_device
from plinth.training.initial import TEACHER, require_same_vocabulary, shards_of
from plinth.training.parameters.run import Training
from plinth.training.rank_hook import RankHook
from plinth_assets.framework import Inputs, Say, read_by_run
from plinth_extras.distillation import VOCABULARY_REMEDY, TeacherState
from plinth_extras.distillation.stored_logits import ASSET, VERSION, LogitRows, identified, part_positions, record_of

if TYPE_CHECKING:
    from plinth.training.data import StepBatch
    from plinth.training.engine.engine import TrainingEngine
    from plinth.training.engine.ranks import Rank


class LoadedTeacher(RankHook):
    """Teacher of a run, on the same rank as the student. The teacher is not loaded if its logits are stored."""

    def __init__(self, config: RunConfig, rank: Rank, state: TeacherState) -> None:
        self.config, self.device, self.params = config, rank.device, state
        self.model: Decoder | None = None

    def attach(self, engine: TrainingEngine) -> None:
        """Load the teacher unless its logits are stored.

        Raises the same errors as `load_teacher`.
        """
        if self.model is None and not self.params.logits:
            self.model = load_teacher(Workspace(self.config.workspace), self.params.manifest, self.device, engine.dtype)
            self.model.attend_by(self.config.parallel.attention)

    def inputs(self, batch: StepBatch, micro: int, inputs: ModelInput, whole: bool) -> dict[str, Any]:
        if self.model is None:
            return {"teacher": stored_teacher(batch.beside["distillation"][micro], self.params, self.device)}
        return {"teacher": live_teacher(self.model, inputs, whole, self.params)}


def live_teacher(model: Decoder, batch: ModelInput, whole: bool, state: TeacherState) -> Teacher:
    """Return the teacher's output for a micro batch, without a host synchronization."""
    with torch.no_grad():
        states = model.states(batch.inputs, batch.segments, whole=whole).flatten(0, 1)
    return Teacher(states, model.output_matrix, model.config.logit_scale, state.share, state.temperature)


def load_teacher(workspace: Workspace, manifest: str, device: torch.device, dtype: torch.dtype) -> Decoder:
    """Load a teacher by the digest of its manifest.

    Raises:
        CheckpointError, IntegrityError, MissingError: the teacher's files are missing, were changed or are not a model.
    """
    found = Refs(workspace).load(manifest)
    digests = {part.name: part.blob.sha256 for part in found.parts}
    with tempfile.TemporaryDirectory(prefix="teacher-", dir=_made(workspace.tmp)) as folder:
        at = Path(folder) / "model"
        checkout(open_store(workspace), found.parts, at)
        model = described_model(read_config(at, digests), at)
        load_weights(model, at, device, dtype, digests)
    return model.eval().requires_grad_(False)


def stored_teacher(said: LogitRows, state: TeacherState, device: torch.device) -> TopTokens:
    """Copy the stored logits of a micro batch to a device, without a host synchronization.

    FP16 values are normalized again. FP32 values are not changed, so that self-distillation stays exact.
    """
    ids, log_p = (to_device(column.reshape(-1, column.shape[-1]), device) for column in (signed(said.ids), said.log_p))
    ids = ids.long() & 0xFFFF if said.ids.itemsize == 2 else ids.long()
    if log_p.dtype == torch.float16:
        log_p = log_p.float().log_softmax(-1)
    return TopTokens(ids, log_p, state.share, state.temperature)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# `teacher_logits`: the teacher's logits for every sequence of a run, stored once.
#
#     mixture, shards, teacher -> positions of the data order, in parts of one size -> `part-*` (`stored_logits`)
#
# A part is a separate item: finished parts stay if the rest fails, parts are shared among machines (`--part i/n`), and
# the bytes do not depend on the number of workers: on a CPU one thread computes a part, in batches of a fixed size.
#
# A sequence in several epochs is stored once per epoch, so that the positions of a step are one span.

#: Tokens of a batch. Bump `VERSION` when this changes, since sums round differently.
BATCH_TOKENS = 8192


class LogitsTask(Frozen):
    """Task to compute the logits of one part file. `workspace` is a path and is excluded from the content hash."""

    workspace: str
    mixture: str
    shards: tuple[str, ...]
    teacher: str
    vocab_size: int
    params: Mapping[str, int | float | str | bool]
    first: int
    stop: int


def run(
    ctx: Context,
    training: Training,
    mixture: Manifest,
    shards: Mapping[str, Manifest],
    tokenizer: Manifest,
    teacher: Manifest,
) -> Manifest:
    """Store the teacher's logits for every position of the mixture's data order.

    Stats: `positions`, `sequence_tokens`, `vocab_size`, `bytes_per_token`.

    Raises:
        RecipeError: the teacher's tokenizer is not the run's tokenizer.
        TrainingError: the vocabulary has fewer tokens than `top_k`.
        CheckpointError, IntegrityError, MissingError: the teacher or the shards are absent or have changed.
    """
    params = identified(training)
    require_same_vocabulary(ctx.store, teacher, tokenizer, "training.distillation.teacher", VOCABULARY_REMEDY)
    vocab_size, top_k = int(tokenizer.stats["vocab_size"]), int(params["top_k"])
    if top_k > vocab_size:
        raise TrainingError(
            "training.distillation.top_k exceeds the size of the vocabulary",
            found=str(top_k),
            expected=f"at most {vocab_size}, the size of the run's vocabulary",
        )
    for one in (mixture, teacher, *shards.values()):
        ctx.refs.save(one)
    order = Order(mixture)
    record = record_of(top_k, vocab_size, str(params["stored"]))
    size = part_positions(record, order.sequence_tokens)
    step = Step(name=ASSET, version=VERSION, params=params)
    items = []
    for first in range(0, order.sequences, size):
        stop = min(first + size, order.sequences)
        task = LogitsTask(
            workspace=str(ctx.workspace.root),
            mixture=mixture.digest,
            shards=tuple(one.digest for one in shards.values()),
            teacher=teacher.digest,
            vocab_size=vocab_size,
            params=params,
            first=first,
            stop=stop,
        )
        items.append(Item((mixture.digest, teacher.digest, f"{first}-{stop}"), task, stop - first))
    parts = run_items(_placed(ctx), step, make_part, items, label=ASSET)
    stats = {
        "positions": order.sequences,
        "sequence_tokens": order.sequence_tokens,
        "vocab_size": vocab_size,
        "bytes_per_token": record.itemsize,
    }
    inputs = {"mixture": mixture, "tokenizer": tokenizer, "teacher": teacher}
    return manifest(ASSET, step, inputs, renamed((own for (own,) in parts), "part"), stats)


def make_part(store: Store, task: LogitsTask) -> tuple[Part, ...]:
    """Compute the logit records of all positions in one part, and write them to one file."""
    top_k, precision = int(task.params["top_k"]), str(task.params["stored"])
    record = record_of(top_k, task.vocab_size, precision)
    loader = _loader(task.workspace, task.mixture, task.shards)
    model = _teacher(task.workspace, task.teacher, str(task.params["precision"]))
    sequence_tokens = loader.order.sequence_tokens
    count = max(1, BATCH_TOKENS // sequence_tokens)
    with torch_threads(), store.staging() as path:
        with path.open("wb") as out:
            for first in range(task.first, task.stop, count):
                said = _said(model, loader, first, min(first + count, task.stop), task)
                rows = np.empty(said.ids.shape[:2], record)
                rows["ids"], rows["log_p"] = said
                out.write(rows.tobytes())
        blob = store.put_file(path)
    return (Part(name="part.bin", blob=blob, rows=task.stop - task.first),)


@torch.inference_mode()
def _said(model: Decoder, loader: Loader, first: int, stop: int, task: LogitsTask) -> LogitRows:
    """Return the teacher's `top_k` logits for the positions `first` to `stop`, in FP32."""
    device, top_k = model.embed_tokens.device, int(task.params["top_k"])
    batch = loader.at(first, stop)
    length = loader.order.sequence_tokens
    inputs = expand_batch(batch, length, device, segments=bool(task.params["document_mask"]))
    states = model.states(inputs.inputs, inputs.segments, whole=batch.unbroken(length)).flatten(0, 1)
    rows = chunk_rows(model.vocab_size)
    chunks = [
        top_tokens(
            logits_of(states[at : at + rows], model.output_matrix, model.config.logit_scale),
            top_k,
            float(task.params["temperature"]),
        )
        for at in range(0, len(states), rows)
    ]
    ids, log_p = (torch.cat(column).cpu().numpy() for column in zip(*chunks, strict=True))
    return LogitRows(ids.reshape(len(batch), length, -1), log_p.reshape(len(batch), length, -1))


def _placed(ctx: Context) -> Context:
    """Return a context with a single worker if there is a GPU, because every worker loads the teacher."""
    return replace(ctx, engine=LocalEngine(1)) if torch.cuda.is_available() else ctx


@lru_cache(maxsize=1)
def _loader(workspace: str, mixture: str, shards: tuple[str, ...]) -> Loader:
    """Return the data loader for the teacher's input. A worker process reuses the loader for all its parts."""
    return open_loader(Workspace(Path(workspace)), mixture, shards)


@lru_cache(maxsize=1)
def _teacher(workspace: str, digest: str, precision: str) -> Decoder:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return load_teacher(Workspace(Path(workspace)), digest, device, dtype)


def make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    """Make the asset `teacher_logits` of a recipe."""
    shards = read_by_run(recipe, inputs, "shards") | shards_of(ctx, inputs["mixture"])
    return run(ctx, recipe.training, inputs["mixture"], shards, inputs["tokenizer"], inputs[TEACHER])

"""The teacher on a rank: whole, in the run's precision, without gradients; or what it said before the run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plinth.model.decoder import Decoder
from plinth.model.folder import described_model, load_weights, read_config
from plinth.model.loss import Teacher, TopTokens
from plinth.storage.shared_store import open_store
from plinth.storage.state import Refs, checkout
from plinth.storage.workspace import Workspace
from plinth.training.config import RunConfig
from plinth.training.engine.batch_expansion import ModelInput, signed, to_device
from plinth.training.rank_hook import RankHook
from plinth_extras.distillation.parameters import TeacherState
from plinth_extras.distillation.stored_logits import LogitRows

if TYPE_CHECKING:
    from plinth.training.data import StepBatch
    from plinth.training.engine.engine import TrainingEngine
    from plinth.training.engine.ranks import Rank


class LoadedTeacher(RankHook):
    """The teacher of a run, next to the model that learns; not loaded where its logits are stored."""

    def __init__(self, config: RunConfig, rank: Rank, state: TeacherState) -> None:
        self.config, self.device, self.params = config, rank.device, state
        self.model: Decoder | None = None

    def attach(self, engine: TrainingEngine) -> None:
        """Load the teacher.

        Raises: as `load_teacher`.
        """
        if self.model is None and not self.params.logits:
            self.model = load_teacher(Workspace(self.config.workspace), self.params.manifest, self.device, engine.dtype)
            self.model.attend_by(self.config.parallel.attention)

    def inputs(self, batch: StepBatch, micro: int, inputs: ModelInput, whole: bool) -> dict[str, Any]:
        if self.model is None:
            return {"teacher": stored_teacher(batch.beside["distillation"][micro], self.params, self.device)}
        return {"teacher": live_teacher(self.model, inputs, whole, self.params)}


def live_teacher(model: Decoder, batch: ModelInput, whole: bool, state: TeacherState) -> Teacher:
    """The output of a teacher for a micro batch; nothing is read on the host."""
    with torch.no_grad():
        states = model.states(batch.inputs, batch.segments, whole=whole).flatten(0, 1)
    return Teacher(states, model.output_matrix, model.config.logit_scale, state.share, state.temperature)


def load_teacher(workspace: Workspace, manifest: str, device: torch.device, dtype: torch.dtype) -> Decoder:
    """A model of the workspace, by the digest of its manifest, ready to teach.

    Raises:
        CheckpointError, IntegrityError, MissingError: its files are absent, changed or no model.
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
    """What a teacher said of a micro batch, on a device; nothing waits for it.

    What was rounded to FP16 adds up to 1 again; FP32 is taken as it is, so that a teacher of itself stays exact.
    """
    ids, log_p = (to_device(column.reshape(-1, column.shape[-1]), device) for column in (signed(said.ids), said.log_p))
    ids = ids.long() & 0xFFFF if said.ids.itemsize == 2 else ids.long()
    if log_p.dtype == torch.float16:
        log_p = log_p.float().log_softmax(-1)
    return TopTokens(ids, log_p, state.share, state.temperature)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder

"""The teacher on a rank: whole, in the run's precision, without gradients."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from plinth.model.distillation import Teacher
from plinth.model.folder import described_model, load_weights, read_config
from plinth.storage.checkout import checkout
from plinth.storage.refs import Refs
from plinth.storage.shared_store import open_store
from plinth.storage.workspace import Workspace
from plinth.training.config import RunConfig
from plinth.training.engine.batch_expansion import ModelInput


class LoadedTeacher:
    """The teacher of a run.

    Raises:
        CheckpointError, IntegrityError, MissingError: its files are absent, changed or no model.
    """

    def __init__(self, config: RunConfig, device: torch.device, dtype: torch.dtype) -> None:
        assert config.distillation is not None
        self._share, self._temperature = config.distillation.share, config.distillation.temperature
        workspace = Workspace(config.workspace)
        found = Refs(workspace).load(config.distillation.manifest)
        digests = {part.name: part.blob.sha256 for part in found.parts}
        with tempfile.TemporaryDirectory(prefix="teacher-", dir=_made(workspace.tmp)) as folder:
            at = Path(folder) / "model"
            checkout(open_store(workspace), found.parts, at)
            self.model = described_model(read_config(at, digests), at)
            load_weights(self.model, at, device, dtype, digests)
        self.model.attend_by(config.parallel.attention)
        self.model.eval().requires_grad_(False)

    def of(self, batch: ModelInput, whole: bool) -> Teacher:
        """What the teacher says of a micro batch; nothing is read on the host."""
        with torch.no_grad():
            states = self.model.states(batch.inputs, batch.segments, whole=whole).flatten(0, 1)
        scale = self.model.config.logit_scale
        return Teacher(states, self.model.output_matrix, scale, self._share, self._temperature)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder

"""What a run tells about itself besides loss and speed. Bears no identity: looking changes nothing."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen


class Telemetry(Frozen):
    """Statistics by layer: see plinth/training/engine/layer_statistics.py for what each number means."""

    layers_every: int = Field(
        10, ge=0, description="Steps between measurements of gradient norm and activations by layer; 0: never."
    )

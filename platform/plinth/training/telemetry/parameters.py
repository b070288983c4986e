"""Statistics of a run besides loss and speed. Not part of its identity: measuring changes nothing."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen


class Telemetry(Frozen):
    """Statistics by layer: see plinth/training/engine/layer_statistics.py for the meaning of each number."""

    layers_every: int = Field(
        10, ge=0, description="Steps between measurements of gradient norm and activations by layer; 0: never."
    )

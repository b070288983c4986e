"""`serving`: what it costs to serve the checkpoint, at best."""

from __future__ import annotations

from plinth.evaluation.measurement import Measurement
from plinth.extensions import late

MEASUREMENT = Measurement(
    name="serving",
    description="What it costs to serve the checkpoint, at best.",
    asset="serving",
    stages=late("plinth_assets.serving:stages"),
    scores=late("plinth_assets.measurements.serving_items:scores"),
    section=late("plinth_assets.measurements.serving_items:section"),
    position=11,
)

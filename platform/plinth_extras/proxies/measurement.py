"""`proxies`: what the checkpoint writes where a product wants a form."""

from __future__ import annotations

from plinth.evaluation.measurement import Measurement
from plinth.extensions import late

MEASUREMENT = Measurement(
    name="proxies",
    description="What the checkpoint writes where a product wants a form.",
    asset="proxies",
    stages=late("plinth_extras.proxies.job:stages"),
    key="evaluation.proxies",
    pairs=late("plinth_extras.proxies.job:pairs"),
    headings={"proxies": "Product proxies"},
    scores=late("plinth_extras.proxies.job:scores"),
    section=late("plinth_extras.proxies.job:section"),
    position=5,
)

"""`comparison`: the checkpoint beside another model that was measured alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plinth.evaluation.measurement import Measurement, Stats, single
from plinth.extensions import late
from plinth_registry.gates.facts import ComparisonFacts, PairedLine


def read(stats: Stats) -> ComparisonFacts:
    """The lines of the comparison in which the checkpoint is a."""
    return ComparisonFacts(
        candidate=stats["models"]["a"]["checkpoint"],
        champion=stats["models"]["b"]["checkpoint"],
        lines=tuple(_line(one) for one in stats["lines"]),
    )


def _line(stats: Mapping[str, Any]) -> PairedLine:
    gap = stats["difference"]
    named = {name: stats[name] for name in ("kind", "measure", "slice", "fewer_is_better")}
    return PairedLine(**named, **{name: gap[name] for name in ("clusters", "value", "low", "high")})


MEASUREMENT = Measurement(
    name="comparison",
    description="The checkpoint beside another model that was measured alike.",
    asset="comparison",
    stages=late("plinth_assets.comparison:stages"),
    key="evaluation.against",
    facts=ComparisonFacts,
    read=single(read),
    recount=late("plinth_assets.measurements.comparison_items:recount"),
    position=12,
)

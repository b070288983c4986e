"""`training.federated` as a training hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plinth.extensions import late
from plinth.training.hooks import TrainingHook
from plinth_extras.federated.parameters import Federated

if TYPE_CHECKING:
    from plinth.training.telemetry.timeline import History


def facts(history: History | None, monitor: Mapping[str, Any]) -> dict[str, Any]:
    """The rounds of sites that the run took part in: the step, the weights that it adopted, and the sites."""
    if history is None:
        return {}
    rounds = {event["step"]: event for event in history.of("averaged")}
    kept = [{key: rounds[step][key] for key in ("step", "round", "sites", "common")} for step in sorted(rounds)]
    return {"federated": kept}


HOOK = TrainingHook(
    name="federated",
    params=Federated,
    rank=late("plinth_extras.federated.site:Site"),
    facts=facts,
    unidentified=("exchange",),
    position=2,
)

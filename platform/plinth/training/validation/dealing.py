"""The work of one look at the model, dealt to the data ranks in turn."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from plinth.training.engine.engine import TrainingEngine

#: Seconds after which a long evaluation touches the timeline, so that the supervisor does not end it as hanging.
HEARTBEAT_S = 1.0


def dealt(engine: TrainingEngine, count: int) -> Iterator[int | None]:
    """Numbers below `count` of this rank's replica, in order; None in a round in which it has none.

    Every rank has as many rounds as every other: with ZeRO-3 each forward pass is a collective.
    """
    place, shape = engine.topology.place, engine.topology.shape
    mine, shown = range(place.data, count, shape.data), time.monotonic()
    for number in range(-(-count // shape.data)):
        yield mine[number] if number < len(mine) else None
        if engine.rank.leads and time.monotonic() - shown > HEARTBEAT_S:
            shown = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(engine.config.directory.events)  # the supervisor ends ranks that change nothing for long

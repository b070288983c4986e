"""The runtime context of a stage; none of it enters an identity.

Static configuration (the recipe's frozen parameters) and the runtime context are separate types:
a stage function is `run(ctx, params, inputs…) -> Manifest`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plinth.compute.engine import Engine, InlineEngine
from plinth.compute.progress import Progress, Silent
from plinth.storage.state import State


@dataclass
class Context(State):
    """The workspace, the engine that runs tasks, and where progress is shown."""

    engine: Engine = field(default_factory=InlineEngine)
    progress: Progress = field(default_factory=Silent)

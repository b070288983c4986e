"""The runtime context of a stage; none of it enters an identity.

Static configuration (the recipe's frozen parameters) and the runtime context are separate types:
a stage function is `run(ctx, params, inputs…) -> Manifest`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from plinth.compute.costs import StepCost
from plinth.compute.engine import Engine, InlineEngine
from plinth.compute.progress import Progress, Silent
from plinth.compute.share import TaskShare
from plinth.storage.state import State


@dataclass
class Context(State):
    """The workspace, the engine, where progress is shown, which tasks come first, and what they cost by step.

    `requested_by` is the person who requested the run, if known; `run` the id of the orchestrator's run, if any.
    """

    engine: Engine = field(default_factory=InlineEngine)
    progress: Progress = field(default_factory=Silent)
    share: TaskShare | None = None
    requested_by: str | None = None
    run: str = ""
    costs: defaultdict[str, StepCost] = field(default_factory=lambda: defaultdict(StepCost))

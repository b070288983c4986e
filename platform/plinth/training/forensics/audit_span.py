"""The checkpoints between which an audit replays; files only, so that the command line can check first."""

from __future__ import annotations

from plinth.errors import MissingError
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.stopping.stopping import last_step


def span(config: RunConfig, start: int | None = None) -> tuple[int, list[int]]:
    """The newest checkpoint committed up to `start`, and the committed ones after it, in order.

    By default the one that is kept for the audit; an earlier one where a stopping rule ended the run before it.

    Raises:
        MissingError: there is none, or none after it.
    """
    start = min(config.audit_step, last_step(config) - 1) if start is None else start
    steps = checkpoint.committed(config.directory)
    before = [step for step in steps if step <= start]
    after = [step for step in steps if before and step > before[-1]]
    if not after:
        raise MissingError(
            f"run {config.run_id} has nothing to replay from step {start}",
            found=f"checkpoints of steps {', '.join(map(str, steps)) or 'none'}",
            expected=f"one of step {start} or earlier, and one after it",
            remedy="name an earlier step with --from, or let the run commit another checkpoint",
        )
    return before[-1], after

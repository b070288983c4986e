"""A run that keeps its parent's optimizer takes the parent's next steps, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import later_batches
import pytest

from plinth.compute.context import Context
from plinth.errors import CheckpointError
from plinth.records import Manifest, Part
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.initial import InitialState
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import timeline
from tests.ranks import RankFailed, run_ranks

CONSTANT = Optimizer(schedule="constant", warmup_fraction=0.0)
KEEPING = Checkpoints(every_steps=3, audit_steps=4, keep_last=9)


def begun(ctx: Context, parent: RunConfig, step: int) -> Manifest:
    """Publish a checkpoint as the asset `initial`."""
    folder = checkpoint.path(parent.directory, step) / "model"
    parts = [Part(name=one.name, blob=ctx.store.put_bytes(one.read_bytes())) for one in sorted(folder.iterdir())]
    stats = {"vocab_size": parent.vocab_size, "run_id": parent.run_id, "step": step}
    made = Manifest(asset="initial", step="i", version="1", params={}, inputs={}, parts=tuple(parts), stats=stats)
    ctx.refs.save(made)
    return made


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_first_steps_are_the_next_of_the_parent(
    make: Callable[..., RunConfig], job: Callable[..., int], tmp_path: Path
) -> None:
    ctx, parent = Context(Workspace(tmp_path).ensure()), make(optimizer=CONSTANT, checkpoints=KEEPING)
    assert job(parent) == 0
    initial = begun(ctx, parent, later_batches.BEFORE)

    def child(how: str, zero_stage: int = 1) -> RunConfig:
        state = InitialState(manifest=initial.digest, optimizer=how)
        return make(
            run_id=f"child-{how}",
            optimizer=CONSTANT,
            initial=state,
            batches="later_batches:open_batches",
            parallel=Parallel(zero_stage=zero_stage),
        )

    steps = timeline(parent.directory.events).steps
    expected = [(steps[step]["loss"], steps[step]["grad_norm"]) for step in (7, 8, 9)]
    assert run_ranks(2, later_batches.first_steps, child("kept"), 3) == [expected, expected]
    (other, _) = run_ranks(2, later_batches.first_steps, child("kept", zero_stage=3), 3)
    assert other == [pytest.approx(pair, rel=1e-5) for pair in expected]
    (fresh, _) = run_ranks(2, later_batches.first_steps, child("fresh"), 3)
    assert fresh[0] == expected[0]  # the same weights and batch
    assert fresh[2] != expected[2]
    checkpoint.delete(parent.directory, later_batches.BEFORE)
    with pytest.raises(RankFailed) as caught:
        run_ranks(2, later_batches.first_steps, child("kept"), 1)
    assert isinstance(caught.value.error, CheckpointError)

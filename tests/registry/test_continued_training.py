"""The release page names each continuation after a loss, the origin of its state, and if its steps were replayed."""

from __future__ import annotations

from plinth.records import Manifest
from plinth.training.attempts import AttemptRecord, ContinuedState
from plinth_registry.trained import in_words
from tests.training_host import HOST


def attempt(number: int, continuation: ContinuedState | None) -> AttemptRecord:
    return AttemptRecord(
        run="r",
        key="k",
        number=number,
        config_sha256="c",
        from_step=0,
        ranks=2,
        nodes=2,
        hosts=(HOST,),
        continuation=continuation,
        at="2026-01-01T00:00:00+00:00",
    )


def test_continuations_are_named() -> None:
    memory = ContinuedState(lost="rank 1", step=8, source="memory", copies_sha256="ab" * 32, restored_sha256="ab" * 32)
    disk = ContinuedState(lost="rank 0", step=6, source="checkpoint")
    made = Manifest(asset="checkpoint", step="s", version="1", params={}, inputs={}, parts=(), stats={"step": 12})
    attempts = (attempt(1, None), attempt(2, memory), attempt(3, disk))
    said = in_words(made, attempts, replayed=4)
    assert "continued after step 8 from equal copies in memory (abababababab) (rank 1), then replayed bit-" in said
    assert "continued after step 6 from the checkpoint (rank 0), commit" in said
    assert "replayed" not in in_words(made, attempts)

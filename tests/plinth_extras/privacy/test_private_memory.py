"""The plan of a private run's memory is what ranks measure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.storage.workspace import Workspace
from plinth.training.config import RunConfig
from plinth.training.parameters.guard import GuardParameters
from plinth.training.parameters.parallel import Parallel
from plinth_extras import privacy
from plinth_extras.privacy import PrivacyState
from tests.plinth.training.engine.test_planned_memory import ROWS, within_two_percent


@pytest.mark.exhaustive  # on a busy machine gloo frees late, and the peak is another's
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_private_step_is_planned(precision: str, make: Callable[..., RunConfig], tmp_path: Path) -> None:
    """Two sequences per rank, one at a time: their sum in FP32 is added to the memory of a plain step."""
    key = privacy.make_key(Workspace(tmp_path), "private-0")
    state = PrivacyState(
        epsilon=50.0, delta=1e-5, clip_norm=1.0, noise_multiplier=0.8, sample_rate=0.25, secret_sha256=key
    )
    fields = {
        **ROWS, "precision": precision, "global_batch_sequences": 4, "privacy": state, "run_id": "private-0",
        "guard": GuardParameters(enabled=False), "workspace": tmp_path,
    }  # fmt: skip
    blocks = {"zero 0": Parallel(zero_stage=0, reduce_bucket_elements=200_000)} | {
        f"zero 1, overlap {overlap}": Parallel(
            zero_stage=1, overlap_communication=overlap, reduce_bucket_elements=200_000
        )
        for overlap in (False, True)
    }
    within_two_percent({name: make(parallel=block, **fields) for name, block in blocks.items()})

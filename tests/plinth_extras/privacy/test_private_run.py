"""A private run: plain training where nothing is clipped and no noise is added; exact through a resume; epsilon."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import federated_sites
import numpy as np
import private_run
import pytest

from plinth.errors import SignatureError
from plinth.launch.parameters import Launch
from plinth.model.parameters import Model
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig, identity
from plinth.training.parameters.guard import GuardParameters
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from plinth_audit.canaries.audit import audit, extremes
from plinth_extras import privacy
from plinth_extras.privacy import PrivacyState
from plinth_extras.privacy.accounting import epsilon
from tests.ranks import run_ranks


@pytest.fixture
def private(make: Callable[..., RunConfig], tmp_path: Path) -> Callable[..., RunConfig]:
    """A run of four steps of 8 rows, which commits after two and four."""

    def made(**changes: Any) -> RunConfig:
        run_id = changes.pop("run_id", "private-0")
        state = PrivacyState(
            epsilon=50.0, delta=1e-5, clip_norm=0.3, noise_multiplier=0.8, sample_rate=0.25,
            secret_sha256=privacy.make_key(Workspace(tmp_path), run_id),
        )  # fmt: skip
        fields: dict[str, Any] = {
            "total_steps": 4, "checkpoints": Checkpoints(every_steps=2, audit_steps=2), "privacy": state,
            "guard": GuardParameters(enabled=False), "batches": "private_run:open_batches",
            "optimizer": Optimizer(warmup_fraction=0.2, grad_clip=1e9), "micro_batch_sequences": 1, "run_id": run_id,
        }  # fmt: skip
        return make(workspace=tmp_path, **{**fields, **changes})

    return made


@pytest.mark.exhaustive
@pytest.mark.slow
def test_without_clip_and_noise_plain_training_and_the_same_noise_on_any_ranks(
    private: Callable[..., RunConfig],
) -> None:
    """To rounding: losses of three steps to 1e-6, gradient norms to 1e-5. ZeRO-1 on two ranks, ZeRO-0 on one."""
    two, one = private(), private(launch=Launch(ranks=1), parallel=Parallel(zero_stage=0))
    found, _ = run_ranks(2, private_run.steps_of, [(private(privacy=None), False), (two, True), (two, False)], 3)
    (alone,) = run_ranks(1, private_run.steps_of, [(one, False)], 3)
    plain, bare, noisy = found
    for (loss, norm), (bare_loss, bare_norm) in zip(plain, bare, strict=True):
        assert bare_loss == pytest.approx(loss, rel=1e-6)
        assert bare_norm == pytest.approx(norm, rel=1e-5)
    for (loss, norm), (other_loss, other_norm) in zip(noisy, alone[0], strict=True):
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert other_norm == pytest.approx(norm, rel=1e-5)
    assert noisy[0][1] > 3 * plain[0][1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("stage", [0, 1])
def test_bf16_too(private: Callable[..., RunConfig], stage: int) -> None:
    one = {"launch": Launch(ranks=1), "parallel": Parallel(zero_stage=stage), "precision": "bf16"}
    (found,) = run_ranks(1, private_run.steps_of, [(private(privacy=None, **one), False), (private(**one), True)], 3)
    for (loss, norm), (bare_loss, bare_norm) in zip(*found, strict=True):
        assert bare_loss == pytest.approx(loss, rel=1e-2)
        assert bare_norm == pytest.approx(norm, rel=1e-2)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_resume_is_exact_and_every_checkpoint_states_epsilon(private: Callable[..., RunConfig]) -> None:
    config = private(launch=Launch(ranks=1))
    config.directory.root.mkdir(parents=True)
    assert run_ranks(1, federated_sites.train, config) == [True]
    for step in (2, 4):
        stated = checkpoint.read_state(config.directory, step)["monitor"]["privacy"]
        assert stated["steps"] == step
        assert stated["epsilon"] == epsilon(0.8, 0.25, step, 1e-5)
        assert (stated["unit"], stated["delta"]) == ("sequence", 1e-5)
    assert run_ranks(1, private_run.audited, config, 2) == [
        checkpoint.read_state(config.directory, 2)["monitor"]["privacy"]
    ]
    assert json.loads(config.directory.evidence.read_bytes())["bit_exact"]
    key = privacy.key_path(Workspace(config.workspace), config.run_id).read_bytes()
    for path in (path for path in config.directory.root.rglob("*") if path.is_file()):
        assert key not in path.read_bytes()
        assert key.hex() not in path.read_text(errors="replace")


#: Canaries that are guessed to be in, out of `private_run.CANARIES`.
GUESSES = 48


@pytest.mark.exhaustive
def test_an_audit_in_one_run_proves_no_more_than_the_accountant_allows(private: Callable[..., RunConfig]) -> None:
    """In 20 of 20 runs; and it proves more of each of five runs that leave out the noise they claim."""
    state = PrivacyState(
        epsilon=2.0, delta=1e-5, clip_norm=0.3, noise_multiplier=2.0, sample_rate=0.25, secret_sha256=""
    )
    claimed = epsilon(2.0, 0.25, 4, 1e-5)
    assert 1.5 < claimed < 1.6
    runs = [(_audited_run(private, state, seed), seed > 20) for seed in range(1, 26)]
    (found,) = run_ranks(1, private_run.known_canaries, runs, timeout_s=3000)
    bounds = [
        audit(extremes(np.array(scores), GUESSES, 0), private_run.coins(config), delta=1e-5).epsilon
        for (config, _), scores in zip(runs, found, strict=True)
    ]
    assert max(bounds[:20]) <= claimed, bounds
    assert min(bounds[20:]) > claimed, bounds


def _audited_run(private: Callable[..., RunConfig], state: PrivacyState, seed: int) -> RunConfig:
    """Four steps over 256 positions, each drawn with rate 1/4; 192 of them belong to canaries."""
    run_id = f"audited-{seed}"
    key = privacy.make_key(Workspace(private().workspace), run_id)
    return private(
        seed=seed, run_id=run_id, privacy=state.model_copy(update={"secret_sha256": key}),
        batches="private_run:open_canary_batches", global_batch_sequences=64, sequence_tokens=16, vocab_size=400,
        model=Model(layers=1, dim=32, heads=2, kv_heads=1, ffn_dim=32),
        optimizer=Optimizer(lr=3e-2, warmup_fraction=0.25, grad_clip=1e9),
        launch=Launch(ranks=1), parallel=Parallel(zero_stage=0),
    )  # fmt: skip


def test_another_key_is_another_run(private: Callable[..., RunConfig]) -> None:
    config = private()
    other = config.model_copy(update={"privacy": config.privacy.model_copy(update={"secret_sha256": "0" * 64})})
    assert identity(config) != identity(other)
    with pytest.raises(SignatureError, match="is not on this machine"):
        _ = other.draws
    assert config.draws.positions(1).tolist() == config.draws.positions(1).tolist()
    assert config.steps.positions(1).tolist() == list(range(8, 16))

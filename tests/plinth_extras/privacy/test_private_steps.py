"""Parts of a private step: sampled rows, clipped gradients, the noise, and a comparison with Opacus."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from plinth.errors import RecipeError, SignatureError, TrainingError
from plinth.storage.workspace import Workspace
from plinth.tokens.order.order import PoissonSteps
from plinth.tokens.order.steps import StepRange
from plinth.training.parameters.guard import GuardParameters
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Training
from plinth_extras import privacy
from plinth_extras.privacy import Privacy, PrivacyState, accounting
from plinth_extras.privacy.accounting import PrivacyBudget, epsilon, resolved_apart
from plinth_extras.privacy.gradients import PrivateGradients, clipped_sum, surrogate
from tests.peers import Peer

opacus = Peer("opacus")
accountants = Peer("opacus.accountants")

STATE = PrivacyState(
    epsilon=8.0, delta=1e-5, clip_norm=0.5, noise_multiplier=0.9, sample_rate=0.01, secret_sha256="0" * 64
)


def steps(key: bytes = b"k" * 32, sequences: int = 1000, batch: int = 40) -> PoissonSteps:
    return PoissonSteps(sequences, 8, (StepRange(0, 0, batch, 8),), key)


class TestSampling:
    def test_a_step_is_drawn_from_the_key_and_can_be_listed_from_both_sides(self) -> None:
        made = steps()
        drawn = [made.positions(step) for step in range(made.total)]
        assert made.rate == 1 / 25
        assert all(np.array_equal(one, again) for one, again in zip(drawn, map(made.positions, range(25)), strict=True))
        assert not np.array_equal(drawn[3], steps(b"l" * 32).positions(3))
        for position in (0, 1, 7, 500, 999):
            seen = [step for step, own in enumerate(drawn) if position in own]
            listed = [(step, int(np.flatnonzero(drawn[step] == position)[0])) for step in seen]
            assert list(made.steps_of(position)) == listed

    def test_sequences_are_drawn_by_themselves_with_the_rate(self) -> None:
        """Sizes, and how often a sequence comes, have the mean and the variance of binomials."""
        made = steps(sequences=20_000, batch=200)
        drawn = np.zeros((made.total, 20_000), bool)
        for step in range(made.total):
            drawn[step, made.positions(step)] = True
        p, cells = 0.01, drawn.size
        assert abs(drawn.sum() - cells * p) < 5 * np.sqrt(cells * p * (1 - p))
        for axis, n in ((1, 20_000), (0, 100)):
            counts = drawn.sum(axis)
            expected = n * p * (1 - p)
            assert abs(counts.var() / expected - 1) < 5 * np.sqrt(2 / len(counts)) + 0.1
        assert drawn.sum(1).std() > 0

    def test_a_run_of_one_step_takes_nearly_everything(self) -> None:
        assert len(steps(sequences=40, batch=40).positions(0)) == 40


class TestAccounting:
    @pytest.mark.parametrize(("noise", "rate", "count"), [(1.1, 0.01, 300), (0.7, 0.004, 50), (3.0, 1.0, 2)])
    def test_epsilon_is_that_of_opacus_step_by_step(self, noise: float, rate: float, count: int) -> None:
        theirs = accountants.RDPAccountant()
        for _ in range(count):
            theirs.step(noise_multiplier=noise, sample_rate=rate)
        assert epsilon(noise, rate, count, 1e-5) == theirs.get_epsilon(1e-5)
        assert epsilon(noise, rate, 0, 1e-5) == 0.0

    @pytest.mark.exhaustive
    def test_the_noise_for_an_epsilon_is_that_of_opacus_in_a_process_of_its_own(self) -> None:
        params = Privacy(epsilon=3.0, delta=1e-5)
        wanted = {"target_epsilon": 3.0, "target_delta": 1e-5, "sample_rate": 0.02, "steps": 50}
        theirs = accountants.utils.get_noise_multiplier(**wanted)
        made = resolved_apart(params, 0.02, 50)
        assert made["noise_multiplier"] == theirs
        assert 2.9 < made["epsilon"] <= 3.0

    def test_the_control_plane_stays_without_torch(self) -> None:
        code = "import plinth.training.config, sys; sys.exit('torch' in sys.modules or 'opacus' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_a_budget_that_cannot_be_kept_is_refused_before_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def here(*_: object, input: str, **__: object) -> SimpleNamespace:
            monkeypatch.setattr(sys, "stdin", io.StringIO(input))
            with redirect_stdout(io.StringIO()) as answer:
                accounting.main()
            return SimpleNamespace(stdout=answer.getvalue())

        monkeypatch.setattr(accounting.processes, "run", here)
        with pytest.raises(RecipeError, match="50 steps spend more than training") as caught:
            resolved_apart(Privacy(epsilon=1.0, delta=1e-5, noise_multiplier=0.5), 0.02, 50)
        assert "sampling rate of 0.02" in str(caught.value.found)

    @pytest.mark.exhaustive
    def test_no_step_spends_more_than_the_budget_and_one_taken_again_nothing(self) -> None:
        budget, allowed = PrivacyBudget(STATE), 1
        while epsilon(0.9, 0.01, allowed + 1, 1e-5) <= 8.0:
            allowed += 97
        while epsilon(0.9, 0.01, allowed, 1e-5) > 8.0:
            allowed -= 1
        budget.spend(allowed)
        budget.spend(allowed - 5)
        assert budget.state()["steps"] == allowed
        assert budget.state()["epsilon"] <= 8.0 < epsilon(0.9, 0.01, allowed + 1, 1e-5)
        with pytest.raises(TrainingError, match=f"step {allowed + 1} would spend more than the privacy budget"):
            budget.spend(allowed + 1)
        assert budget.steps == allowed


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def losses(net: nn.Module, rows: Tensor, targets: Tensor) -> list[Tensor]:
    return [nn.functional.cross_entropy(net(rows[i : i + 1]), targets[i : i + 1]) for i in range(len(rows))]


class TestGradients:
    rows, targets = torch.randn(7, 6, generator=torch.Generator().manual_seed(1)) * 3, torch.arange(7) % 4

    def test_clipped_as_opacus_clips(self) -> None:
        net = model()
        ours = clipped_sum(net, losses(net, self.rows, self.targets), 0.5, torch.device("cpu"))
        theirs = opacus.GradSampleModule(model(), loss_reduction="sum")
        optimizer = opacus.optimizers.DPOptimizer(
            torch.optim.SGD(theirs.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=0.5,
            expected_batch_size=7, loss_reduction="sum",
        )  # fmt: skip
        nn.functional.cross_entropy(theirs(self.rows), self.targets, reduction="sum").backward()
        optimizer.clip_and_accumulate()
        for (name, held), parameter in zip(ours.gradients.items(), theirs.parameters(), strict=True):
            assert torch.allclose(held, parameter.summed_grad, rtol=1e-5, atol=1e-6), name
        total = torch.cat([held.flatten() for held in ours.gradients.values()]).norm()
        assert total <= 7 * 0.5 + 1e-5
        assert ours.sequences == 7

    def test_without_clip_and_noise_it_is_the_plain_gradient(self) -> None:
        net, state = model(), STATE.model_copy(update={"noise_multiplier": 0.0, "clip_norm": float("inf")})
        sums = clipped_sum(net, losses(net, self.rows, self.targets), state.clip_norm, torch.device("cpu"))
        PrivateGradients(state, b"k", 7, 1).add_noise(sums.gradients)
        surrogate(net, sums.gradients).backward()
        plain = model()
        nn.functional.cross_entropy(plain(self.rows), self.targets).backward()
        for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            assert torch.allclose(mine.grad, theirs.grad, rtol=1e-5, atol=1e-7)

    def test_a_gradient_that_is_not_finite_counts_as_none_and_one_row_cannot_do_more_than_the_clip(self) -> None:
        net, rows = model(), self.rows.clone()
        rows[2] = float("nan")
        broken = clipped_sum(net, losses(net, rows, self.targets), 0.5, torch.device("cpu"))
        kept = [i for i in range(7) if i != 2]
        without = clipped_sum(net, losses(net, rows[kept], self.targets[kept]), 0.5, torch.device("cpu"))
        rows[2] = 1e4
        loud = clipped_sum(net, losses(net, rows, self.targets), 0.5, torch.device("cpu"))
        difference = torch.cat([(loud.gradients[n] - without.gradients[n]).flatten() for n in loud.gradients])
        assert all(torch.equal(broken.gradients[n], without.gradients[n]) for n in without.gradients)
        assert torch.equal(broken.losses, without.losses)
        assert 0 < float(difference.norm()) <= 0.5 + 1e-5

    def test_noise_belongs_to_key_step_and_parameter_and_has_its_size(self) -> None:
        zeros = {"a": torch.zeros(300, 200), "b": torch.zeros(300, 200)}

        def drawn(key: bytes, step: int, replicas: int = 1) -> dict[str, Tensor]:
            made = PrivateGradients(STATE, key, 16, replicas)
            made.step = step
            drawn = {name: zero.clone() for name, zero in zeros.items()}
            made.add_noise(drawn)
            return drawn

        one = drawn(b"k", 5)
        std = STATE.noise_multiplier * STATE.clip_norm / 16
        assert torch.equal(one["a"], drawn(b"k", 5, replicas=4)["a"])
        for other in (drawn(b"k", 6)["a"], drawn(b"l", 5)["a"], one["b"]):
            assert not torch.equal(one["a"], other)
            assert abs(float((one["a"] * other).mean())) < 5 * std**2 / np.sqrt(60_000)
        assert abs(float(one["a"].std()) / std - 1) < 5 / np.sqrt(2 * 60_000)
        assert abs(float(one["a"].mean())) < 5 * std / np.sqrt(60_000)


class TestSecret:
    def test_it_is_drawn_once_kept_from_others_and_outside_the_workspace(self, tmp_path: Path, own_trust: Path) -> None:
        workspace = Workspace(tmp_path / "workspace")
        committed = privacy.make_key(workspace, "run-0")
        path = privacy.key_path(workspace, "run-0")
        assert privacy.make_key(workspace, "run-0") == committed != privacy.make_key(workspace, "run-1")
        assert own_trust in path.parents
        assert path.stat().st_mode & 0o777 == 0o600
        assert privacy.read_key(workspace, "run-0", committed) == path.read_bytes()
        path.write_bytes(b"x" * 32)
        with pytest.raises(SignatureError, match="is not on this machine"):
            privacy.read_key(workspace, "run-0", committed)
        path.unlink()
        with pytest.raises(SignatureError, match="the privacy key of run run-0 is not on this machine"):
            privacy.read_key(workspace, "run-0", committed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "guard.enabled"),
        ({"parallel": Parallel(zero_stage=2)}, "parallel.zero_stage 2"),
        ({"parallel": Parallel(tensor=2)}, "parallel.tensor 2"),
        ({"precision": "fp16"}, "precision fp16"),
    ],
)
def test_what_would_void_the_guarantee_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    params = Privacy(epsilon=3.0, delta=1e-5)
    guard = GuardParameters() if not changes else GuardParameters(enabled=False)
    with pytest.raises(ValidationError, match=message):
        Training(privacy=params, guard=guard, **changes)
    parallel = Parallel(zero_stage=1)
    fine = Training(privacy=params, guard=GuardParameters(enabled=False), parallel=parallel)
    assert json.loads(fine.model_dump_json())["privacy"]["noise_multiplier"] is None

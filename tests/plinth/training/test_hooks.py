"""Training hooks: order, what a step calls, and a hook of another package from the recipe to the timeline."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hooked_run
import pytest

from plinth.errors import TrainingError
from plinth.launch.parameters import Launch
from plinth.recipe.extension_checks import problems_of_extensions
from plinth.training import hooks
from plinth.training.config import RunConfig, identity, run_key
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Training
from plinth.training.rank_hook import RankHook
from plinth.training.sinks.run_metrics import scalars
from plinth.training.telemetry.timeline import timeline
from tests.ranks import run_ranks

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "plinth-example"
WEIGHT = {"small_embeddings": {"weight": 0.5}}


class Counted(RankHook):
    """Counts steps, and keeps the count in checkpoints."""

    def __init__(self) -> None:
        self.steps = 0

    def before_step(self, step: int) -> None:
        self.steps += 1

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]

    def due(self, step: int) -> bool:
        return step == 3


class OwnGradient(RankHook):
    def gradient(self, batch: Any) -> Any:
        return None


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders of the installed example."""
    info = tmp_path / "site" / "plinth_example-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plinth-example\nVersion: 0.1.0\n")
    value = "plinth_example.small_embeddings:HOOK"
    (info / "entry_points.txt").write_text(f"[plinth.training_hooks]\nsmall_embeddings = {value}\n")
    folders = [str(tmp_path / "site"), str(EXAMPLE)]
    for folder in folders:
        monkeypatch.syspath_prepend(folder)
    for name in ("plinth_example", "plinth_example.small_embeddings"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folders


def run_of(tiny: Callable[..., RunConfig], workspace: Path, **changes: Any) -> RunConfig:
    extensions = changes.get("extensions", {})
    provenance = {"extensions": hooks.origins(Training(extensions=extensions))} if extensions else {}
    one = {"launch": Launch(ranks=1), "parallel": Parallel(zero_stage=0), "provenance": provenance}
    return tiny(workspace, **one, **changes)


def test_a_step_calls_what_a_hook_has() -> None:
    from plinth.training.engine.engine import NO_HOOKS
    from plinth.training.trainer import RankHooks

    counted = Counted()
    found = RankHooks({"counted": counted, "idle": RankHook()})
    assert (len(found.before_step), found.of_passes) == (1, NO_HOOKS)
    for step in (1, 2):
        for hook in found.before_step:
            hook(step)
    assert found.state() == {"counted": {"steps": 2}}
    found.restore({"counted": {"steps": 7}, "loss_ema": 1.0})
    assert counted.steps == 7
    assert (found.due(2), found.due(3)) == (None, counted)
    with pytest.raises(TrainingError, match="two hooks compute the gradient"):
        RankHooks({"a": OwnGradient(), "b": OwnGradient()})


def test_the_origin_of_a_hook_is_part_of_the_identity(site: list[str], tmp_path: Path) -> None:
    plain, hooked = Training(), Training(extensions=WEIGHT)
    stronger = Training(extensions={"small_embeddings": {"weight": 1.0}})
    keys = [run_key(one, "mixture", "tokenizer") for one in (plain, hooked, stronger)]
    assert len(set(keys)) == 3
    assert hooks.origins(hooked)["small_embeddings"].startswith("plinth-example 0.1.0 sha256:")
    assert hooks.undivided(hooked) == {"tensor", "pipeline", "zero_stage"}


def test_a_recipe_names_a_hook_like_any_member(site: list[str]) -> None:
    def found(extensions: dict[str, Any]) -> list[str]:
        return [message for _, message, _ in problems_of_extensions({"training": {"extensions": extensions}})]

    assert found(WEIGHT) == []
    assert found({"small_embeddings": {"weight": 0}}) == ["input should be greater than 0"]
    assert found({"smal_embeddings": {}}) == ["no such training hook"]


@pytest.mark.slow
def test_a_hook_adds_to_the_loss_and_to_the_timeline(site: list[str], tmp_path: Path) -> None:
    from tests.plinth.training.conftest import tiny

    plain, hooked = (
        run_of(tiny, tmp_path / "workspace", run_id=f"hooked-{number:012}", extensions=extensions)
        for number, extensions in enumerate(({}, WEIGHT))
    )
    assert identity(plain) != identity(hooked)
    run_ranks(1, hooked_run.trained, site, [plain, hooked])
    own = timeline(hooked.directory.events).steps
    assert set(own) == set(range(1, hooked.total_steps + 1))
    rms = [scalars(event)["small_embeddings/rms"] for event in own.values()]
    assert min(rms) > 0
    first = timeline(plain.directory.events).steps[1]["loss"]
    assert own[1]["loss"] == pytest.approx(first + 0.5 * rms[0] ** 2, rel=1e-5)


@pytest.mark.slow
def test_another_version_of_a_hook_trains_nothing(site: list[str], tmp_path: Path) -> None:
    from tests.plinth.training.conftest import tiny

    config = run_of(tiny, tmp_path / "workspace", extensions=WEIGHT)
    earlier = {"extensions": {"small_embeddings": "plinth-example 0.0.9 sha256:0"}}
    (said,) = run_ranks(1, hooked_run.refused, site, config.model_copy(update={"provenance": earlier}))
    assert "differ from the hooks of the run" in said
    assert "plinth-example 0.0.9" in said

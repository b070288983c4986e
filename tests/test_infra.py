"""The settings in infra/ are accepted as its README describes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from jobs import instance, recipes

INFRA = Path(__file__).resolve().parents[1] / "infra"


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_a_copy_that_extends_a_recipe_trains_on_the_scheduler(kind: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: demo.yaml\ntraining: {global_batch_sequences: 32}\n")
    copy = tmp_path / "cluster.yaml"
    copy.write_text(f"extends: mine.yaml\n{(INFRA / kind / 'recipe.yaml').read_text()}")
    training = recipes.load(copy).training
    assert training is not None
    launch = training.launch
    assert (launch.kind, launch.ranks, launch.nodes) == (kind, 16, 2)


def test_postgres_replaces_the_settings_of_dagster(monkeypatch: pytest.MonkeyPatch) -> None:
    path = INFRA / "postgres" / "dagster.yaml"
    monkeypatch.setenv("PLINTH_DAGSTER_YAML", str(path))
    assert instance.settings_file() == path
    assert "postgres" in yaml.safe_load(path.read_text())["storage"]

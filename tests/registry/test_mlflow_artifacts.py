"""`models:/demo@champion` in MLflow's own client: a verified model loads, anything else is refused with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from plinth_registry import taint, verified
from plinth_registry.candidate import Candidate, source_uri
from plinth_registry.verified import verify_release
from tests.registry.exports.test_released import export, move, release_in, root_of
from tests.s3_server import serving

CHAMPION = "models:/demo@champion"


class Registry(NamedTuple):
    """A released workspace, and the registry that shows it to clients that know nothing of Plinth."""

    ctx: Context
    client: Any

    @property
    def candidate(self) -> Candidate:
        return verify_release(self.ctx, "demo", "2")[0]

    @property
    def source(self) -> str:
        return source_uri(self.ctx.workspace, self.candidate.directory)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace and MLflow's database, made once."""
    from mlflow import MlflowClient

    root = tmp_path_factory.mktemp("made") / "workspace"
    found = Registry(release_in(Context(Workspace(root).ensure())), MlflowClient(f"sqlite:///{root.parent}/mlflow.db"))
    for name in ("demo-candidate", "demo"):
        found.client.create_registered_model(name)
        for _ in range(2):
            found.client.create_model_version(name, found.source)
    found.client.set_registered_model_alias("demo", "champion", "2")
    return root.parent


@pytest.fixture
def registry(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Registry:
    from mlflow import MlflowClient

    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("PLINTH_TRUST", str(Workspace(made / "workspace").trust_folder))
    monkeypatch.setenv("PLINTH_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{tmp_path}/mlflow.db")
    return Registry(Context(Workspace(tmp_path / "workspace")), MlflowClient(uri))


def test_mlflow_and_transformers_load_champion_and_candidate(registry: Registry, tmp_path: Path) -> None:
    import mlflow
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (tmp_path / "here").mkdir()
    folder = mlflow.artifacts.download_artifacts(CHAMPION, dst_path=str(tmp_path / "here"))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    given = tokenizer("a small text", return_tensors="pt")
    written = model.generate(**given, max_new_tokens=5, do_sample=False)[0]
    for uri in (CHAMPION, "models:/demo-candidate/1"):
        (answer,) = mlflow.pyfunc.load_model(uri).predict(["a small text"], params={"max_new_tokens": 5})
        assert answer == tokenizer.decode(written, skip_special_tokens=True)
    pipeline = mlflow.transformers.load_model(CHAMPION)
    assert all(
        torch.equal(own, theirs) for own, theirs in zip(model.parameters(), pipeline.model.parameters(), strict=True)
    )
    assert mlflow.artifacts.load_dict(f"{CHAMPION}/config.json")["architectures"] == ["LlamaForCausalLM"]


def _tainted(registry: Registry) -> None:
    taint.mark(registry.ctx, registry.candidate.checkpoint, "ada@example.org", "a poisoned bucket")


def _changed(registry: Registry) -> None:
    path = next(registry.candidate.directory.glob("*.safetensors"))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


def _foreign(registry: Registry) -> None:
    registry.client.create_model_version("demo", registry.source)
    registry.client.set_registered_model_alias("demo", "champion", "3")


def _moved(registry: Registry) -> None:
    registry.client.set_registered_model_alias("demo", "champion", "1")


def _rolled_back(registry: Registry) -> None:
    move(registry.ctx, registry.candidate, "withdrawn", None, "2")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_tainted, "is tainted.*a poisoned bucket"),
        (_changed, "model.safetensors"),
        (_foreign, "demo version 3 was never released"),
        (_moved, "MLflow shows demo version 1 as champion"),
        (_rolled_back, "demo version 1, 2 was rolled back"),
    ],
)
def test_what_is_not_proved_is_refused_with_the_reason(
    registry: Registry, spoil: Callable[[Registry], None], reason: str, tmp_path: Path
) -> None:
    import mlflow

    spoil(registry)
    (tmp_path / "here").mkdir()
    with pytest.raises(mlflow.exceptions.MlflowException, match=f"(?s){reason}") as refused:
        mlflow.artifacts.download_artifacts(CHAMPION, dst_path=str(tmp_path / "here"))
    assert refused.value.error_code == "PERMISSION_DENIED"
    assert not any((tmp_path / "here").iterdir())


def test_weights_that_are_swapped_after_the_check_are_refused(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    verify = verified.verify_model

    def swapped(*given: Any) -> Any:
        found = verify(*given)
        _changed(registry)
        return found

    monkeypatch.setattr(verified, "verify_model", swapped)
    (tmp_path / "here").mkdir()
    with pytest.raises(mlflow.exceptions.MlflowException, match=r"model\.safetensors"):
        mlflow.artifacts.download_artifacts(CHAMPION, dst_path=str(tmp_path / "here"))
    assert not any((tmp_path / "here").iterdir())


def test_a_machine_without_a_workspace_reads_an_export(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    assert export(registry.ctx, CHAMPION.removeprefix("models:/"), tmp_path / "exports" / "demo") == 0
    root = shutil.copy(root_of(registry.ctx), tmp_path)
    monkeypatch.setenv("PLINTH_WORKSPACE", str(tmp_path / "nowhere"))
    monkeypatch.delenv("PLINTH_TRUST")
    with pytest.raises(mlflow.exceptions.MlflowException, match="PLINTH_EXPORTS") as absent:
        mlflow.artifacts.download_artifacts(CHAMPION)
    assert absent.value.error_code == "RESOURCE_DOES_NOT_EXIST"
    monkeypatch.setenv("PLINTH_EXPORTS", str(tmp_path / "exports"))
    monkeypatch.setenv("PLINTH_ROOT", str(root))
    assert (Path(mlflow.artifacts.download_artifacts(CHAMPION)) / "MLmodel").is_file()
    with serving() as bucket:
        for path in (tmp_path / "exports").rglob("*"):
            if path.is_file():
                bucket.put(f"models/{path.relative_to(tmp_path / 'exports')}", path.read_bytes())
        monkeypatch.setenv("PLINTH_EXPORTS", bucket.uri("models"))
        folder = Path(mlflow.artifacts.download_artifacts(CHAMPION))
        assert (folder / "model.safetensors").read_bytes() == (tmp_path / "exports/demo/model.safetensors").read_bytes()
        bucket.put("models/demo/config.json", b"{}")
        with pytest.raises(mlflow.exceptions.MlflowException, match=r"config\.json has changed"):
            mlflow.artifacts.download_artifacts(CHAMPION)

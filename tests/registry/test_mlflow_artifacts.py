"""`models:/demo@champion` in MLflow's own client: a verified model loads, anything else is refused with the reason."""

from __future__ import annotations

import os
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
from tests.registry.conftest import make_recipe, sign_candidate
from tests.registry.exports.test_released import ModelLine, export, move, release_in, root_of
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("uri", [CHAMPION, "models:/demo-candidate/1"])
def test_mlflow_genai_evaluates_champion_and_candidate(
    registry: Registry, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    from mlflow.genai.scorers import scorer

    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")  # its thread never ends
    model = mlflow.pyfunc.load_model(uri)

    def continued(prompt: str) -> str:
        return str(model.predict([prompt], params={"max_new_tokens": 5})[0])

    @scorer  # type: ignore[untyped-decorator]
    def keeps_prompt(inputs: dict[str, str], outputs: str) -> bool:
        return outputs.startswith(inputs["prompt"])

    @scorer  # type: ignore[untyped-decorator]
    def is_expected(outputs: str, expectations: dict[str, str]) -> bool:
        return outputs == expectations["text"]

    prompts = ["a small text", "text that is"]
    data = [
        {"inputs": {"prompt": one}, "expectations": {"text": continued(one) if one == prompts[0] else ""}}
        for one in prompts
    ]
    scorers = [keeps_prompt, is_expected]
    found = mlflow.genai.evaluate(data=data, predict_fn=lambda prompt: continued(prompt), scorers=scorers)
    assert found.metrics == {"keeps_prompt/mean": 1.0, "is_expected/mean": 0.5}


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


def _source(registry: Registry, source: str) -> None:
    registry.client.create_model_version("demo", source)
    registry.client.set_registered_model_alias("demo", "champion", "3")


def _traversal(registry: Registry) -> None:
    shutil.copytree(registry.ctx.workspace.models, registry.ctx.workspace.root / "planted")
    _source(registry, f"plinth:///models/../planted/{registry.candidate.directory.name}")


def _other_spelling(registry: Registry) -> None:
    _source(registry, registry.source.replace("/models/", "/models/./"))


def _folder_of_another_model(registry: Registry, put: Callable[[Path, Path], Any] = shutil.copytree) -> None:
    """Models of the same trainer, exchanged in the workspace, with their signatures."""
    line = ModelLine(registry.ctx, make_recipe("demo"), seed=2)
    other, own = sign_candidate(registry.ctx, line).directory, registry.candidate.directory
    shutil.rmtree(own)
    put(other, own)
    for path in other.parent.glob(f"{other.name}.*"):
        shutil.copy(path, path.with_name(path.name.replace(other.name, own.name)))


def _link_to_another_model(registry: Registry) -> None:
    _folder_of_another_model(registry, lambda other, own: own.symlink_to(other))


@pytest.mark.parametrize(
    ("spoil", "uri", "reason"),
    [
        (_traversal, CHAMPION, "a source that is not a model of this workspace"),
        (_other_spelling, CHAMPION, "is not the source of a model"),
        (_folder_of_another_model, CHAMPION, "has another checkpoint"),
        (_folder_of_another_model, "models:/demo-candidate/1", "has another checkpoint"),
        (_link_to_another_model, "models:/demo-candidate/1", "is a symlink"),
    ],
)
def test_a_source_that_leads_elsewhere_is_refused(
    registry: Registry, spoil: Callable[[Registry], None], uri: str, reason: str
) -> None:
    import mlflow

    spoil(registry)
    with pytest.raises(mlflow.exceptions.MlflowException, match=reason) as refused:
        mlflow.artifacts.download_artifacts(uri)
    assert refused.value.error_code == "PERMISSION_DENIED"


def test_edited_tags_change_nothing(registry: Registry) -> None:
    import mlflow

    before = registry.candidate.checkpoint
    for key in ("candidate", "checkpoint", "gates", "approval", "taint"):
        registry.client.set_model_version_tag("demo", "2", key, "0" * 64)
    folder = Path(mlflow.artifacts.download_artifacts(CHAMPION))
    assert folder.joinpath("MLmodel").read_text().count(f"plinth:///models/{before[:12]}") == 1


@pytest.mark.parametrize("copied", [False, True])
def test_an_unapproved_candidate_under_another_name_is_refused(registry: Registry, copied: bool) -> None:
    """Before the first release, and under a name that no release has."""
    import mlflow

    other = sign_candidate(registry.ctx, ModelLine(registry.ctx, make_recipe("other"), seed=2))
    client, source = registry.client, source_uri(registry.ctx.workspace, other.directory)
    for name in ("other-candidate", "other", "prod"):
        client.create_registered_model(name)
    client.create_model_version("other-candidate", source)
    assert Path(mlflow.artifacts.download_artifacts("models:/other-candidate/1"), "MLmodel").is_file()
    if copied:
        client.copy_model_version("models:/other-candidate/1", "prod")
        client.copy_model_version("models:/prod/1", "other")
    else:
        client.create_model_version("other", source)
    client.set_registered_model_alias("other", "champion", "1")
    with pytest.raises(mlflow.exceptions.MlflowException, match=r"(prod|other) version 1 was never released"):
        mlflow.artifacts.download_artifacts("models:/other@champion")


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


def _exports(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Export the champion for machines that have no workspace, and return the folder of exports."""
    assert export(registry.ctx, CHAMPION.removeprefix("models:/"), tmp_path / "exports" / "demo") == 0
    monkeypatch.setenv("PLINTH_EXPORTS", str(tmp_path / "exports"))
    monkeypatch.setenv("PLINTH_ROOT", str(shutil.copy(root_of(registry.ctx), tmp_path)))
    return tmp_path / "exports"


def _linked(exports: Path) -> None:
    path = exports / "demo" / "config.json"
    path.rename(exports / "config.json")
    path.symlink_to(exports / "config.json")


def _pipe(exports: Path) -> None:
    (exports / "demo" / "EXPORT.json").unlink()
    os.mkfifo(exports / "demo" / "EXPORT.json")


def _added(exports: Path) -> None:
    (exports / "demo" / "MLmodel").write_text("flavors: {python_function: {loader_module: evil}}")


@pytest.mark.parametrize(
    ("spoil", "reason"), [(_linked, "not a regular file"), (_pipe, "not a plain file"), (_added, "MLmodel was added")]
)
def test_an_export_with_other_files_is_refused(
    registry: Registry, spoil: Callable[[Path], None], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    spoil(_exports(registry, tmp_path, monkeypatch))
    monkeypatch.setenv("PLINTH_WORKSPACE", str(tmp_path / "nowhere"))
    with pytest.raises(mlflow.exceptions.MlflowException, match=reason):
        mlflow.artifacts.download_artifacts(CHAMPION)


def test_an_export_that_is_exchanged_for_another_release_is_refused(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statement is read before it is copied: a writer of the folder may exchange it in between."""
    import mlflow

    _exports(registry, tmp_path, monkeypatch)
    monkeypatch.setenv("PLINTH_WORKSPACE", str(tmp_path / "nowhere"))
    short = registry.candidate.checkpoint[:12]
    answers = iter([True, False])
    monkeypatch.setattr("plinth_registry.mlflow.artifacts._is_of", lambda *given: given[1] == short and next(answers))
    with pytest.raises(mlflow.exceptions.MlflowException, match=f"another model(?s:.*)checkpoint {short}"):
        mlflow.artifacts.download_artifacts(CHAMPION)


@pytest.mark.parametrize(("spoil", "reason"), [(_tainted, "is tainted"), (_rolled_back, "was rolled back")])
def test_a_model_that_was_removed_from_the_workspace_is_not_read_from_a_stale_export(
    registry: Registry, spoil: Callable[[Registry], None], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    _exports(registry, tmp_path, monkeypatch)
    directory = registry.candidate.directory
    spoil(registry)
    shutil.rmtree(directory)
    with pytest.raises(mlflow.exceptions.MlflowException, match=reason):
        mlflow.artifacts.download_artifacts(CHAMPION)


def test_a_workspace_without_a_pinned_root_is_refused(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "empty"))
    with pytest.raises(mlflow.exceptions.MlflowException, match="no root of trust is pinned"):
        mlflow.artifacts.download_artifacts(CHAMPION)

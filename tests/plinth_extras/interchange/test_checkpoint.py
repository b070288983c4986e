"""`plinth export checkpoint`: a run's weights for other trainers, and `training.initial.dcp`, which reads them back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from plinth.compute.context import Context
from plinth.errors import CheckpointError, MissingError, SignatureError, SourceError
from plinth.model.folder import load_model
from plinth.model.hugging_face import CONFIG, TOKENIZER, WEIGHTS
from plinth.model.parameters import Model, MuP
from plinth.provenance.statements import chain
from plinth.storage.workspace import Workspace
from plinth.training.parameters.initial import InitialWeights
from plinth.trust import dsse
from plinth_assets import initial
from plinth_extras.interchange import restore
from plinth_registry import consumers, exports, taint
from tests.assets.test_initial import begun, made
from tests.jobs.cli.test_export_model import END, committed
from tests.model_folder import byte_level
from tests.registry.exports.test_released import export, release_in, root_of

MUP = Model(
    layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=48, mup=MuP(base_dim=16, base_head_dim=4, embedding_multiplier=3.0)
)


@pytest.fixture
def tokenizer() -> Tokenizer:
    made = byte_level(["some words"], 280)
    made.add_special_tokens([END])
    return made


@pytest.mark.parametrize("form", ["dcp", "olmo-core", "megatron"])
def test_a_checkpoint_comes_back_as_initial_weights(
    plinth: Callable[..., Any], tmp_path: Path, tokenizer: Tokenizer, form: str
) -> None:
    config = MUP.model_copy(update={"tied_embeddings": False})
    run, _ = committed(tmp_path / "workspace", tokenizer, config, torch.bfloat16)
    workspace = ("-w", run.workspace)
    done = plinth("export", "checkpoint", "latest:6", "out", "--format", form, "--json", *workspace)
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    assert (shown["status"], shown["name"], shown["dtype"]) == ("UNRELEASED", f"{run.run_id}:6", "bfloat16")
    ctx = Context(Workspace(tmp_path / "workspace"))
    exports.verify(tmp_path / "out", ctx.workspace.trust_folder / "root.json", unreleased=True)
    assert plinth("export", "model", "latest", "hf", "--unreleased", *workspace).code == 0

    weights = made(ctx, dcp=str(tmp_path / "out"), licence="MIT")
    expected = load_file(tmp_path / "hf" / WEIGHTS)
    (part,) = weights.named(WEIGHTS)
    found = load_file(ctx.store.open_path(part.blob))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    source = ctx.refs.load(weights.inputs["weights"])
    files = {name for name in source.params["dcp"] if name != ".metadata"}
    assert files == {path.name for path in (tmp_path / "out").glob("*.distcp")}
    assert weights.stats["vocab_size"] == run.vocab_size
    assert initial.vocabulary(ctx, InitialWeights(dcp=str(tmp_path / "out"), licence="MIT")) == run.vocab_size
    restore(tmp_path / "out", tmp_path / "back")
    (tmp_path / "back" / CONFIG).write_bytes((tmp_path / "out" / CONFIG).read_bytes())
    assert load_model(tmp_path / "back").config.mup is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["dcp", "megatron"])
def test_a_release_leaves_in_a_trainers_layout_and_proves_itself(tmp_path: Path, form: str) -> None:
    """Digests and lineage: the evaluator states which checkpoint's files the exported ones are."""
    ctx, to = release_in(Context(Workspace(tmp_path / "workspace").ensure())), tmp_path / "out"
    assert export(ctx, "demo@champion", to, "--format", form) == 0
    proved = exports.verify(to, root_of(ctx))
    assert (proved["name"], proved["status"]) == ("demo/2", "released")
    stated = f"evidence/attestations/forms.{form}.json"
    assert proved["evidence"][stated].startswith("evaluator: ")
    facts = dsse.unverified(dsse.envelope_of(to / stated), "form")["predicate"]["facts"]
    assert facts["files"].keys() >= {".metadata", "__0_0.distcp", CONFIG, TOKENIZER}
    assert facts["files"].items() <= proved["digests"].items()
    weights = ctx.refs.load(proved["checkpoint"]).named(WEIGHTS)[0]
    assert facts["source"][WEIGHTS] == weights.blob.sha256
    restore(to, tmp_path / "back")
    found, expected = load_file(tmp_path / "back" / WEIGHTS), load_file(ctx.store.open_path(weights.blob))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)

    links = chain(ctx.refs, ctx.refs.load(proved["checkpoint"])).links
    (curated,) = (one.digest for one in links if one.asset.endswith("/curated"))
    (copy,) = consumers.impact(ctx, curated).exports
    assert (copy.name, copy.status, copy.to) == ("demo/2", "released", str(to))
    assert consumers.impact(ctx, ctx.refs.load(proved["checkpoint"]).inputs["tokenizer"]).exports == (copy,)
    damaged = to / "__0_0.distcp"
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(SignatureError, match="not a verified export"):
        exports.verify(to, root_of(ctx))


def test_targets_are_checked(plinth: Callable[..., Any], tmp_path: Path, tokenizer: Tokenizer) -> None:
    run, _ = committed(tmp_path / "workspace", tokenizer, MUP, torch.float32)
    asked = plinth("export", "checkpoint", "latest:x", "out", "-w", run.workspace)
    assert asked.code == 2
    assert "'x' is not a step" in asked.err
    assert plinth("export", "checkpoint", "latest:5", "out", "-w", run.workspace).code == 3
    tied = plinth("export", "checkpoint", "latest", "out", "--format", "olmo-core", "-w", run.workspace)
    assert tied.code == 0, tied.err
    ctx = Context(Workspace(tmp_path / "workspace"))
    taint.mark(ctx, run.mixture, "ada", "withdrawn")
    assert "tainted" in plinth("export", "checkpoint", "latest", "again", "-w", run.workspace).err
    assert not (tmp_path / "again").exists()


@pytest.fixture
def exported(plinth: Callable[..., Any], tmp_path: Path, tokenizer: Tokenizer) -> tuple[Context, Path]:
    run, _ = committed(tmp_path / "workspace", tokenizer, MUP, torch.float32)
    assert plinth("export", "checkpoint", "latest", "out", "-w", run.workspace).code == 0
    return Context(Workspace(tmp_path / "workspace")), tmp_path / "out"


def test_an_export_outlives_its_checkpoint_and_a_deleted_run_is_said(exported: tuple[Context, Path]) -> None:
    ctx, folder = exported
    (run,) = ctx.workspace.runs.iterdir()
    mixture = json.loads((run / "config.json").read_bytes())["mixture"]
    for path in (run / "checkpoints").glob("*.json"):
        path.unlink()
    found = consumers.impact(ctx, mixture)
    assert [(one.status, one.to) for one in found.exports] == [("UNRELEASED", str(folder))]
    rest = [gap for gap in found.gaps if "export" in gap]
    assert rest == []
    shutil.rmtree(run)
    found = consumers.impact(ctx, mixture)
    assert f"exports of run {run.name}, because its folder was deleted" in found.gaps


def test_the_description_may_be_elsewhere(exported: tuple[Context, Path], tmp_path: Path) -> None:
    ctx, folder = exported
    (tmp_path / "described").mkdir()
    first = made(ctx, dcp=str(folder), licence="MIT")
    for name in (CONFIG, TOKENIZER):
        (folder / name).rename(tmp_path / "described" / name)
    with pytest.raises(MissingError, match=r"has no config.json[\s\S]*training.initial.folder"):
        made(ctx, dcp=str(folder), licence="MIT")
    again = made(ctx, dcp=str(folder), folder=str(tmp_path / "described"), licence="MIT")
    assert again.digest == first.digest


def test_a_changed_checkpoint_is_read_again(exported: tuple[Context, Path]) -> None:
    ctx, folder = exported
    _, stage = begun(dcp=str(folder), licence="MIT")
    first, before = made(ctx, dcp=str(folder), licence="MIT"), stage.outside(ctx)
    path = folder / "__0_0.distcp"
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    at = data.index(b"data/0") + 4000
    data[at] ^= 1
    path.write_bytes(data)
    assert stage.outside(ctx) != before
    assert made(ctx, dcp=str(folder), licence="MIT").digest != first.digest


def test_links_and_other_models_are_refused(exported: tuple[Context, Path], tmp_path: Path) -> None:
    ctx, folder = exported
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).chmod(0o644)
    (folder / CONFIG).write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"model.layers.2.input_layernorm.weight missing"):
        made(ctx, dcp=str(folder), licence="MIT")
    (folder / CONFIG).write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(CheckpointError, match=r"describes no supported model[\s\S]*mamba"):
        made(ctx, dcp=str(folder), licence="MIT")
    (folder / CONFIG).write_text(json.dumps(config))
    (folder / "__0_0.distcp").rename(tmp_path / "moved")
    (folder / "__0_0.distcp").symlink_to(tmp_path / "moved")
    with pytest.raises(SourceError, match="points outside the model folder"):
        made(ctx, dcp=str(folder), licence="MIT")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dcp": "a"}, "`dcp` needs `licence`"),
        ({"dcp": "a", "checkpoint": "b", "licence": "MIT"}, "found checkpoint and dcp"),
        ({"dcp": "a", "licence": "MIT", "replay": 0.1}, "replay"),
        ({"dcp": "a", "licence": "MIT", "optimizer": "kept"}, "optimizer"),
    ],
)
def test_keys_that_do_not_fit_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InitialWeights(**given)

"""`plinth export model`: what transformers loads from the folder computes what our decoder does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from plinth.compute.context import Context
from plinth.launch.parameters import Launch, Supervision
from plinth.model import export
from plinth.model.decoder import Decoder, build
from plinth.model.folder import load_model
from plinth.model.hugging_face import hf_config
from plinth.model.parameters import Model, MuP, RopeScaling
from plinth.records import Manifest, Part
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from plinth_registry import taint
from tests.model_folder import save_model
from tests.peers import Peer

transformers = Peer("transformers")


Plinth = Callable[..., Any]
END, LENGTH, BOUND = "<|end|>", 48, 1e-5
NAME = "demo-0123456789ab:6"

BASE = Model(layers=2, dim=64, heads=8, kv_heads=2, ffn_dim=96, rope_theta=500.0)
MUP = MuP(base_dim=16, base_head_dim=4, embedding_multiplier=3.0, output_multiplier=2.0)
KINDS = {
    "tied": BASE,
    "untied, long context": BASE.model_copy(
        update={"tied_embeddings": False, "rope_scaling": RopeScaling(factor=4.0, original_tokens=16)}
    ),
    "muP": BASE.model_copy(update={"mup": MUP}),
    "muP, untied": BASE.model_copy(update={"mup": MUP, "tied_embeddings": False}),
    "muP, QK-norm": BASE.model_copy(update={"mup": MUP, "qk_norm": True, "head_dim": 16}),
    "muP, olmo2": BASE.model_copy(update={"mup": MUP, "qk_norm": True, "architecture": "olmo2"}),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Byte-level, as those of the pipeline are."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["a small text that is merged, a small text"] * 3, trainer)
    return made


def scrambled(config: Model, vocab_size: int) -> Decoder:
    """Gains that are not 1, and weights large enough to matter."""
    model = build(config, vocab_size, 3)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise * 0.1 + 1 if parameter.dim() == 1 else noise / parameter.shape[1] ** 0.5
    return model.eval()


def committed(workspace: Path, tokenizer: Tokenizer, config: Model, dtype: torch.dtype) -> tuple[RunConfig, Decoder]:
    """A run with one checkpoint of a model, in a workspace."""
    ctx = Context(Workspace(workspace).ensure())
    blob = ctx.store.put_bytes(tokenizer.to_str().encode())
    parts = (Part(name="tokenizer.json", blob=blob, rows=0),)
    documents = saved(ctx, "web/documents", {"web/sources": "0" * 64})
    made = saved(ctx, "tokenizer", {"web/documents": documents.digest}, parts)
    shards = saved(ctx, "web/shards", {"tokenizer": made.digest})
    mixture = saved(ctx, "mixture", {"web/shards": shards.digest})
    run = RunConfig(
        run_id="demo-0123456789ab",
        key="0" * 64,
        recipe="demo",
        workspace=str(workspace),
        model=config,
        vocab_size=tokenizer.get_vocab_size(),
        end_of_text=tokenizer.token_to_id(END),
        optimizer=Optimizer(),
        precision="fp32",
        parallel=Parallel(),
        seed=1,
        launch=Launch(ranks=1),
        sequence_tokens=LENGTH,
        micro_batch_sequences=2,
        global_batch_sequences=8,
        total_steps=12,
        mixture=mixture.digest,
        shards={"web": shards.digest},
        tokenizer=made.digest,
        checkpoints=Checkpoints(),
        supervision=Supervision(),
    )
    configuration.write(run)
    model = scrambled(config, run.vocab_size)
    staged = checkpoint.stage(run.directory, 6)
    described = hf_config(config, run.vocab_size, LENGTH, str(dtype).removeprefix("torch."), run.end_of_text)
    save_model(staged / "model", {name: p.to(dtype) for name, p in model.named_parameters()}, described)
    checkpoint.commit(run.directory, 6)
    return run, model


def saved(ctx: Context, asset: str, inputs: dict[str, str], parts: tuple[Part, ...] = ()) -> Manifest:
    made = Manifest(asset=asset, step=asset.split("/")[-1], version="1", params={}, inputs=inputs, parts=parts)
    ctx.refs.save(made)
    return made


@pytest.mark.parametrize("kind", list(KINDS))
def test_transformers_compute_what_we_do(
    plinth: Plinth, tmp_path: Path, tokenizer: Tokenizer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "BLOCK_BYTES", 1000)  # a few rows at a time
    run, model = committed(tmp_path / "workspace", tokenizer, KINDS[kind], torch.float32)
    told = plinth("export", "model", "latest", "out/hf", "--unreleased", "-w", run.workspace)
    assert told.code == 0, told.err
    assert "demo-0123456789ab:6 (UNRELEASED)" in told.out
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out/hf", local_files_only=True).eval()
    name = "Olmo2" if model.config.architecture == "olmo2" else "Qwen3" if model.config.qk_norm else "Llama"
    assert type(peer).__name__ == f"{name}ForCausalLM"
    assert peer.dtype == torch.float32
    tokens = torch.randint(0, run.vocab_size, (3, LENGTH), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        ours, theirs = model(tokens), peer(input_ids=tokens, use_cache=False).logits
    assert ours.std() > 0.1  # or the bound would say nothing
    assert float((ours - theirs).abs().max()) <= BOUND
    assert load_model(tmp_path / "out/hf").config.mup is None


def test_files_tokenizer_and_precision(plinth: Plinth, tmp_path: Path, tokenizer: Tokenizer) -> None:
    run, model = committed(tmp_path / "workspace", tokenizer, KINDS["untied, long context"], torch.bfloat16)
    told = plinth("export", "model", "demo", "hf", "--unreleased", "--json", "-w", run.workspace)
    assert told.code == 0, told.err
    shown, folder = json.loads(told.out), tmp_path / "hf"
    count = sum(parameter.numel() for parameter in model.parameters())
    assert (shown["name"], shown["parameters"], shown["bytes"], shown["dtype"]) == (NAME, count, 2 * count, "bfloat16")
    assert shown["files"] == ["model.safetensors"]
    small = ("--dtype", "float32", "--file-gb", "0.0001")
    again = plinth("export", "model", "demo", "many", "--unreleased", *small, "-w", run.workspace)
    assert again.code == 0, again.err
    many = tmp_path / "many"
    files = sorted(many.glob("*.safetensors"))
    assert len(files) > 3
    assert all(file.stat().st_size < 104_000 for file in files)  # 100,000 and a header
    left, right = (
        transformers.AutoModelForCausalLM.from_pretrained(at, dtype=torch.float32, local_files_only=True)
        for at in (folder, many)
    )
    ours = {name: p.bfloat16().float() for name, p in model.named_parameters()}
    for peer in (left, right):
        found = {name.removeprefix("model."): tensor for name, tensor in peer.state_dict().items()}
        for name, tensor in ours.items():
            key = f"{name}.weight" if name in ("embed_tokens", "lm_head") else name
            assert torch.equal(found[key], tensor), name
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text = "a small text,  that\nwas never merged: äöü"
    assert theirs(text)["input_ids"] == [run.end_of_text, *tokenizer.encode(text).ids]  # as in training
    assert theirs.decode(tokenizer.encode(text).ids) == text
    assert (theirs.eos_token, theirs.eos_token_id) == (END, run.end_of_text)
    assert left.generation_config.eos_token_id == run.end_of_text


def test_nothing_is_written_over_and_nothing_changed_is_read(
    plinth: Plinth, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    run, _ = committed(tmp_path / "workspace", tokenizer, BASE, torch.float32)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    told = plinth("export", "model", "latest", "full", "--unreleased", "-w", run.workspace)
    assert told.code == 5
    assert "full is not empty" in told.err
    missing = plinth("export", "model", "latest", "hf", "--unreleased", "--checkpoint", "7", "-w", run.workspace)
    assert missing.code == 3
    assert "no checkpoint 7" in missing.err
    weights = checkpoint.path(run.directory, 6) / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    changed = plinth("export", "model", "latest", "hf", "--unreleased", "-w", run.workspace)
    assert changed.code == 7
    assert "model.safetensors has changed" in changed.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "workspace"]
    assert [path.name for path in full.iterdir()] == ["mine"]


def test_what_nobody_released_is_marked_noted_and_needs_a_word(
    plinth: Plinth, tmp_path: Path, tokenizer: Tokenizer, trust_folder: Path
) -> None:
    run, _ = committed(tmp_path / "workspace", tokenizer, BASE, torch.float32)
    refused = plinth("export", "model", "latest", "hf", "-w", run.workspace)
    assert refused.code == 8
    assert "latest is not a release" in refused.err
    assert not (tmp_path / "workspace" / "exports").exists()
    made = plinth("export", "model", "latest", "hf", "--unreleased", "-w", run.workspace)
    assert made.code == 0, made.err
    assert "**UNRELEASED**" in (tmp_path / "hf" / "README.md").read_text()
    (note,) = (json.loads(path.read_bytes()) for path in (tmp_path / "workspace" / "exports").iterdir())
    statement = hashlib.sha256((tmp_path / "hf" / "EXPORT.json").read_bytes()).hexdigest()
    assert (note["name"], note["status"], note["statement"]) == (NAME, "UNRELEASED", statement)
    assert len(note["subject"]) == 64
    assert note["to"] == str(tmp_path / "hf")
    offline = plinth("verify", "hf", "--root", trust_folder / "root.json")
    assert offline.code == 8
    assert "is UNRELEASED: it was never released" in offline.err
    accepted = plinth("verify", "hf", "--root", trust_folder / "root.json", "--unreleased")
    assert accepted.code == 0, accepted.err
    assert "as trainer" in accepted.out
    assert "demo root" in accepted.out


@pytest.mark.parametrize("marked", ["source", "mixture"])
def test_what_is_tainted_is_not_exported(plinth: Plinth, tmp_path: Path, tokenizer: Tokenizer, marked: str) -> None:
    run, _ = committed(tmp_path / "workspace", tokenizer, BASE, torch.float32)
    ctx = Context(Workspace(tmp_path / "workspace"))
    taint.mark(ctx, {"source": "0" * 64, "mixture": run.mixture}[marked], "compliance", "taken down")
    told = plinth("export", "model", "latest", "hf", "--unreleased", "-w", run.workspace)
    assert told.code == 8
    assert "is tainted" in told.err
    assert "taken down" in told.err
    assert not (tmp_path / "hf").exists()


def test_a_checkpoint_that_is_tainted_is_not_exported(plinth: Plinth, tmp_path: Path, tokenizer: Tokenizer) -> None:
    run, _ = committed(tmp_path / "workspace", tokenizer, BASE, torch.float32)
    ctx = Context(Workspace(tmp_path / "workspace"))
    own = {"asset": "checkpoint", "step": "checkpoint", "version": "1", "params": {}, "parts": ()}
    made = Manifest.model_validate({**own, "inputs": {"mixture": run.mixture}, "stats": {"run_id": run.run_id}})
    ctx.refs.save(made)
    taint.mark(ctx, made.digest, "compliance", "leaks")
    told = plinth("export", "model", "latest", "hf", "--unreleased", "-w", run.workspace)
    assert (told.code, "leaks" in told.err) == (8, True)

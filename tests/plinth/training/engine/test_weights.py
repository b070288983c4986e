"""Runs that begin from files: the same weights on any division, read by share, in several files or one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import counted_tensors
import pytest
import torch

from plinth.compute.context import Context
from plinth.errors import CheckpointError, IntegrityError, MissingError
from plinth.model.decoder import Decoder, build
from plinth.model.division import Placement
from plinth.model.export import export_model
from plinth.model.folder import load_model
from plinth.model.hugging_face import INDEX, hf_name
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.tokens.tokenizer import tokenizer as tokenizers
from plinth.training import initial as beginning
from plinth.training.checkpoint.snapshot import parameters_digest
from plinth.training.config import RunConfig
from plinth.training.engine import weights
from plinth.training.engine.ranks import DTYPES
from plinth.training.parameters.initial import InitialState
from plinth.training.parameters.parallel import Parallel
from tests.model_folder import byte_level, save_folder
from tests.ranks import run_ranks

LLAMA = Model(layers=6, dim=64, heads=4, kv_heads=2, ffn_dim=192)
QWEN2 = LLAMA.model_copy(update={"qkv_bias": True, "tied_embeddings": False})
OLMO2 = LLAMA.model_copy(update={"architecture": "olmo2", "qk_norm": True})
PHI3 = LLAMA.model_copy(update={"layers": 2, "rotary_fraction": 0.5})
TEXTS = ["the same words again and again", "and some others: 12345"]

DIVISIONS: dict[str, tuple[str, Model, Parallel]] = {
    "one": ("fp32", LLAMA, Parallel(zero_stage=0)),
    "zero 3, qwen2": ("fp32", QWEN2, Parallel(zero_stage=3)),
    "tensor, qwen2": ("fp32", QWEN2, Parallel(tensor=2)),
    "tensor, olmo2": ("fp32", OLMO2, Parallel(tensor=2)),
    "pipeline, bf16": ("bf16", LLAMA, Parallel(pipeline=2)),
}


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path).ensure())


def folder(ctx: Context, model: Model, file_bytes: int = 10**9) -> Path:
    """Write a model of random weights in the form of an export, in files of at most `file_bytes`."""
    made, written = byte_level(TEXTS, 300), ctx.workspace.root / "plain"
    decoder = build(model, made.get_vocab_size(), 7)
    for parameter in decoder.parameters():
        parameter.data += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    save_folder(written, decoder, model, made, 32)
    target = ctx.workspace.root / f"exported-{model.architecture}-{model.qkv_bias}-{file_bytes}"
    export_model(written, written / "tokenizer.json", target, file_bytes=file_bytes)
    return target


def begin(ctx: Context, where: Path) -> Manifest:
    made = beginning.of_folder(ctx, where, "MIT")
    ctx.refs.save(made)
    return made


def state(initial: Manifest, tokenizer: Manifest, **more: Any) -> dict[str, Any]:
    """Fields of a run's configuration."""
    begun = InitialState(manifest=initial.digest, **more)
    return {"initial": begun, "tokenizer": tokenizer.digest, "vocab_size": tokenizer.stats["vocab_size"]}


@contextmanager
def opened(ctx: Context, initial: Manifest, config: RunConfig) -> Iterator[weights.SavedInitial]:
    with ExitStack() as stack:
        yield weights.SavedInitial(stack, ctx.store, initial, config, None)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_engines_of_any_division_begin_with_the_exported_weights(
    ctx: Context, make: Callable[..., RunConfig]
) -> None:
    """Export, begin, and the digest of the parameters is the same; no rank makes more than its share and one
    parameter."""
    configs, expected, exported = {}, {}, {}
    for name, (precision, model, parallel) in DIVISIONS.items():
        if model not in exported:
            exported[model] = folder(ctx, model, 200_000)
        where = exported[model]
        assert (where / INDEX).exists()
        initial = begin(ctx, where)
        tokenizer = tokenizers.of_model(ctx, initial)
        ctx.refs.save(tokenizer)
        own = state(initial, tokenizer)
        configs[name] = make(model=model, parallel=parallel, precision=precision, **own)
        expected[name] = load_model(where).to(DTYPES[precision])
    found = run_ranks(2, counted_tensors.open_all, configs)
    for key, config in configs.items():
        sizes = [parameter.numel() for parameter in expected[key].parameters()]
        gains = sum(size for size, one in zip(sizes, expected[key].parameters(), strict=True) if one.dim() == 1)
        dtype, parallel = DTYPES[config.precision], config.parallel
        divisor = 2 if parallel.zero_stage == 3 or parallel.model_ranks > 1 else 1
        end = max(sizes) if parallel.pipeline > 1 else 0
        bound = (sum(sizes) / divisor + gains + end) * dtype.itemsize + max(sizes) * (dtype.itemsize + 4) + 8192
        for digest, peak in (answer[key] for answer in found):
            assert digest == parameters_digest(expected[key].named_parameters()), key
            assert peak <= bound, key


def test_parts_of_packed_projections(ctx: Context, make: Callable[..., RunConfig]) -> None:
    where = folder(ctx, PHI3, 100_000)
    initial, whole = begin(ctx, where), load_model(where)
    config = make(model=PHI3, **state(initial, tokenizers.of_model(ctx, initial)))
    with opened(ctx, initial, config) as saved:
        for name, parameter in whole.named_parameters():
            last = torch.empty(parameter[len(parameter) // 2 :].shape)
            saved.fill(last, name, "matrix", Placement(tuple(parameter.shape), len(parameter) // 2))
            assert torch.equal(last, parameter[len(parameter) // 2 :]), name


def test_any_part_is_that_of_the_whole(ctx: Context, make: Callable[..., RunConfig]) -> None:
    where = folder(ctx, QWEN2)
    initial, whole = begin(ctx, where), load_model(where)
    config = make(model=QWEN2, **state(initial, tokenizers.of_model(ctx, initial)))
    names = dict(whole.named_parameters())
    with opened(ctx, initial, config) as saved:
        for name, rows, columns in (("layers.1.mlp.up_proj.weight", (5, 90), (3, 60)), ("lm_head", (0, 7), (0, 64))):
            target = torch.empty(rows[1] - rows[0], columns[1] - columns[0], dtype=torch.bfloat16)
            saved.fill(target, name, "matrix", Placement(tuple(names[name].shape), rows[0], columns[0]))
            assert torch.equal(target, names[name][slice(*rows), slice(*columns)].bfloat16())
        bias = torch.empty(9)
        saved.fill(bias, "layers.2.self_attn.q_proj.bias", "bias", Placement((64,), 11))
        assert torch.equal(bias, names["layers.2.self_attn.q_proj.bias"][11:20])


def test_only_files_that_hold_a_share_are_opened(ctx: Context, make: Callable[..., RunConfig]) -> None:
    initial = begin(ctx, folder(ctx, LLAMA, 100_000))
    config = make(model=LLAMA, **state(initial, tokenizers.of_model(ctx, initial)))
    files = [part for part in initial.parts if part.name.endswith(".safetensors")]
    with opened(ctx, initial, config) as saved:
        saved.fill(torch.empty(64), "norm.weight", "gain", Placement((64,)))
        assert len(files) > 5
        assert len(saved._open) == 1


@pytest.mark.parametrize("block", [7, 4096])
def test_a_resized_vocabulary_keeps_known_rows_and_begins_others_at_the_mean(
    ctx: Context, make: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(weights, "BLOCK_ROWS", block)
    where = folder(ctx, QWEN2)
    initial, parent = begin(ctx, where), load_model(where)
    other = byte_level(["quite other words, which nobody has seen"], 310)
    blob = ctx.store.put_bytes(other.to_str().encode())
    part = initial.named("tokenizer.json")[0].model_copy(update={"blob": blob})
    stats = {"vocab_size": other.get_vocab_size() + 2, "end_of_text": 0}  # two rows that no token has
    tokenizer = Manifest(
        asset="tokenizer", step="t", version="1", params={}, inputs={}, parts=(part,), stats=stats
    )
    ctx.refs.save(tokenizer)
    config = make(model=QWEN2, **state(initial, tokenizer, vocabulary="mean"))
    known = tokenizers.load(ctx.store, tokenizers.of_model(ctx, initial)).get_vocab()
    texts = {row: text for text, row in other.get_vocab().items()}
    with weights.weight_source(config) as saved:
        for name in ("embed_tokens", "lm_head"):
            held = dict(parent.named_parameters())[name]
            found = torch.empty(stats["vocab_size"] - 5, 64)
            saved.fill(found, name, "embedding", Placement((stats["vocab_size"], 64), 5))
            mean = held.double().mean(0).float()
            for row in range(5, stats["vocab_size"]):
                want = held[known[texts[row]]] if texts.get(row) in known else mean
                assert torch.allclose(found[row - 5], want, rtol=0, atol=1e-7), (name, row)
        assert sum(texts.get(row) in known for row in range(5, stats["vocab_size"])) not in (0, len(found))


def test_other_tensors_are_named_and_changed_files_refused(ctx: Context, make: Callable[..., RunConfig]) -> None:
    initial = begin(ctx, folder(ctx, LLAMA))
    own = state(initial, tokenizers.of_model(ctx, initial))
    missing = "model.layers.0.self_attn.q_proj.bias missing"
    with pytest.raises(CheckpointError, match=missing), opened(ctx, initial, make(model=QWEN2, **own)):
        pass
    wide = LLAMA.model_copy(update={"ffn_dim": 200})
    with opened(ctx, initial, make(model=wide, **own)) as saved:
        with pytest.raises(CheckpointError, match=r"up_proj.weight has shape \(192, 64\)") as caught:
            saved.fill(torch.empty(200, 64), "layers.0.mlp.up_proj.weight", "matrix", Placement((200, 64)))
        assert caught.value.expected == "(200, 64)"
    (part,) = initial.named("model.safetensors")
    path = ctx.store.path(part.blob)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError), opened(Context(ctx.workspace), initial, make(model=LLAMA, **own)):
        pass


def test_what_is_no_model_is_refused_when_it_is_hashed(ctx: Context) -> None:
    where = folder(ctx, LLAMA)
    described = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps(described | {"model_type": "gpt2"}))
    with pytest.raises(CheckpointError, match="model_type 'gpt2'"):
        beginning.of_folder(ctx, where, "MIT")
    (where / "tokenizer.json").unlink()
    with pytest.raises(MissingError, match=r"tokenizer\.json"):
        beginning.of_folder(ctx, where, "MIT")


def test_names_of_the_whole_model_are_published(ctx: Context) -> None:
    """Every parameter has its name in the files; otherwise a rank would ask for what is not there."""
    with torch.device("meta"):
        names = [hf_name(name) for name, _ in Decoder(QWEN2, 9).named_parameters()]
    assert len(set(names)) == len(names)

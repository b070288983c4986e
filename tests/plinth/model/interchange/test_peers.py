"""OLMo-core and Megatron read the weights that we write, and their models compute what ours does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from plinth.model.interchange.conversion import write_dcp
from plinth.model.parameters import Model
from tests.model_folder import scrambled
from tests.plinth.model.interchange.test_dcp import KINDS, ROWS, read_back, require_equal, saved

BOUND = 1e-5
TOKENS = torch.randint(0, ROWS, (2, 12), generator=torch.Generator().manual_seed(3))


def olmo_model(config: Model) -> Any:
    """The model of a recipe as OLMo-core builds it."""
    transformer = pytest.importorskip("olmo_core.nn.transformer")
    feed_forward = pytest.importorskip("olmo_core.nn.feed_forward")
    olmo2 = config.architecture == "olmo2"
    described = transformer.TransformerConfig.llama_like(
        d_model=config.dim,
        vocab_size=ROWS,
        n_layers=config.layers,
        n_heads=config.heads,
        n_kv_heads=config.kv_heads,
        head_dim=config.head_dim or None,
        qk_norm=config.qk_norm,
        use_head_qk_norm=config.qk_norm and not olmo2,
        layer_norm_eps=config.norm_eps,
        rope_theta=int(config.rope_theta),
        feed_forward=feed_forward.FeedForwardConfig(hidden_size=config.ffn_dim, bias=False),
        block_name=transformer.TransformerBlockType("reordered_norm" if olmo2 else "default"),
    )
    return described.build(init_device="cpu").eval()


@pytest.mark.parametrize("kind", ["llama", "qwen3", "olmo2"])
def test_olmo_core(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLMO_TRITON_CACHE_DIR_AUTO", "")  # set when the library is imported
    peer, config = olmo_model(KINDS[kind]), KINDS[kind]
    checkpoint = pytest.importorskip("olmo_core.distributed.checkpoint")
    ours = scrambled(config, ROWS)
    expected = saved(tmp_path / "hf", ours)
    write_dcp(tmp_path / "hf", "olmo-core", tmp_path / "dcp")
    checkpoint.load_model_and_optim_state(str(tmp_path / "dcp"), peer)
    with torch.no_grad():
        assert float((ours(TOKENS) - peer(TOKENS)).abs().max()) <= BOUND
    optimizer = torch.optim.AdamW(peer.parameters())
    checkpoint.save_model_and_optim_state(str(tmp_path / "theirs"), peer, optimizer)
    require_equal(read_back(tmp_path / "theirs", config, tmp_path / "back"), expected)


@pytest.fixture
def megatron() -> Iterator[Any]:
    """Megatron with one process on the CPU. Its own writer waits for CUDA devices, so only its reader is used."""
    parallel = pytest.importorskip("megatron.core.parallel_state")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        parallel.initialize_model_parallel(1, 1)
        yield pytest.importorskip("megatron.core.dist_checkpointing")
    finally:
        parallel.destroy_model_parallel()
        distributed.destroy_process_group()


def megatron_model(config: Model) -> Any:
    """The model of a recipe as Megatron builds it, from its own layers."""
    gpt = pytest.importorskip("megatron.core.models.gpt")
    specs = pytest.importorskip("megatron.core.models.gpt.gpt_layer_specs")
    settings = pytest.importorskip("megatron.core.transformer.transformer_config")
    described = settings.TransformerConfig(
        num_layers=config.layers,
        hidden_size=config.dim,
        num_attention_heads=config.heads,
        num_query_groups=config.kv_heads,
        kv_channels=config.head_width,
        ffn_hidden_size=config.ffn_dim,
        use_cpu_initialization=True,
        add_bias_linear=False,
        add_qkv_bias=config.qkv_bias,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        normalization="RMSNorm",
        layernorm_epsilon=config.norm_eps,
        qk_layernorm=config.qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )
    return gpt.GPTModel(
        described,
        specs.get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_norm),
        vocab_size=ROWS,
        max_sequence_length=32,
        position_embedding_type="rope",
        rotary_base=int(config.rope_theta),
        share_embeddings_and_output_weights=config.tied_embeddings,
    ).eval()


@pytest.mark.parametrize("kind", ["tied", "llama", "qwen2", "qwen3"])
def test_megatron(tmp_path: Path, kind: str, megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLASH", "FUSED", "UNFUSED"):
        monkeypatch.setenv(f"NVTE_{name}_ATTN", "1")  # set by the model
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    random = pytest.importorskip("megatron.core.tensor_parallel.random")
    monkeypatch.setattr(random.CudaRNGStatesTracker, "fork", lambda *_: nullcontext())  # for dropout, which is zero
    config = KINDS[kind]
    peer, ours = megatron_model(config), scrambled(config, ROWS)
    expected = saved(tmp_path / "hf", ours)
    write_dcp(tmp_path / "hf", "megatron", tmp_path / "dcp")
    peer.load_state_dict(megatron.load(peer.sharded_state_dict(), str(tmp_path / "dcp")), strict=False)
    found: dict[str, Tensor] = dict(peer.named_parameters())
    assert torch.equal(found["embedding.word_embeddings.weight"], expected["model.embed_tokens.weight"])
    positions = torch.arange(TOKENS.shape[1])[None].expand_as(TOKENS)
    future = torch.ones(1, 1, TOKENS.shape[1], TOKENS.shape[1]).triu(1).bool()
    with torch.no_grad():
        assert float((ours(TOKENS) - peer(TOKENS, positions, future)).abs().max()) <= BOUND

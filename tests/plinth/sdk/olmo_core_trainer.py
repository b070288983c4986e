"""OLMo-core's trainer as released, on the CPU: an OLMo 2 model, AdamW, one or more ranks over gloo.

FAULTS are those of `plain_trainer`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from olmo_core.nn.attention import AttentionBackendName
from olmo_core.nn.feed_forward import FeedForwardConfig
from olmo_core.nn.hf.checkpoint import save_hf_model
from olmo_core.nn.transformer import TransformerBlockType, TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import TrainerConfig, prepare_training_environment, teardown_training_environment
from olmo_core.train.checkpoint import Checkpointer
from olmo_core.train.train_module import TransformerTrainModuleConfig
from plain_trainer import before, fault, plant

import plinth.sdk
from plinth.sdk.callbacks import olmo_core


def main() -> None:
    with plinth.sdk.run(packages=olmo_core.PACKAGES) as run:
        plant(run)
        before(Checkpointer, "_save_metadata", lambda *_, **more: True, lambda: fault(run, "save", run.done))
        before(olmo_core.OlmoCoreCallback, "pre_step", lambda *_: True, lambda: fault(run, "step", run.done + 1))
        prepare_training_environment(seed=run.config.seed, backend="gloo")
        train(run)
        teardown_training_environment()


def train(run: plinth.sdk.Run) -> None:
    shape = run.model
    model = TransformerConfig.llama_like(
        d_model=shape["hidden_size"],
        vocab_size=shape["vocab_size"],
        n_layers=shape["num_hidden_layers"],
        n_heads=shape["num_attention_heads"],
        n_kv_heads=shape["num_key_value_heads"],
        qk_norm=True,
        layer_norm_eps=shape["rms_norm_eps"],
        rope_theta=int(shape["rope_theta"]),
        block_name=TransformerBlockType.reordered_norm,
        feed_forward=FeedForwardConfig(hidden_size=shape["intermediate_size"], bias=False),
        attn_backend=AttentionBackendName.torch,
    ).build(init_device="cpu")
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=run.config.micro_batch_sequences * run.config.sequence_tokens,
        max_sequence_length=run.config.sequence_tokens,
        optim=AdamWConfig(lr=run.config.optimizer.lr),
    ).build(model, device=torch.device("cpu"))
    trainer = TrainerConfig(
        save_folder=str(run.scratch),
        metrics_collect_interval=1,
        callbacks=olmo_core.callbacks(
            run, lambda folder: save_hf_model(folder, model.state_dict(), model, save_overwrite=True)
        ),
        **olmo_core.arguments(run),
    ).build(module, olmo_core.OlmoCoreDataLoader(run, run.scratch))
    trainer.fit()


if __name__ == "__main__":
    main()

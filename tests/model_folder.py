"""A model folder as a checkpoint has it, written by the safetensors library and not by ours, and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from plinth.model.decoder import Decoder, build
from plinth.model.division import file_tensors, state
from plinth.model.hugging_face import CONFIG, TOKENIZER, WEIGHTS, hf_config, hf_name
from plinth.model.parameters import Model

END = "<|endoftext|>"


def scrambled(config: Model, vocab_size: int) -> Decoder:
    """A decoder whose gains are not 1 and whose weights are large enough to matter."""
    model, generator = build(config, vocab_size, 3), torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        gain = 0.0 if name.endswith("bias") else 1.0
        parameter.data = noise * 0.1 + gain if parameter.dim() == 1 else noise / parameter.shape[-1] ** 0.5
    for buffer in model.buffers():
        buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)
    return model.eval()


def save_model(folder: Path, parameters: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write whole parameters and buffers, by their name in `Decoder`, and the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {hf_name(name): tensor.detach().contiguous() for name, tensor in file_tensors(parameters.items())}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(dict(config)))


def save_folder(folder: Path, model: Decoder, config: Model, tokenizer: Tokenizer, sequence_tokens: int) -> None:
    """Write a model with its tokenizer, whose token 0 begins documents."""
    published = hf_config(config, tokenizer.get_vocab_size(), sequence_tokens, "float32", 0)
    save_model(folder, dict(state(model)), published)
    tokenizer.save(str(folder / TOKENIZER))


def byte_level(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level tokenizer as the pipeline's are, with `END` as token 0."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made

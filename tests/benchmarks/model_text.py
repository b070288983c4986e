"""A model folder and text for benchmarks of scoring and writing: weights at random, text that nobody here wrote."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from plinth.model.decoder import Decoder, build
from plinth.model.hugging_face import hf_config
from plinth.model.parameters import Model
from tests.model_folder import save_model

END = "<|endoftext|>"


def text(characters: int) -> str:
    """Modules of Python's standard library, one after the other."""
    found: list[str] = []
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        found.append(path.read_text(encoding="utf-8", errors="ignore"))
        if sum(map(len, found)) >= characters:
            break
    return "".join(found)[:characters]


def folder(place: Path, config: Model, *, vocabulary: int, sequence_tokens: int) -> tuple[Decoder, Tokenizer]:
    """A folder that Hugging Face loads too, with a byte-level tokenizer of that text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(text(2_000_000).splitlines(keepends=True), trainer)
    model = build(config, vocabulary, seed=1)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        if parameter.dim() > 1:  # large enough that predictions differ
            parameter.data = torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5
    published = hf_config(config, vocabulary, sequence_tokens, "float32", 0)
    save_model(place, dict(model.named_parameters()), published)
    tokenizer.save(str(place / "tokenizer.json"))
    return model.eval(), tokenizer

"""A model folder with random weights and real text, for benchmarks of scoring and generation."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from tokenizers import Tokenizer

from plinth.model.decoder import Decoder, build
from plinth.model.parameters import Model
from tests.model_folder import byte_level, save_folder


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
    tokenizer = byte_level(text(2_000_000).splitlines(keepends=True), vocabulary)
    model = build(config, vocabulary, seed=1)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        if parameter.dim() > 1:  # large enough that predictions differ
            parameter.data = torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5
    save_folder(place, model, config, tokenizer, sequence_tokens)
    return model.eval(), tokenizer

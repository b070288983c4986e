"""Total -log2 p of each document under a checkpoint.

    B  windows of a batch    S  tokens of the longest window in it    V  vocabulary

Batches are fixed by the documents and the recipe, each is computed by one thread, and sums run in the
order of the documents: the numbers do not depend on how many cores there are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from plinth.errors import CheckpointError, TrainingError
from plinth.evaluation.windows import ScoringWindow, windows
from plinth.model.decoder import Decoder
from plinth.model.folder import load_model
from plinth.tokens.tokenizer.encode import encode_texts

IGNORED = -100  # a target that is not scored


class Scores(NamedTuple):
    """Per document: how many tokens it has, and their total -log2 p."""

    tokens: NDArray[np.int64]  # [documents]
    bits: NDArray[np.float64]  # [documents]


class Checkpoint(NamedTuple):
    """A model with its tokenizer, as scoring needs them."""

    model: Decoder
    tokenizer: Tokenizer
    end_of_text: int
    sequence_tokens: int


def load(directory: Path) -> Checkpoint:
    """A model with its tokenizer, on the CPU in FP32, or as saved on the first CUDA device.

    Raises:
        CheckpointError: a file is missing, broken, or does not fit the others.
    """
    model = load_model(directory)
    model = model.to("cuda") if torch.cuda.is_available() else model.float()
    try:
        config = json.loads((directory / "config.json").read_text())
        end_of_text, sequence_tokens = int(config["eos_token_id"]), int(config["max_position_embeddings"])
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as error:  # the tokenizers library raises bare `Exception`
        raise CheckpointError(
            f"{directory} cannot be evaluated",
            found=f"{type(error).__name__}: {error}",
            expected="tokenizer.json, and eos_token_id and max_position_embeddings in config.json",
        ) from error
    if tokenizer.get_vocab_size() > model.vocab_size:
        raise CheckpointError(
            f"the tokenizer in {directory} does not fit the model",
            found=f"{tokenizer.get_vocab_size()} tokens",
            expected=f"at most {model.vocab_size}",
        )
    tokenizer.encode_special_tokens = True  # text never becomes a special token, as in the shards
    return Checkpoint(model, tokenizer, end_of_text, sequence_tokens)


def score(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    batch_sequences: int,
    workers: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scores:
    """Score documents; `progress(tokens done, tokens in all)` is called after each batch.

    Raises:
        TrainingError: the tokenizer loses text, or a probability is not a number.
    """
    encoded = _encode(checkpoint, texts)
    jobs = [
        (document, window)
        for document, ids in enumerate(encoded)
        for window in windows(len(ids) - 1, checkpoint.sequence_tokens)
    ]
    jobs.sort(key=lambda job: (-job[1].length, job[0], job[1].start))  # batches of one length waste least
    batches = [jobs[start : start + batch_sequences] for start in range(0, len(jobs), batch_sequences)]
    total, done = sum(len(ids) - 1 for ids in encoded), 0
    parts: dict[tuple[int, int], float] = {}
    with ThreadPoolExecutor(1 if torch.cuda.is_available() else max(1, workers)) as threads:
        for batch, bits in zip(
            batches, threads.map(lambda each: _batch(checkpoint, encoded, each), batches), strict=True
        ):
            parts.update(
                {(document, window.start): value for (document, window), value in zip(batch, bits, strict=True)}
            )
            done += sum(window.end + 1 - window.scored for _, window in batch)
            progress(done, total)
    sums = [0.0] * len(texts)
    for document, start in sorted(parts):
        sums[document] += parts[document, start]
    if not all(math.isfinite(value) for value in sums):
        raise TrainingError(
            "the model gives probabilities that are not numbers",
            found=f"{sum(not math.isfinite(value) for value in sums)} of {len(sums)} documents",
            expected="finite bits for every document",
            remedy="the run diverged: look at its loss curve, and roll back to an earlier checkpoint",
        )
    return Scores(np.array([len(ids) - 1 for ids in encoded], dtype=np.int64), np.array(sums, dtype=np.float64))


def _encode(checkpoint: Checkpoint, texts: Sequence[str]) -> list[NDArray[np.int64]]:
    """The stream of each document: end-of-text, then its tokens."""
    streams = []
    for text, ids in zip(texts, encode_texts(checkpoint.tokenizer, texts, "<u4"), strict=True):
        if checkpoint.tokenizer.decode(ids.tolist(), skip_special_tokens=False) != text:
            raise TrainingError(
                "the tokenizer does not give the text back, so bits per byte would not count all of it",
                found=f"a document that begins {text[:40]!r}",
                expected="the same text after encoding and decoding",
                remedy="train a byte-level tokenizer without normalisation",
            )
        streams.append(np.concatenate(([checkpoint.end_of_text], ids.astype(np.int64))))
    return streams


@torch.inference_mode()
def _batch(
    checkpoint: Checkpoint, encoded: Sequence[NDArray[np.int64]], batch: Sequence[tuple[int, ScoringWindow]]
) -> list[float]:
    """Bits of each window; padding comes last, where causal attention never looks back from."""
    longest = max(window.length for _, window in batch)
    tokens = torch.zeros((len(batch), longest), dtype=torch.int64)
    targets = torch.full((len(batch), longest), IGNORED, dtype=torch.int64)
    for row, (document, window) in enumerate(batch):
        stream = torch.from_numpy(encoded[document])
        tokens[row, : window.length] = stream[window.start : window.end]
        first = window.scored - 1 - window.start
        targets[row, first : window.length] = stream[window.scored : window.end + 1]
    device = checkpoint.model.embed_tokens.device
    logits: Tensor = checkpoint.model(tokens.to(device))  # [B, S, V]
    nats = torch.stack(list(_nats(logits, targets.to(device))))
    return [value / math.log(2) for value in nats.tolist()]


def _nats(logits: Tensor, targets: Tensor) -> Iterator[Tensor]:
    """Sum of -ln p over the scored targets of each row, in FP64; row by row, so that memory is one [S, V]."""
    for row, wanted in zip(logits, targets, strict=True):
        kept = wanted != IGNORED
        losses = functional.cross_entropy(row[kept].float(), wanted[kept], reduction="none")
        yield losses.double().sum()

"""A folder's model with its tokenizer and limits, ready to score and to write."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from plinth.errors import CheckpointError
from plinth.evaluation.engine import encode, likelihood
from plinth.evaluation.engine.generation import Writer
from plinth.evaluation.engine.records import Generated, Likelihoods, Prompt, Request, Sampling, Scores
from plinth.model.decoder import Decoder
from plinth.model.folder import Digests, load_model, read_text
from plinth.model.hugging_face import CONFIG, TOKENIZER

Told = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    return


class Checkpoint(NamedTuple):
    """A model with its tokenizer."""

    model: Decoder
    tokenizer: Tokenizer
    start: int  # the token that documents begin with
    ends: tuple[int, ...]  # tokens that end a document
    sequence_tokens: int  # the training length

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.embed_tokens.device

    def documents(
        self,
        texts: Sequence[str],
        *,
        per_token: bool = False,
        workers: int = 1,
        batch_tokens: int | None = None,
        progress: Told = _silent,
    ) -> Scores:
        """Bits of whole documents, in windows of the training length (`evaluation.windows`).

        Raises:
            TrainingError: the tokenizer loses text, or a probability is not a number.
        """
        streams = encode.documents(self.tokenizer, self.start, texts)
        found = self._score(streams, workers, batch_tokens, progress)
        tokens = np.array([one.scored for one in streams], dtype=np.int64)
        if not per_token:
            return Scores(tokens, found.bits)
        return Scores(tokens, found.bits, encode.ends(self.tokenizer, texts, streams), found.token_bits)

    def likelihoods(
        self,
        requests: Sequence[Request],
        *,
        workers: int = 1,
        batch_tokens: int | None = None,
        progress: Told = _silent,
    ) -> Likelihoods:
        """Bits of continuations after their prompts.

        Raises:
            TrainingError: a probability is not a number.
        """
        streams = encode.requests(self.tokenizer, self.start, requests)
        found = self._score(streams, workers, batch_tokens, progress)
        tokens = np.array([one.scored for one in streams], dtype=np.int64)
        cut = np.array([len(one.ids) - 1 > self.sequence_tokens for one in streams], dtype=np.bool_)
        return Likelihoods(tokens, found.bits, found.greedy, cut, found.token_bits)

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        workers: int = 1,
        spread: bool = False,
        progress: Told = _silent,
    ) -> list[Generated]:
        """Text after prompts; `progress` is told of prompts."""
        writer = Writer(self.model, self.tokenizer, self.start, self.ends, self.sequence_tokens, sampling)
        return writer.write(prompts, workers, spread, progress)

    def _score(
        self, streams: Sequence[encode.ScoredStream], workers: int, batch_tokens: int | None, progress: Told
    ) -> likelihood.StreamScores:
        return likelihood.score(
            self.model,
            streams,
            self.sequence_tokens,
            device=self.device,
            dtype=self.model.embed_tokens.dtype,
            workers=workers,
            batch_tokens=batch_tokens,
            progress=progress,
        )


def load(folder: Path, digests: Digests = None) -> Checkpoint:
    """A model with its tokenizer, on the CPU in FP32, or as saved on the first CUDA device.

    Args:
        digests: SHA-256 of its files, where they are known; compared on the bytes that are used.

    Raises:
        CheckpointError: a file is missing, broken, another, or does not fit the others.
    """
    model = load_model(folder, digests)
    model = model.to("cuda") if torch.cuda.is_available() else model.float()
    try:
        config = json.loads(read_text(folder, CONFIG, digests))
        ends = _ids(config.get("eos_token_id"))
        start = [*_ids(config.get("bos_token_id")), *ends][0]
        sequence_tokens = int(config["max_position_embeddings"])
        tokenizer = Tokenizer.from_str(read_text(folder, TOKENIZER, digests))
    except CheckpointError:
        raise
    except Exception as error:  # the tokenizers library raises bare `Exception`
        raise CheckpointError(
            f"{folder} cannot be evaluated",
            found=f"{type(error).__name__}: {error}",
            expected=f"{TOKENIZER}, and eos_token_id and max_position_embeddings in {CONFIG}",
        ) from error
    if tokenizer.get_vocab_size() > model.vocab_size:
        raise CheckpointError(
            f"the tokenizer in {folder} does not fit the model",
            found=f"{tokenizer.get_vocab_size()} tokens",
            expected=f"at most {model.vocab_size}",
        )
    tokenizer.encode_special_tokens = True  # text never becomes a special token, as in the shards
    return Checkpoint(model, tokenizer, start, ends, sequence_tokens)


def _ids(found: Any) -> tuple[int, ...]:
    """Of a field that holds one id, several, or none."""
    if found is None:
        return ()
    return tuple(int(one) for one in found) if isinstance(found, list) else (int(found),)

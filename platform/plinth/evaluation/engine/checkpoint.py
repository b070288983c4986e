"""Model loaded from a folder, with its tokenizer and limits, ready for scoring and generation."""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from plinth.compute.engine import torch_threads
from plinth.errors import CheckpointError
from plinth.evaluation.engine import batches, inference
from plinth.evaluation.engine.inference import Writer
from plinth.evaluation.engine.records import Generated, Likelihoods, Prompt, Request, Sampling, Scores
from plinth.model.decoder import Decoder, generate
from plinth.model.folder import Digests, load_model, read_text
from plinth.model.hugging_face import CONFIG, TOKENIZER

Told = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    return


class Checkpoint(NamedTuple):
    """A loaded model with its tokenizer."""

    model: Decoder
    tokenizer: Tokenizer
    start: int  # start-of-document token
    ends: tuple[int, ...]  # end-of-document tokens
    sequence_tokens: int  # the training length

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
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
        """Return the bits (-log2 p) of whole documents, in windows of the training length (`engine.batches.windows`).

        Raises:
            TrainingError: the tokenizer loses text, or a probability is not a number.
        """
        streams = batches.documents(self.tokenizer, self.start, texts)
        found = self._score(streams, workers, batch_tokens, progress)
        tokens = np.array([one.scored for one in streams], dtype=np.int64)
        if not per_token:
            return Scores(tokens, found.bits)
        return Scores(tokens, found.bits, batches.ends(self.tokenizer, texts, streams), found.token_bits)

    def likelihoods(
        self,
        requests: Sequence[Request],
        *,
        workers: int = 1,
        batch_tokens: int | None = None,
        progress: Told = _silent,
    ) -> Likelihoods:
        """Return the bits (-log2 p) of continuations after their prompts.

        Raises:
            TrainingError: a probability is not a number.
        """
        streams = batches.requests(self.tokenizer, self.start, requests)
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
        """Generate text after prompts. Progress is reported in prompts."""
        writer = Writer(self.model, self.tokenizer, self.start, self.ends, self.sequence_tokens, sampling)
        return writer.write(prompts, workers, spread, progress)

    def _score(
        self, streams: Sequence[batches.ScoredStream], workers: int, batch_tokens: int | None, progress: Told
    ) -> inference.StreamScores:
        return inference.score(
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
    """Load a model with its tokenizer to the first CUDA device in the saved precision, or to the CPU in FP32.

    Args:
        folder: model folder.
        digests: SHA-256 of the model's files, if known; the loaded bytes are checked against them.

    Raises:
        CheckpointError: a file is missing or corrupt, has another digest, or does not fit the other files.
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
    """Return the token ids in a configuration field that has one id, a list of ids, or none."""
    if found is None:
        return ()
    return tuple(int(one) for one in found) if isinstance(found, list) else (int(found),)


#: Numbers of concurrent sequences, and new tokens of each.
SEQUENCES = (1, 8)
NEW = 32
REPEATS = 3


def measured(model: Decoder, sequence_tokens: int, workers: int) -> dict[str, Any]:
    """Return the medians, over repetitions, of the time to the first token, the tokens per second after it, and the
    memory.

    The prompt has half the training length, and all threads work on one batch. `kv_bytes_per_token` depends on the
    precision of the measurement.
    """
    prompt, new = max(1, sequence_tokens // 2), max(2, min(NEW, sequence_tokens // 2))
    _forget_peak(model)
    with torch_threads(workers):
        first = _seconds(model, 1, prompt, 1)
        rates = {}
        for count in SEQUENCES:
            beginning = first if count == 1 else _seconds(model, count, prompt, 1)
            rates[str(count)] = count * (new - 1) / max(_seconds(model, count, prompt, new) - beginning, 1e-9)
    width, config = model.embed_tokens.dtype.itemsize, model.config
    return {
        "device": torch.cuda.get_device_name() if model.embed_tokens.is_cuda else "cpu",
        "dtype": str(model.embed_tokens.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "prompt_tokens": prompt,
        "first_token_s": first,
        "tokens_per_s": rates,  # by sequences at once
        "kv_bytes_per_token": 2 * config.layers * config.kv_heads * config.head_width * width,
        "peak_memory_bytes": _peak(model),
    }


def _seconds(model: Decoder, count: int, prompt: int, new: int) -> float:
    """Return the median time in seconds to generate `new` tokens after `count` prompts of `prompt` tokens each."""
    prompts = [[(7 * row + 3 * at) % model.vocab_size for at in range(prompt)] for row in range(count)]

    def once() -> None:
        generate(model, prompts, [new] * count, lambda logits, rows: logits.argmax(-1).tolist(), lambda row, ids: False)

    return statistics.median(_timed(once) for _ in range(REPEATS))


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()  # tokens are on the host at the end, so no device work is pending
    return time.perf_counter() - started


def _peak(model: Decoder) -> int:
    """Return the peak memory in bytes since the last call of `_forget_peak`. It is the memory of the device, or of this
    process (with Python and libraries) on a CPU."""
    if model.embed_tokens.is_cuda:
        return int(torch.cuda.max_memory_allocated())
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _forget_peak(model: Decoder) -> None:
    """Reset the peak memory that `_peak` reports."""
    if model.embed_tokens.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

"""A model's speed and memory on this machine, in the process that has loaded it."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from plinth.compute.threads import torch_threads
from plinth.model.decoder import Decoder
from plinth.model.generation import generate

#: Sequences at once, and new tokens of each.
SEQUENCES = (1, 8)
NEW = 32
REPEATS = 3


def measured(model: Decoder, sequence_tokens: int, workers: int) -> dict[str, Any]:
    """Seconds to the first token after a prompt, tokens per second after it, and memory; medians of a few times.

    The prompt is half the training length, all threads work on one batch. `kv_bytes_per_token` is of the precision in
    use here.
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
    """Median time to write after as many prompts of one length."""
    prompts = [[(7 * row + 3 * at) % model.vocab_size for at in range(prompt)] for row in range(count)]

    def once() -> None:
        generate(model, prompts, [new] * count, lambda logits, rows: logits.argmax(-1).tolist(), lambda row, ids: False)

    return statistics.median(_timed(once) for _ in range(REPEATS))


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()  # ends with tokens on the host, so nothing is left on a device
    return time.perf_counter() - started


def _peak(model: Decoder) -> int:
    """Bytes since `_forget_peak`, of the device, or of this process: weights, keys and values, Python and libraries."""
    if model.embed_tokens.is_cuda:
        return int(torch.cuda.max_memory_allocated())
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _forget_peak(model: Decoder) -> None:
    """What this process did before is not part of serving."""
    if model.embed_tokens.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

"""Inference for any model with the interface of `Decoder`: -log2 p of every token, and generation."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from plinth.compute.engine import torch_threads
from plinth.errors import TrainingError
from plinth.evaluation.engine.batches import BATCH_TOKENS, Batch, ScoredStream, plan
from plinth.evaluation.engine.records import Generated, Prompt, Sampling
from plinth.model.attention import Layout, branch_mask
from plinth.model.decoder import Decoder, generate
from plinth.tokens.tokenizer.encode import encode_texts

# Scoring of batches: -log2 p of every token, for a loaded model or one in training.
#
# One thread computes one batch and sums are exact (`math.fsum`), so results do not depend on the number of threads or
# ranks. `score` runs in one process; ranks of a training run divide the batches of one plan, call `run` for each, and
# combine the answers with `collect`.

#: Number of tokens per batch on a CPU, so that a layer's data stays in the caches of a core.
CPU_BATCH_TOKENS = 1024

#: (tokens [B, S], layout=Layout) -> [N, 2] of `Decoder.arranged`: a decoder, or a wrapper of one.
Forward = Callable[..., Tensor]


class StreamScores(NamedTuple):
    """Scores per stream: total -log2 p, a flag that every token is the most probable one, and -log2 p of every
    token."""

    bits: NDArray[np.float64]  # [streams]
    greedy: NDArray[np.bool_]  # [streams]
    token_bits: NDArray[np.float64]  # [scored tokens of all streams]


def score(
    forward: Forward,
    streams: Sequence[ScoredStream],
    sequence_tokens: int,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    workers: int = 1,
    batch_tokens: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StreamScores:
    """Score streams, and call `progress(tokens done, total tokens)` after each batch.

    Args:
        forward: the model.
        streams: streams to score.
        sequence_tokens: the training length.
        device, dtype: device and dtype of the model's activations.
        workers: number of threads; 1 if the device is not the CPU.
        batch_tokens: tokens per batch, by default `tokens_of_batch`.
        progress: callback for progress.

    Raises:
        TrainingError: a probability is not a number.
    """
    batches = plan(streams, sequence_tokens, batch_tokens or tokens_of_batch(device))
    done, total = 0, sum(one.targets for one in batches)
    answers = []
    with ThreadPoolExecutor(max(1, workers) if torch.device(device).type == "cpu" else 1) as threads:
        for batch, answer in zip(
            batches, threads.map(lambda one: run(forward, one, device, dtype).cpu().numpy(), batches), strict=True
        ):
            answers.append(answer)
            done += batch.targets
            progress(done, total)
    return collect(streams, batches, answers)


def tokens_of_batch(device: torch.device | str) -> int:
    """Return the number of tokens per batch on a device. Scores from different batch sizes can differ by rounding."""
    return CPU_BATCH_TOKENS if torch.device(device).type == "cpu" else BATCH_TOKENS


@torch.no_grad()
def run(forward: Forward, batch: Batch, device: torch.device | str, dtype: torch.dtype, *, multiple: int = 1) -> Tensor:
    """Return -ln p of every target of a batch, in order, and 1 or 0 for being the most probable token: FP32 [N, 2].

    `multiple` is the number of ranks that share the sequences. Lengths are padded to a multiple of it.
    """
    arrays = batch.arrays(multiple)
    tokens, positions, outputs, which, targets, order = (
        torch.from_numpy(array).to(device)
        for array in (arrays.tokens, arrays.positions, arrays.outputs, arrays.which, arrays.targets, arrays.order)
    )
    mask = None if arrays.branches is None else branch_mask(torch.from_numpy(arrays.branches).to(device), dtype)
    found = forward(tokens, layout=Layout(positions, mask, outputs, which, targets))
    answer = torch.empty_like(found)
    answer[order] = found
    return answer


def collect(
    streams: Sequence[ScoredStream], batches: Iterable[Batch], answers: Iterable[NDArray[np.float32]]
) -> StreamScores:
    """Combine the results of batches into scores per stream.

    Raises:
        TrainingError: a probability is not a number.
    """
    starts = list(accumulate((one.scored for one in streams), initial=0))
    token_bits, greedy = np.zeros(starts[-1]), np.ones(starts[-1], np.bool_)
    for batch, answer in zip(batches, answers, strict=True):
        at = 0
        for branch in (one for row in batch.rows for one in row.branches):
            size = len(branch.targets)
            nats, best = answer[at : at + size, 0].astype(np.float64), answer[at : at + size, 1] > 0
            for job in branch.jobs:
                first = starts[job.stream] + job.offset
                token_bits[first : first + size], greedy[first : first + size] = nats / math.log(2), best
            at += size
    spans = list(pairwise(starts))
    sums = np.array([math.fsum(token_bits[a:b]) for a, b in spans])
    if not np.isfinite(sums).all():
        raise TrainingError(
            "the model yields probabilities that are not finite",
            found=f"{int((~np.isfinite(sums)).sum())} of {len(sums)} texts have no finite number of bits",
            expected="finite bits for every text",
            remedy="the run diverged: check its loss curve and roll back to an earlier checkpoint",
        )
    return StreamScores(sums, np.array([bool(greedy[a:b].all()) for a, b in spans]), token_bits)


# Generation: greedy or sampled, until a stop string, the end of a document, or a number of tokens.
#
# The prompts determine the batches; one thread computes each. Samples depend on the seed, the prompt, and the number of
# earlier equal prompts; other prompts in the batch matter only through rounding. Logits then differ by about 1e-6 of
# their size, so a token can differ only if two logits are that close.

#: Number of prompts per batch, and maximum tokens of keys and values per batch unless a single prompt needs more.
BATCH_PROMPTS = 16
BATCH_SLOTS = 16_384


class Writer:
    """Generator of text after prompts.

    Args:
        model, tokenizer: model and tokenizer of a checkpoint.
        start: start-of-document token.
        ends: end-of-document tokens.
        sequence_tokens: training length, which is the maximum total length of prompt and generated text.
        sampling: sampling parameters.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        start: int,
        ends: Sequence[int],
        sequence_tokens: int,
        sampling: Sampling,
    ) -> None:
        self.model, self.tokenizer, self.start, self.ends = model, tokenizer, start, frozenset(ends)
        self.sequence_tokens, self.sampling = sequence_tokens, sampling
        # a stop string of n bytes ends within the last n tokens; more tokens are decoded so that characters are whole
        self._tail = 4 + max((len(stop.encode()) for stop in sampling.stop), default=0)

    def write(
        self,
        prompts: Sequence[Prompt],
        workers: int = 1,
        spread: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Generated]:
        """Generate text after each prompt, and call `progress(prompts done, total prompts)` after each batch.

        If `spread` is True, all threads work on a single batch, and rounding may differ.
        """
        texts = [one for one in prompts if isinstance(one, str)]
        encoded = iter(encode_texts(self.tokenizer, texts, "<u4"))
        ids = [[self.start, *next(encoded).tolist()] if isinstance(one, str) else list(one) for one in prompts]
        ids = [one or [self.start] for one in ids]
        limits = [self._limit(len(one)) for one in ids]
        draws = self._draws(ids)
        batches = _batches(ids, limits)
        found: list[Generated | None] = [None] * len(ids)
        done = 0
        alone = spread and len(batches) == 1
        with (
            ThreadPoolExecutor(max(1, workers) if self.model.embed_tokens.device.type == "cpu" else 1) as pool,
            torch_threads(workers if alone else torch.get_num_threads()),
        ):
            run = map if alone else pool.map
            written = run(lambda batch: self._batch(batch, ids, limits, draws), batches)
            for batch, answers in zip(batches, written, strict=True):
                for index, answer in zip(batch, answers, strict=True):
                    found[index] = answer
                done += len(batch)
                if progress:
                    progress(done, len(ids))
        return [one for one in found if one is not None]

    def _limit(self, length: int) -> int:
        """Return the maximum number of new tokens for a prompt of `length` tokens. A long prompt is truncated on the
        left, but keeps at least half of the training length."""
        return max(1, min(self.sampling.max_tokens, self.sequence_tokens - min(length, self.sequence_tokens // 2)))

    def _draws(self, ids: Sequence[Sequence[int]]) -> list[np.random.Generator]:
        """Return one random generator per prompt. Its seed combines the sampling seed, the prompt, and the number of
        equal prompts before it."""
        seen: Counter[bytes] = Counter()
        found = []
        for one in ids:
            content = np.array(one, dtype="<i8").tobytes()
            named = f"{self.sampling.seed}:{seen[content]}:".encode() + content
            seen[content] += 1
            key = int.from_bytes(hashlib.blake2b(named, digest_size=16).digest(), "big")
            found.append(np.random.Generator(np.random.Philox(key=key)))
        return found

    def _batch(
        self,
        batch: Sequence[int],
        ids: Sequence[Sequence[int]],
        limits: Sequence[int],
        draws: Sequence[np.random.Generator],
    ) -> list[Generated]:
        kept = [ids[index][-max(1, self.sequence_tokens - limits[index]) :] for index in batch]
        written = generate(
            self.model,
            kept,
            [limits[index] for index in batch],
            lambda logits, rows: self._choose(logits, [draws[batch[row]] for row in rows]),
            lambda row, tokens: tokens[-1] in self.ends or self._stops(tokens),
        )
        return [
            self._generated(tokens, len(one) < len(ids[index]))
            for index, one, tokens in zip(batch, kept, written, strict=True)
        ]

    def _choose(self, logits: Tensor, draws: Sequence[np.random.Generator]) -> list[int]:
        """Choose a token for each row of the logits [B, V]."""
        if self.sampling.temperature == 0:
            return [int(token) for token in logits.argmax(-1).tolist()]
        chances = torch.softmax(logits.double() / self.sampling.temperature, -1)
        chances, order = chances.sort(dim=-1, descending=True, stable=True)
        mass = chances.cumsum(-1)
        kept = ((mass - chances) < self.sampling.top_p).sum(-1, keepdim=True)  # including the token that reaches it
        points = torch.tensor([[one.random()] for one in draws], dtype=torch.float64, device=logits.device)
        chosen = torch.searchsorted(mass, points * mass.gather(-1, kept - 1), right=True)
        return [int(token) for token in order.gather(-1, chosen.minimum(kept - 1)).squeeze(-1).tolist()]

    def _stops(self, tokens: list[int]) -> bool:
        if not self.sampling.stop:
            return False
        tail = self._text(tokens[-self._tail :])
        return any(stop in tail for stop in self.sampling.stop)

    def _generated(self, tokens: list[int], cut: bool) -> Generated:
        if tokens[-1] in self.ends:
            return Generated(self._text(tokens[:-1]), tuple(tokens[:-1]), "end_of_text", cut)
        text = self._text(tokens)
        found = [at for at in (text.find(stop) for stop in self.sampling.stop) if at >= 0]
        return Generated(text[: min(found, default=len(text))], tuple(tokens), "stop" if found else "length", cut)

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


def _batches(ids: Sequence[Sequence[int]], limits: Sequence[int]) -> list[list[int]]:
    """Group prompts of similar length into batches, longest first, independent of the order of the prompts."""
    batches: list[list[int]] = []
    slots = 0
    for index in sorted(range(len(ids)), key=lambda one: (-len(ids[one]), ids[one])):
        slots = max(slots, len(ids[index]) + limits[index])
        last = batches[-1] if batches else None
        if last and len(last) < BATCH_PROMPTS and (len(last) + 1) * slots <= BATCH_SLOTS:
            last.append(index)
        else:
            batches.append([index])
            slots = len(ids[index]) + limits[index]
    return batches

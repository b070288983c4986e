"""Tokens after prompts, with the keys and values of what was seen kept.

    B  sequences    V  vocabulary

The batch runs until its last sequence has ended; sequences that have are left out once they are half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from plinth.model.decoder import Decoder
from plinth.model.layout import KeyValues, Layout

#: Chooses the next token of sequences, by their numbers, from their logits [B, V].
Choose = Callable[[Tensor, Sequence[int]], list[int]]


@torch.inference_mode()
def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    choose: Choose,
    ended: Callable[[int, list[int]], bool],
) -> list[list[int]]:
    """The tokens after each prompt.

    Args:
        model: whole, in evaluation.
        prompts: ids, at least one each.
        limits: how many tokens to write after each, at least one.
        choose: the next tokens.
        ended: whether a sequence, by number and with what was written so far, is complete.
    """
    written: list[list[int]] = [[] for _ in prompts]
    device, dtype = model.embed_tokens.device, model.embed_tokens.dtype
    lengths = torch.tensor([len(one) for one in prompts], device=device)
    slots = max(len(one) + limit for one, limit in zip(prompts, limits, strict=True))
    cache = KeyValues(model.config, len(prompts), slots, device, dtype)
    rows = list(range(len(prompts)))  # the sequences of the batch
    live = set(rows)
    logits = _read(model, prompts, lengths, cache)
    while True:
        chosen = choose(logits, rows)
        for row, token in zip(rows, chosen, strict=True):
            if row in live:
                written[row].append(token)
                if len(written[row]) >= limits[row] or ended(row, written[row]):
                    live.remove(row)
        if not live:
            return written
        if 2 * len(live) <= len(rows):
            kept = [index for index, row in enumerate(rows) if row in live]
            chosen, rows = [chosen[index] for index in kept], [rows[index] for index in kept]
            cache.keep(torch.tensor(kept, device=device))
            lengths = lengths[kept]
        logits = _write(model, torch.tensor(chosen, device=device), lengths, cache, slots)
        lengths = lengths + 1


def _read(model: Decoder, prompts: Sequence[Sequence[int]], lengths: Tensor, cache: KeyValues) -> Tensor:
    """Logits [B, V] after the prompts; padding comes last, where nothing looks back from."""
    longest = max(len(one) for one in prompts)
    tokens = torch.tensor([[*one, *[0] * (longest - len(one))] for one in prompts], device=lengths.device)
    positions = torch.arange(longest, device=lengths.device).expand(len(prompts), -1)
    last = torch.arange(len(prompts), device=lengths.device) * longest + lengths - 1
    return model.arranged(tokens, Layout(positions, outputs=last, cache=cache))


def _write(model: Decoder, tokens: Tensor, lengths: Tensor, cache: KeyValues, slots: int) -> Tensor:
    """Logits [B, V] after one more token of each sequence, which stands at position `lengths` [B]."""
    positions = lengths.clamp(max=slots - 1).unsqueeze(1)  # of sequences that have ended, anywhere
    seen = torch.arange(int(positions.max()) + 1, device=tokens.device)
    unseen = (seen > positions)[:, None, None, :]
    mask = torch.zeros(unseen.shape, dtype=model.embed_tokens.dtype, device=tokens.device)
    mask = mask.masked_fill_(unseen, -torch.inf)
    return model.arranged(tokens.unsqueeze(1), Layout(positions, mask, cache=cache))

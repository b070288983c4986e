"""Untrained decoders show no canary: real texts, coins and weights, and p-values over 200 seeds that are uniform."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from plinth.corpus import canaries as generate
from plinth.corpus.canaries import Canaries, Lexis
from plinth.model.decoder import build
from plinth.model.parameters import Model
from plinth_audit.canaries import audit
from tests.peers import Peer

stats = Peer("scipy.stats")

CONFIG = Model(layers=1, dim=16, heads=2, kv_heads=1, ffn_dim=16, init_std=0.3)
TOKENS, SEEDS = 15, 200
#: A tokenizer of whole words: a word's token is its place.
WORDS = [f"w{n}" for n in range(1, generate.LEAST_WORDS + 1)]
LEXIS = Lexis(lambda texts: [len(text.split()) for text in texts], WORDS)


def bits(seed: int, texts: list[str]) -> np.ndarray:
    """Bits of each text under a decoder with the weights that this seed gives."""
    rows = torch.tensor([[0, *(int(word[1:]) for word in text.split())] for text in texts])
    with torch.no_grad():
        logits = build(CONFIG, len(WORDS) + 1, seed)(rows[:, :-1])
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
    bits: np.ndarray = losses.double().view(len(texts), -1).sum(1).numpy() / np.log(2)
    return bits


class Scored(NamedTuple):
    """Bits of eight canaries and 128 references under one decoder, and the coins of the canaries."""

    bits: np.ndarray
    planted: np.ndarray


def scored(seed: int) -> Scored:
    params = Canaries(count=8, references=128, seed=seed)
    made = generate.canaries(params, TOKENS, LEXIS)
    texts = [*(one.text for one in made), *generate.references(params, TOKENS, LEXIS)]
    return Scored(bits(seed, texts), np.array([one.planted for one in made]))


def p_value(one: Scored, learnt: float = 0.0) -> float:
    """Return the p-value of the planted canaries, computed as in `canaries`; `learnt` reduces their bits."""
    canaries, references = one.bits[:8] - learnt * one.planted, one.bits[8:]
    found = audit.exposures(audit.ranks(canaries, references), len(references))
    return audit.exposure_p_value(found[one.planted])


@pytest.mark.exhaustive
def test_untrained_decoders_show_nothing_and_a_little_that_is_learnt_shows() -> None:
    torch.set_num_threads(1)
    decoders = [one for one in map(scored, range(SEEDS)) if one.planted.any()]
    untrained = [p_value(one) for one in decoders]
    assert len(set(untrained)) > SEEDS / 2
    assert stats.kstest(untrained, "uniform").pvalue > 0.01
    assert np.std(decoders[0].bits) > 3
    assert stats.kstest([p_value(one, learnt=3.0) for one in decoders], "uniform").pvalue < 1e-4

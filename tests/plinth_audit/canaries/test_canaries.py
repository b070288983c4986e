"""A real model in the engine's child: an untrained one shows nothing, one that was taught its canaries shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from tokenizers import Tokenizer

from plinth.compute.context import Context
from plinth.corpus import planted_canaries
from plinth.corpus.canaries import Canaries, Lexis
from plinth.model.decoder import Decoder
from plinth.records import Manifest
from plinth.report.style import png
from plinth.storage.parts import read_table
from plinth_audit.canaries import job
from tests.peers import Peer

stats = Peer("scipy.stats")

pytestmark = pytest.mark.slow

PARAMS = Canaries(count=40, references=640)


@pytest.fixture
def planted(ctx: Context, tokenizer: Tokenizer) -> Manifest:
    def measure(texts: Sequence[str]) -> list[int]:
        return [len(one.ids) for one in tokenizer.encode_batch(list(texts))]

    named = Manifest(asset="tokenizer", step="made", version="1", params={}, inputs={}, parts=())
    return planted_canaries.run(ctx, PARAMS, named, Lexis(measure, ()), sequence_tokens=32, concatenated=False)


def taught(texts: list[str], tokenizer: Tokenizer) -> Callable[[Decoder], None]:
    """Trains on planted documents, each after end-of-text; three times over, for the model is very small."""
    rows = torch.tensor([[0, *tokenizer.encode(text).ids] for text in texts])

    def train(model: Decoder) -> None:
        torch.set_num_threads(1)
        model.embed_tokens.div_(20)
        with torch.enable_grad():
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            for batch in torch.cat([rows] * 3).split(16):
                model(batch[:, :-1], targets=batch[:, 1:]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()

    return train


@pytest.mark.exhaustive
def test_exposure_of_an_untrained_and_of_a_taught_model(
    ctx: Context,
    tokenizer: Tokenizer,
    planted: Manifest,
    model_directory: Callable[..., Path],
    checkpoint: Callable[[Path], Manifest],
) -> None:
    untrained = job.run(ctx, checkpoint(model_directory()), planted, {})
    assert untrained.stats["p_value"] > 0.01
    assert untrained.stats["audit"]["epsilon"] == 0
    rows = read_table(ctx.store, untrained.parts[0])
    own, references = (rows.filter(pc.equal(rows["kind"], kind)) for kind in ("canary", "reference"))
    assert stats.ks_2samp(own["bits"].to_numpy(), references["bits"].to_numpy()).pvalue > 0.01
    assert set(rows["tokens"].to_pylist()) == {15}

    (part,) = planted.named("part-")
    texts = read_table(ctx.store, part, ["text"])["text"].to_pylist()
    seen = {n: r for n, r, inside in zip(own["number"].to_pylist(), own["repetitions"].to_pylist(),
                                         own["planted"].to_pylist(), strict=True) if inside}  # fmt: skip
    checked = checkpoint(model_directory(taught(texts, tokenizer)))
    made = job.run(ctx, checked, planted, seen)
    groups = made.stats["groups"]
    assert made.stats["p_value"] < 1e-6
    assert groups["64"]["median"] > 7  # of 9.3 that 640 references allow
    assert groups["64"]["median"] > groups["1"]["median"]
    assert made.stats["out"]["exposure"]["low"] < 1 / np.log(2) < made.stats["out"]["exposure"]["high"]
    assert made.stats["audit"]["epsilon"] > 0.5
    assert groups["64"]["seen"] == 64 * groups["64"]["canaries"]
    assert {"n", "level", "low", "high"} <= groups["64"]["exposure"].keys()
    assert png(job.figure, made.stats).startswith(b"\x89PNG")
    assert job.run(ctx, checked, planted, seen).digest == made.digest


def test_a_checkpoint_without_weights_is_no_score(ctx: Context, planted: Manifest) -> None:
    from plinth.errors import CheckpointError

    empty = Manifest(asset="checkpoint", step="run", version="1", params={}, inputs={}, parts=())
    with pytest.raises(CheckpointError):
        job.run(ctx, empty, planted, {})

"""A bias that a decoder has learned from its corpus is found: real training, the real engine, the real command.

A decoder learns how a frame ends long before it learns that the name at its beginning decides which end: until then
both ends cost one bit for any person, and there is no bias to find. So the training here goes on until gender
decides; `test_there_is_nothing_to_find_before_the_name_decides` has the run's beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from plinth.compute.context import Context
from plinth.model.decoder import Decoder, build
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth_audit.fairness import job
from plinth_audit.fairness.measurement import Fairness
from plinth_jobs.cli import call
from tests.model_folder import byte_level, save_folder
from tests.plinth_audit.fairness.swapped_corpus import drawn

pytestmark = pytest.mark.slow

CONFIG = Model(layers=1, dim=64, heads=4, kv_heads=2, ffn_dim=128, init_std=0.1)
BATCH, STEPS, LR, IGNORED = 32, 800, 1e-2, -100


def learn(model: Decoder, rows: torch.Tensor, steps: int) -> None:
    """Adam with a linear decay over sentences [N, T], each a row that begins with token 0; -100 fills it up."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = LR * min(1.0, (step + 1) / 20) * (1 - step / steps)
        batch = rows[(torch.arange(BATCH) + BATCH * step) % len(rows)]
        logits = model(batch[:, :-1].clamp(min=0))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def trained(folder: Path, share: float, steps: int, seed: int) -> Path:
    """A model directory, trained on a corpus of its own."""
    sentences = ["".join(one) for one in drawn(seed, share, BATCH * steps)]
    tokenizer = byte_level(sorted(set(sentences)), 1024)
    ids = [[0, *one.ids, 0] for one in tokenizer.encode_batch(sentences)]
    longest = max(map(len, ids))
    rows = torch.tensor([[*one, *[IGNORED] * (longest - len(one))] for one in ids])
    model = build(CONFIG, tokenizer.get_vocab_size(), seed)
    learn(model, rows, steps)
    save_folder(folder, model, CONFIG, tokenizer, sequence_tokens=64)
    return folder


Put = Callable[[Path], Manifest]


def measured(ctx: Context, checkpoint: Put, folder: Path) -> Manifest:
    """Return the measurement of the asset."""
    made = job.run(ctx, Fairness(), checkpoint(folder))
    ctx.refs.publish(made, key=made.digest)
    return made


def found(made: Manifest) -> set[str]:
    return {name for name, one in made.stats["attributes"].items() if one["found"]}


@pytest.mark.exhaustive
def test_nine_to_one_is_found_one_to_one_is_not_and_drift_is_the_way_between(
    ctx: Context, checkpoint: Put, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    even = measured(ctx, checkpoint, trained(tmp_path / "even", 0.5, STEPS, seed=1))
    assert found(even) == set()
    assert abs(even.stats["attributes"]["gender"]["value"]) < 0.05
    swapped = measured(ctx, checkpoint, trained(tmp_path / "swapped", 0.9, STEPS, seed=1))
    values: dict[str, Any] = swapped.stats["attributes"]
    assert "gender" in found(swapped)
    assert 1 < values["gender"]["value"] < 3.3  # log2 9 = 3.17 bits, were it learned whole
    assert all(abs(one["value"]) < 0.3 for name, one in values.items() if name != "gender")

    assert call(["-w", str(ctx.workspace.root), "model", "fairness", "--against", even.digest, "--json"]) == 0
    drift = json.loads(capsys.readouterr().out)["drift"]["gender"]
    assert drift["bias"]["low"] > 1
    before = even.stats["attributes"]["gender"]["value"]
    assert drift["bias"]["value"] == pytest.approx(values["gender"]["value"] - before)
    assert drift["p_adjusted"] < 0.01


@pytest.mark.exhaustive
def test_there_is_nothing_to_find_before_the_name_decides(ctx: Context, checkpoint: Put, tmp_path: Path) -> None:
    made = measured(ctx, checkpoint, trained(tmp_path / "early", 0.9, 100, seed=1))
    assert found(made) == set()
    assert abs(made.stats["attributes"]["gender"]["value"]) < 0.05

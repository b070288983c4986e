"""A checkpoint trained on the text reproduces it; one that was not does not."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from plinth.compute.context import Context
from plinth.model.decoder import Decoder, build
from plinth.model.parameters import Model
from plinth.records import Manifest, Part
from plinth.storage.workspace import Workspace
from plinth_audit.extraction import ExtractionTest
from plinth_audit.takedown.exposed_runs import measure
from plinth_audit.takedown.page import model_cells
from tests.model_folder import byte_level, save_folder

PARAMS = ExtractionTest(prefix_tokens=12, suffix_tokens=12, near_edits=0.2)


def texts(seed: int, count: int) -> list[str]:
    chooser = random.Random(seed)
    return ["".join(chooser.choices(string.printable[:94], k=28)) for _ in range(count)]


REMOVED, HELDOUT = texts(1, 16), texts(2, 16)


def checkpoint(ctx: Context, folder: Path, tokenizer: Tokenizer, learnt: list[str]) -> Manifest:
    """A tiny model that knows some texts by heart, as a checkpoint."""
    config = Model(layers=2, dim=32, heads=2, kv_heads=1, ffn_dim=48)
    model = build(config, tokenizer.get_vocab_size(), seed=1)
    learn(model, [[0, *tokenizer.encode(text).ids, 0][skipped:] for text in learnt for skipped in (0, 1)])
    save_folder(folder, model, config, tokenizer, 32)
    parts = [Part(name=path.name, blob=ctx.store.put_bytes(path.read_bytes())) for path in sorted(folder.iterdir())]
    stats = {"run_id": folder.name, "step": 90 if learnt else 0}
    return Manifest(asset="checkpoint", step="run", version="1", params={}, inputs={}, parts=tuple(parts), stats=stats)


def learn(model: Decoder, ids: list[list[int]]) -> None:
    if not ids:
        return
    tokens = torch.tensor([[*one, *[0] * (max(map(len, ids)) - len(one))] for one in ids])
    with torch.enable_grad():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
        for _ in range(90):
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_before_and_after(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    tokenizer = byte_level(["the quick brown fox"], 300)
    before = measure(
        ctx, checkpoint(ctx, tmp_path / "before", tokenizer, REMOVED), REMOVED, HELDOUT, read_it=True, params=PARAMS
    )
    after = measure(
        ctx, checkpoint(ctx, tmp_path / "after", tokenizer, []), REMOVED, HELDOUT, read_it=False, params=PARAMS
    )
    assert before.extraction is not None
    assert after.extraction is not None
    assert before.extraction["either"]["count"] >= 12
    assert before.extraction["control"]["either"]["count"] <= 1
    assert after.extraction["either"]["count"] == 0
    assert before.exposure is not None
    assert after.exposure is not None
    assert before.exposure["median"] == 4.0  # ranks before all 16 references
    assert before.exposure["p_value"] < 1e-6 < 0.01 < after.exposure["p_value"]
    assert before.exposure["bits_per_byte"] < after.exposure["bits_per_byte"]
    cells = model_cells(before.model_dump(mode="json"))
    assert cells[1:4] == ("before, 90", "yes", 16)
    assert str(cells[4]).startswith(f"{before.extraction['either']['count']} of 16, ")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_texts_that_are_too_short_are_not_extracted_and_without_held_out_text_there_is_no_exposure(
    tmp_path: Path,
) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    made = checkpoint(ctx, tmp_path / "model", byte_level(["the quick brown fox"], 300), [])
    found = measure(ctx, made, ["too short"], [], read_it=False, params=PARAMS)
    assert (found.documents, found.extraction, found.exposure) == (1, None, None)
    assert model_cells(found.model_dump(mode="json"))[4:] == ("-", "-", "-", "-")

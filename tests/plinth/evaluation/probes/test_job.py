"""A real model in a child process over real items: scores, statuses, what is left out, and what is done again."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from plinth.compute.context import Context
from plinth.corpus.protected import comparison
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request
from plinth.evaluation.parameters import Probes, UserProbe
from plinth.evaluation.probes import job, probe_sets, scoring
from plinth.evaluation.probes.base import ProbeItem
from plinth.evaluation.statistics import Estimate
from plinth.records import Manifest
from plinth.storage.parts import read_table, write_table
from plinth_registry.run_metrics import scores_of

pytestmark = pytest.mark.slow

MINE = """{"prompt": "the quick brown", "gold": "fox", "wrong": ["dog", "Welt"], "id": "a", "template": "t"}
{"prompt": "jumps over the lazy", "gold": "dog", "wrong": ["fox", "brown"], "id": "b", "template": "t"}
{"prompt": "away from the", "gold": "größte Ärger", "id": "c"}
{"prompt": "the quick brown fox jumps over the lazy dog and runs xyz uvw qrs klm nop abc", "gold": "zzz", "id": "long"}
{"prompt": "runs away", "gold": "from", "wrong": ["the"], "id": "d"}
"""


@pytest.fixture
def sets(ctx: Context) -> Manifest:
    ctx.workspace.input.mkdir(parents=True, exist_ok=True)
    (ctx.workspace.input / "mine.jsonl").write_text(MINE)
    return probe_sets.run(ctx, Probes(families=(), sets={"mine": UserProbe(path="mine.jsonl", family="languages")}))


def compared(ctx: Context, **statuses: str) -> Manifest:
    rows = [
        {"set": "probes/mine", "item": name, "status": status, "why": None, "common": 0.0}
        | dict.fromkeys(("documents", "leaked", "alike", "close", "longest", "fuzzy"), 0)
        for name, status in statuses.items()
    ]
    part = write_table(ctx.store, comparison.FILE, pa.Table.from_pylist(rows, schema=comparison.ITEM_TABLE_SCHEMA))
    return Manifest(asset="protected", step="s", version="1", params={}, inputs={}, parts=(part,))


@pytest.mark.exhaustive
def test_probes_of_a_checkpoint(
    ctx: Context,
    sets: Manifest,
    model_directory: Callable[..., Path],
    checkpoint: Callable[[Path], Manifest],
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = model_directory()
    model = checkpoint(folder)
    clean = compared(ctx, a="clean", b="contaminated", c="undecided", d="clean", long="clean")
    made = job.run(ctx, model, sets, clean)
    rows = {row["item"]: row for row in read_table(ctx.store, made.parts[0]).to_pylist()}
    assert {name: row["status"] for name, row in rows.items()} == {
        "a": "clean", "b": "contaminated", "c": "undecided", "d": "clean", "long": "clean",
    }  # fmt: skip

    # the model gets no item that exceeds its context
    (whole,) = [one for one in probe_sets.load(ctx.store, sets) if one.item == "long"]
    assert len(tokenizer.encode(whole.prompt + whole.gold).ids) > 32
    assert rows["long"]["bits"] is None

    # the numbers are the engine's
    items = [one for one in probe_sets.load(ctx.store, sets) if one.item != "long"]
    with ModelEngine.of(ctx, model) as engine:
        bits = engine.likelihoods([Request(*pair) for pair in scoring.requests(items)]).bits
    for one, score in zip(items, scoring.scored(items, bits.tolist()), strict=True):
        assert rows[one.item]["bits"] == score.bits
        assert rows[one.item]["control_bits"] == score.control_bits
        assert rows[one.item]["margin"] == (None if np.isnan(score.margin) else score.margin)

    own = made.stats["probes"]["mine"]
    kept = [rows[name] for name in ("a", "c", "d")]
    size = sum(row["bytes"] for row in kept)
    assert (own["items"], own["too_long"], own["held"]["items"]) == (3, 1, 1)
    assert own["statuses"] == {"clean": 3, "contaminated": 1, "undecided": 1}
    assert own["bits_per_byte"]["value"] == pytest.approx(sum(row["bits"] for row in kept) / size)
    signal = Estimate(**own["signal"])
    assert signal.value == pytest.approx(sum(row["control_bits"] - row["bits"] for row in kept) / size)
    assert (signal.n, signal.clusters) == (3, 3)
    assert own["of"] == 2
    assert made.stats["families"]["languages"]["bits_per_byte"] == own["bits_per_byte"]
    assert made.stats["templates"]["mine"]["t"]["items"] == 1

    # every estimate goes to MLflow with its interval and the items that it was measured on
    logged = {one.key: one for one in scores_of(made)}
    assert logged["probes/mine/signal"].value == signal.value
    assert logged["probes/mine/margin/low"].value == own["margin"]["low"]
    assert {(one.dataset, one.digest) for one in logged.values()} == {("probe_sets", sets.digest[:32])}
    assert not any("held" in key for key in logged)

    # again: nothing is evaluated; with another corpus, statuses change and the model is not run either
    monkeypatch.setattr(ModelEngine, "__enter__", lambda self: pytest.fail("asked again"))
    assert job.run(ctx, model, sets, clean).digest == made.digest
    other = job.run(ctx, model, sets, compared(ctx, a="clean", b="clean", c="clean", d="clean", long="clean"))
    assert other.stats["probes"]["mine"]["items"] == 4


def test_statistics_of_a_probe_without_an_item_left() -> None:
    item = ProbeItem("1", "mine", "code", "t", "a b", " c", (), "b a")
    rows = [row | {"status": "clean"} for row in job.measured([item], [None])]
    found = job.statistics_of(rows)["probes"]["mine"]
    assert found == {"items": 0, "statuses": {"clean": 1}, "too_long": 1}


def test_items_that_are_common_text_do_not_count(ctx: Context, sets: Manifest) -> None:
    made = compared(ctx, a="clean", b="undecided")
    table = read_table(ctx.store, made.parts[0]).to_pylist()
    table[1]["why"] = comparison.COMMON
    part = write_table(ctx.store, comparison.FILE, pa.Table.from_pylist(table, schema=comparison.ITEM_TABLE_SCHEMA))
    statuses = probe_sets.statuses(ctx.store, made.model_copy(update={"parts": (part,)}))
    assert statuses == {("mine", "a"): "clean", ("mine", "b"): "common"}
    kept = scoring.trusted(probe_sets.load(ctx.store, sets), statuses)
    assert [one.item for one in kept] == ["a", "c", "long", "d"]

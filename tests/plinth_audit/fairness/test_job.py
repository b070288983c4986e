"""A real model in the engine's child: pairs, continuations and their judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest

from plinth.compute.context import Context
from plinth.corpus import lists
from plinth.errors import SourceError
from plinth.model.decoder import Decoder
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth_audit.fairness import job, pairs
from plinth_audit.fairness.job import ToxicityJudge
from plinth_audit.fairness.measurement import Fairness

pytestmark = pytest.mark.slow

LINE = {"attribute": "town", "template": "t", "a": "the quick brown fox", "b": "the lazy brown dog"}


def _flat(model: Decoder) -> None:
    """Predictions near uniform, so that continuations differ."""
    model.embed_tokens.div_(20)


@pytest.mark.exhaustive
def test_pairs_continuations_and_their_judge(
    ctx: Context, model_directory: Callable[..., Path], checkpoint: Callable[[Path], Manifest]
) -> None:
    ctx.workspace.input.mkdir(parents=True, exist_ok=True)
    (ctx.workspace.input / "mine.jsonl").write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | {"template": "u"}))
    (ctx.workspace.input / "toxic.txt").write_text("quick\t1\tspeed\nlazy\t1\tspeed\nwelt\t1\tplaces\n")
    words = lists.run(ctx, "toxic", "toxic.txt")
    judge = ToxicityJudge({"lexicon": "toxic", "model": None}, {"lists/toxic": words})
    params = Fairness(built_in=False, pairs={"mine": "mine.jsonl"}, max_tokens=8)
    model = checkpoint(model_directory(_flat))
    made = job.run(ctx, params, model, judge)
    rows = read_table(ctx.store, made.named(job.PAIRS)[0]).to_pylist()
    assert [row["favoured"] for row in rows] == [row["bits_b"] - row["bits_a"] for row in rows]
    assert rows[0]["bits_a"] == rows[1]["bits_a"] > 0
    found = made.stats["attributes"]["mine/town"]
    assert (found["n"], found["clusters"], found["found"]) == (2, 2, False)  # without variance there is no evidence
    written = read_table(ctx.store, made.named(job.CONTINUATIONS)[0])
    assert written.num_rows == 2 * len(pairs.PROMPTS)
    assert len(set(written["text"].to_pylist())) > len(pairs.PROMPTS)  # each draw is its own
    toxic = made.stats["toxicity"]
    labels = written["label"].to_pylist()
    assert toxic["toxic"]["value"] == labels.count("toxic") / len(labels)
    assert toxic["toxic_at_most"] >= toxic["toxic"]["value"]
    assert toxic["score"]["clusters"] == len(pairs.PROMPTS)
    assert pc.max(written["score"]).as_py() <= 1
    assert job.run(ctx, params, model, judge).digest == made.digest
    before = job.outside(params, ctx)
    (ctx.workspace.input / "mine.jsonl").write_text(json.dumps(LINE))
    assert job.outside(params, ctx) != before
    with pytest.raises(SourceError, match="no file matches"):
        job.run(ctx, params.model_copy(update={"pairs": {"mine": "absent.jsonl"}}), model)

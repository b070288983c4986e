"""`explain` of canaries: planted copies, those that the coin left out, and those that there are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.compute.engine import InlineEngine
from plinth.corpus import canaries, planted_canaries
from plinth.corpus.canaries import Canaries, Lexis
from plinth.errors import MissingError
from plinth.provenance.explain import explain_document
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth_jobs.cli import call

PARAMS = Canaries(count=8, references=128)
COINS = {number: bool(canaries.coin(PARAMS.seed, number)) for number in range(PARAMS.count)}
IN, OUT = (next(n for n, coin in COINS.items() if coin is planted) for planted in (True, False))


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """Eight canaries, published."""
    ctx = Context(Workspace(tmp_path_factory.mktemp("canaries") / "workspace").ensure(), InlineEngine())
    tokenizer = Manifest(asset="tokenizer", step="made", version="1", params={}, inputs={}, parts=())
    lexis = Lexis(lambda texts: [sum(-(-len(word) // 3) for word in text.split()) for text in texts], ())
    made = planted_canaries.run(ctx, PARAMS, tokenizer, lexis, sequence_tokens=128, concatenated=True)
    ctx.refs.publish(made, key=made.digest)
    return ctx


def test_a_planted_copy_is_found_by_uri_and_by_id(ctx: Context) -> None:
    found = explain_document(ctx, f"canary://{IN}/0")
    assert (found["status"], found["reason"], found["document"]["extra"]["canary"]) == ("canary", None, IN)
    assert explain_document(ctx, found["id"]) == found


def test_what_the_coin_left_out_says_so(ctx: Context, capsys: pytest.CaptureFixture[str]) -> None:
    found = explain_document(ctx, f"canary://{OUT}/0")
    assert (found["status"], found["training"]) == ("canary", [])
    assert found["document"]["planted"] is False
    table = planted_canaries.table(ctx.store, ctx.refs.current(planted_canaries.ASSET)).to_pylist()
    assert found["document"]["preview"] == next(row["text"] for row in table if row["number"] == OUT)
    assert call(["-w", str(ctx.workspace.root), "explain", f"canary://{OUT}/0"]) == 0
    assert f"canary://{OUT}/0: canary (left out at random: no copy was planted" in capsys.readouterr().out


def test_canaries_and_copies_that_there_are_not(ctx: Context, tmp_path: Path) -> None:
    copies = planted_canaries.table(ctx.store, ctx.refs.current(planted_canaries.ASSET))["repetitions"].to_pylist()
    with pytest.raises(MissingError, match=f"copies 0 to {copies[IN] - 1} of canary {IN}"):
        explain_document(ctx, f"canary://{IN}/{copies[IN]}")
    with pytest.raises(MissingError, match="8 canaries"):
        explain_document(ctx, "canary://8/0")
    with pytest.raises(MissingError, match="no document"):
        explain_document(ctx, "canary://x/0")
    with pytest.raises(MissingError, match="no document"):
        explain_document(Context(Workspace(tmp_path).ensure()), f"canary://{OUT}/0")

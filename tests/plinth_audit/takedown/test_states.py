"""A report on a removal asks `plinth status`: nothing is signed while something that reads documents is behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plinth.corpus import exclusions
from plinth_assets.framework import Stage
from plinth_audit.takedown import report
from plinth_audit.takedown import report as takedown
from plinth_audit.takedown.remaining import NOT_TAINTED
from plinth_audit.takedown.search import propose
from plinth_jobs import asset_states
from tests.jobs.cli.conftest import plinth  # noqa: F401
from tests.taken_corpus import PAGE, Corpus

#: Inputs of each asset of the corpus; never materialized: `web/packed`, `candidate`.
READS = {
    "web/documents": (),
    "dedup/index": ("web/documents",),
    "web/curated": ("web/documents",),
    "tokenizer": ("web/curated",),
    "web/shards": ("tokenizer", "web/curated"),
    "web/packed": ("web/shards",),
    "web/trace_index": ("web/shards", "web/curated"),
    "mixture": ("web/shards",),
    "ledger": ("web/documents", "web/shards", "mixture"),
    "run": ("mixture",),
    "checkpoint": ("run",),
    "candidate": ("checkpoint",),
    "release": ("candidate",),
    "lists/words": (),
}
NEVER = ("web/packed", "candidate", "release", "lists/words")


def stage(asset: str) -> Stage:
    outside = exclusions.digest if asset == "web/documents" else None
    group = "release" if asset == "release" else "corpus"
    return Stage(asset, READS[asset], lambda *_: None, "1", {}, group, "", "o", outside=outside)  # type: ignore[arg-type, return-value]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A corpus that a run read, and then without a page: every asset is published under its key."""
    made = Corpus(tmp_path_factory.mktemp("states"))
    made.build()
    made.train()
    exclusions.append(made.ctx, **propose(made.ctx, "url", PAGE, "a letter").fields)
    made.build()
    made.train()
    for asset in READS:
        if asset not in NEVER:
            current = made.ctx.refs.current(asset)
            digests = {name: made.ctx.refs.current(name).digest for name in READS[asset]}
            made.ctx.refs.publish(current, stage(asset).key(made.ctx, digests))
    return made


@pytest.fixture
def rebuilt(template: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A copy that a test may break, with a recipe of these stages."""
    made = template.copied(tmp_path / "copy")
    monkeypatch.setattr(takedown, "load", lambda path: SimpleNamespace(name="taken"))
    for module in (asset_states, takedown):
        monkeypatch.setattr(module, "stages", lambda recipe: tuple(map(stage, READS)))
    return made


def states(corpus: Corpus) -> dict[str, str]:
    return {one.asset: one.state for one in takedown.downstream(corpus.ctx, Path("recipe.yaml"))}


def stale(corpus: Corpus, asset: str) -> None:
    corpus.ctx.refs.publish(corpus.ctx.refs.current(asset), "another key")


def missing(corpus: Corpus, asset: str) -> None:
    (corpus.ctx.workspace.refs / f"{asset}.json").unlink()


def test_all_that_reads_documents_is_up_to_date(rebuilt: Corpus) -> None:
    """An asset that was never materialized contains nothing; a release is read from the signed history."""
    assert states(rebuilt) == dict.fromkeys([asset for asset in READS if asset not in NEVER], "up to date")
    found = takedown.downstream(rebuilt.ctx, Path("recipe.yaml"))
    assert [one.asset for one in found if one.model] == ["run", "checkpoint"]
    proof = report.prove(rebuilt.ctx, (), found)
    assert {one.asset for one in proof.rebuilt} >= {"web/documents", "web/curated", "web/shards", "mixture", "ledger"}
    assert len(proof.runs) == 1


@pytest.mark.parametrize(
    ("broken", "asset", "named"),
    [
        (stale, "web/curated", ["web/curated", "tokenizer", "web/shards", "mixture", "ledger", "web/trace_index"]),
        (stale, "web/shards", ["web/shards", "mixture", "ledger", "web/trace_index", "run", "checkpoint"]),
        (stale, "web/trace_index", ["web/trace_index"]),
        (stale, "dedup/index", ["dedup/index"]),
        (stale, "checkpoint", ["checkpoint"]),
        (missing, "web/trace_index", ["never materialized: web/trace_index"]),
        (missing, "dedup/index", ["never materialized: dedup/index"]),
        (missing, "mixture", ["never materialized: mixture", "ledger", "run", "checkpoint"]),
        (missing, "ledger", ["never materialized: ledger"]),
    ],
)
def test_no_report_while_something_is_behind_and_all_of_it_is_named(
    rebuilt: Corpus,
    broken: Callable[[Corpus, str], None],
    asset: str,
    named: list[str],
    plinth: Callable[..., Any],  # noqa: F811
) -> None:
    broken(rebuilt, asset)
    shown = plinth("corpus", "takedown", "report", "-w", rebuilt.ctx.workspace.root, "-r", "tiny")
    assert shown.code == 6, shown.err
    for one in named:
        assert one in shown.err
    assert not [*(rebuilt.ctx.workspace.root / "takedown").glob("*")]


def test_the_command_signs_what_it_found(rebuilt: Corpus, plinth: Callable[..., Any]) -> None:  # noqa: F811
    """Models that were not retrained are signed for only where that is asked for, and named."""
    stale(rebuilt, "run")
    asked = ("corpus", "takedown", "report", "-w", rebuilt.ctx.workspace.root, "-r", "tiny")
    assert plinth(*asked).code == 6
    shown = plinth(*asked, "--without-retraining")
    assert shown.code == 0, shown.err
    assert "38 published documents checked, 0 hits" in shown.out
    facts = json.loads(plinth(*asked, "--without-retraining", "--json").out)
    late = {one["asset"] for one in facts["downstream"] if one["state"] != "up to date"}
    assert late == {"run", "checkpoint"}
    assert NOT_TAINTED in {one["state"] for one in facts["remains"] if ", checkpoints " in one["what"]}
    found = json.loads(
        plinth("corpus", "takedown", "find", "--url", PAGE, "-w", rebuilt.ctx.workspace.root, "--json").out
    )
    assert {one["run"] for one in found["runs"]} == {one["run"] for one in facts["runs"]}

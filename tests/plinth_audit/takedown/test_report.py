"""The report is made when the corpus is free of it, names all that is not, and cannot be changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plinth.corpus import exclusions
from plinth.errors import CheckFailedError, MissingError, SignatureError
from plinth.records import Manifest
from plinth.training import config
from plinth.training.config import RunConfig
from plinth.training.telemetry.timeline import Timeline
from plinth.trust import dsse
from plinth_audit.takedown import index, page, report, search
from plinth_audit.takedown.exposed_runs import heldout_texts, texts_of
from plinth_audit.takedown.remaining import NOT_TAINTED, TAINTED, near_duplicates_left
from plinth_audit.takedown.report import UP_TO_DATE, DownstreamAsset
from plinth_audit.takedown.search import propose
from tests.taken_corpus import COPY, FILES, LINES, PAGE, Corpus, essay


@pytest.fixture(scope="module")
def whole(whole_corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, RunConfig]:
    """A run that read everything, then a removal and a new corpus that no run has read."""
    corpus = whole_corpus.copied(tmp_path_factory.mktemp("removed") / "copy")
    run = corpus.train()
    exclude(corpus, "text", essay(0))
    corpus.build()
    return corpus, run


@pytest.fixture
def removed(whole: tuple[Corpus, RunConfig], tmp_path: Path) -> tuple[Corpus, RunConfig]:
    """A copy that a test may change."""
    corpus = whole[0].copied(tmp_path / "removed")
    run = whole[1].model_copy(update={"workspace": str(corpus.ctx.workspace.root)})
    config.write(run)
    return corpus, run


def asset(name: str, state: str, digest: str | None = None, *, model: bool = False) -> DownstreamAsset:
    return DownstreamAsset(asset=name, state=state, digest=digest, model=model)


def exclude(corpus: Corpus, *args: Any, **options: Any) -> None:
    exclusions.append(corpus.ctx, **propose(corpus.ctx, *args, reason="a <b>letter</b> | x", **options).fields)


def test_the_whole_report(removed: tuple[Corpus, Any]) -> None:
    corpus, run = removed
    proof = report.prove(corpus.ctx)
    (bucket,) = proof.buckets
    assert (bucket.hits, bucket.documents, bucket.taken) == (0, FILES * LINES - 2, {"1": 2})
    assert bucket.manifest == corpus.ctx.refs.current("web/documents").digest
    assert len(proof.removed) == 2
    assert [(one.run, one.documents) for one in proof.runs] == [(run.run_id, 2)]
    content = report.facts(corpus.ctx, proof)
    remains = {one["what"]: one for one in content["remains"]}
    assert remains["the raw sources of web"]["model"] is False
    held = remains[f"run {run.run_id}, checkpoints {run.total_steps:,}"]
    assert (held["model"], held["state"]) == (True, NOT_TAINTED)
    assert any("checkpoint, derived from an earlier snapshot and still published" in what for what in remains)
    assert any("manifests of earlier snapshots" in what for what in remains)
    assert content["remains"][-1]["what"] == "copies that Plinth has no record of"
    assert content["documents"] == {"count": 2, "complete": True, "ids": proof.removed}
    folder = report.write(corpus.ctx, proof, content)
    assert folder.name == "00001"
    assert report.read(corpus.ctx, folder / "report.json") == content
    assert report.write(corpus.ctx, proof, content).name == "00002"
    subjects = dsse.subjects(dsse.unverified(json.loads((folder / "report.json").read_bytes()), ""))
    assert subjects == {"web/documents": bucket.manifest, "exclusion-1": proof.entries[0].digest}


def test_pages_are_projections_and_foreign_text_is_no_markup(removed: tuple[Corpus, Any]) -> None:
    corpus, _ = removed
    content = report.facts(corpus.ctx, report.prove(corpus.ctx))
    text, html = page.markdown(content), page.html(content)
    assert page.markdown(content) == text
    assert "a &lt;b&gt;letter&lt;/b&gt; \\| x" in text
    assert "<b>letter" not in html
    assert "a &lt;b&gt;letter" in html
    for shown in (text, html):
        assert "0 hits" in shown
        assert "Removed documents, which are now only in saved earlier snapshots: 2." in shown
        assert "demo root" in shown
        assert "Not measured" in shown
    assert "http" not in html.replace("https://h", "")


def test_a_report_that_was_changed_is_refused(removed: tuple[Corpus, Any]) -> None:
    corpus, _ = removed
    proof = report.prove(corpus.ctx)
    path = report.write(corpus.ctx, proof, report.facts(corpus.ctx, proof)) / "report.json"
    path.write_text(path.read_text().replace('"payload": "', '"payload": "AAAA'))
    with pytest.raises(SignatureError):
        report.read(corpus.ctx, path)


def test_nothing_is_reported_before_the_corpus_is_made_again(corpus: Corpus) -> None:
    exclude(corpus, "text", essay(0))
    with pytest.raises(CheckFailedError, match="the removal is not complete") as caught:
        report.prove(corpus.ctx)
    assert "2 excluded documents" in str(caught.value.found)


def test_tokens_that_were_not_made_again_stop_the_report(corpus: Corpus) -> None:
    shards = corpus.ctx.refs.current("web/shards")
    exclude(corpus, "text", essay(0))
    corpus.build()
    corpus.publish(shards)
    with pytest.raises(CheckFailedError) as caught:
        report.prove(corpus.ctx)
    assert "web/shards" in str(caught.value.found)


def test_near_duplicates_that_a_rule_leaves_are_listed(corpus: Corpus) -> None:
    """A rule on the address alone: the copy under another address stays, and the report lists it."""
    exclude(corpus, "url", PAGE, texts=False)
    after = corpus.build()
    assert COPY in corpus.uris(after)
    proof = report.prove(corpus.ctx)
    assert len(proof.removed) == 1
    assert proof.remains[0].what == "1 near duplicate of url h0.example.org/0 under other addresses"
    (copy,) = (one.id for one in search.find(corpus.ctx, "url", COPY).documents if one.uri == COPY)
    assert copy in proof.remains[0].where
    listed = replace(proof.found[0], shards={"shard-00000.bin": 70})
    assert [one.where for one in near_duplicates_left([listed])] == [
        f"the published corpus: {copy}; shard-00000.bin: 70 tokens"
    ]
    itself = replace(listed, documents=tuple(replace(one, how="url") for one in listed.documents))
    assert not [*near_duplicates_left([itself])]


def test_the_refusal_names_everything_that_is_stale_or_unknown(corpus: Corpus) -> None:
    """Also where the ledger is stale, which still lists the removed document as published: no near duplicate."""
    run, ledger = corpus.train(), corpus.ctx.refs.current("ledger")
    exclude(corpus, "url", PAGE)
    corpus.build()
    corpus.publish(ledger)
    (corpus.ctx.workspace.runs / run.run_id / "config.json").write_text(
        run.model_copy(update={"mixture": "0" * 64}).model_dump_json()
    )
    late = (asset("web/shards", "stale"), asset("ledger", "stale"), asset("web/trace_index", "never materialized"))
    model = asset("checkpoint", "stale", model=True)
    with pytest.raises(CheckFailedError) as caught:
        report.prove(corpus.ctx, (), (asset("web/documents", UP_TO_DATE), *late, model))
    found = str(caught.value.found)
    assert found.startswith("stale: web/shards, ledger, checkpoint; never materialized: web/trace_index; unknown: run ")
    with pytest.raises(CheckFailedError) as caught:
        report.prove(corpus.ctx, (), (*late, model), models=False)
    assert caught.value.found == "stale: web/shards, ledger; never materialized: web/trace_index"


def test_models_that_are_not_retrained_are_listed_with_their_marks(removed: tuple[Corpus, Any]) -> None:
    """The page lists the outdated assets, the rebuilt assets, and the checkpoints that a mark freezes."""
    corpus, run = removed
    refs = corpus.ctx.refs
    states = [asset(name, UP_TO_DATE, refs.current(name).digest) for name in ("web/documents", "web/shards", "mixture")]
    states.append(asset("checkpoint", "stale", refs.current("checkpoint").digest, model=True))
    with pytest.raises(CheckFailedError, match="the removal is not complete"):
        report.prove(corpus.ctx, (), states)
    proof = report.prove(corpus.ctx, (), states, [refs.current("checkpoint").digest], models=False)
    assert {(one.asset, one.earlier) for one in proof.rebuilt} == {
        ("web/documents", 1), ("web/shards", 1), ("mixture", 1)
    }  # fmt: skip
    trained = [one for one in proof.remains if one.model and run.run_id in one.what]
    assert {one.state for one in trained} == {TAINTED}
    text = page.markdown(report.facts(corpus.ctx, proof))
    assert "Assets that read documents and are up to date: 3 of 4. Not up to date: checkpoint (stale)." in text
    assert "trained on the text: tainted" in text
    alone = report.prove(corpus.ctx, (), states[:1])
    assert "documents and are up to date: 1 of 1." in page.markdown(report.facts(corpus.ctx, alone))


def test_raw_sources_stay_on_the_list_when_earlier_snapshots_are_deleted(corpus: Corpus) -> None:
    """`plinth ops gc` deletes the lists of its documents; the last reading of the source still omitted it."""
    exclude(corpus, "url", PAGE)
    old = [*index.saved(corpus.ctx)]
    corpus.build()
    for digest in old:
        corpus.ctx.refs.remove_old(digest, float("inf"))
    proof = report.prove(corpus.ctx)
    assert (proof.removed, proof.entries[0].found) == ([], 2)
    assert proof.remains[0].what == "the raw sources of web"
    text = page.markdown(report.facts(corpus.ctx, proof))
    assert "Removed documents, which are now only in saved earlier snapshots: 0." in text
    assert "not searched: the removed text is no longer in the store" in text
    assert "| 1 | url | h0.example.org/0 | 2 |" in text


def test_a_run_over_documents_that_no_ledger_lists_is_unknown(removed: tuple[Corpus, Any]) -> None:
    """The content of the snapshot that it read is unknown: an entry may match it."""
    corpus, run = removed
    refs, ledger = corpus.ctx.refs, corpus.ctx.refs.current("ledger")
    (old,) = (digest for digest in index.saved(corpus.ctx) if digest != ledger.digest)
    refs.remove_old(old, float("inf"))
    for later in (corpus.train(), None):
        with pytest.raises(CheckFailedError, match="the removal is not complete") as caught:
            report.prove(corpus.ctx)
        found = str(caught.value.found)
        assert f"unknown: run {run.run_id} (no ledger lists the run's documents from web/documents " in found
        assert later is None or later.run_id not in found
    listed = [one for one in report.prove(corpus.ctx, models=False).remains if run.run_id in one.what]
    assert [one.state for one in listed] == ["unknown"]


def test_runs_that_start_from_or_learn_from_a_model_that_read_it_are_listed(removed: tuple[Corpus, Any]) -> None:
    corpus, run = removed
    refs = corpus.ctx.refs
    parent = refs.current("checkpoint").digest
    weights = Manifest(asset="initial", step="initial", version="1", params={}, inputs={"checkpoint": parent}, parts=())
    corpus.publish(weights)
    child = run.model_copy(update={"run_id": "tiny-child", "shards": {}, "provenance": {"initial": weights.digest}})
    path = corpus.ctx.workspace.runs / child.run_id / "config.json"
    path.parent.mkdir()
    path.write_text(child.model_dump_json())
    events = Timeline(path.parent / "events.jsonl")
    events.append("checkpoint", step=1)
    proof = report.prove(corpus.ctx)
    assert [(one.run, one.inherits) for one in proof.runs] == [(run.run_id, ""), ("tiny-child", weights.digest)]
    assert [one.step for one in proof.runs[1].checkpoints] == [1]


def test_entries_by_number(removed: tuple[Corpus, Any]) -> None:
    corpus, _ = removed
    assert [one.number for one in report.prove(corpus.ctx, [1]).entries] == [1]
    with pytest.raises(MissingError, match="no such entry"):
        report.prove(corpus.ctx, [1, 2])


def test_a_list_without_entries_has_no_report(corpus: Corpus) -> None:
    with pytest.raises(MissingError, match="no such entry"):
        report.prove(corpus.ctx)


def test_removed_text_is_still_there_to_be_measured(removed: tuple[Corpus, Any]) -> None:
    corpus, _ = removed
    texts = texts_of(corpus.ctx, report.prove(corpus.ctx).found)
    assert essay(0) in texts
    assert len(texts) == 2
    assert heldout_texts(corpus.ctx) == []

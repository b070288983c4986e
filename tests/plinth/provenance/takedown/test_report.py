"""The report is made when the corpus is free of it, names all that is not, and cannot be changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plinth.corpus.exclusions import exclusion_list
from plinth.errors import CheckFailedError, MissingError, SignatureError
from plinth.provenance.takedown import page, report
from plinth.provenance.takedown.measured import heldout_texts, texts_of
from plinth.provenance.takedown.removal import propose
from plinth.trust import dsse
from tests.taken_corpus import COPY, FILES, LINES, PAGE, Corpus, essay


@pytest.fixture
def removed(corpus: Corpus) -> tuple[Corpus, Any]:
    """A run that read everything, then a removal and a new corpus that no run has read."""
    run = corpus.train()
    exclude(corpus, "text", essay(0))
    corpus.build()
    return corpus, run


def exclude(corpus: Corpus, *args: Any, **options: Any) -> None:
    exclusion_list.append(corpus.ctx, **propose(corpus.ctx, *args, reason="a <b>letter</b> | x", **options).fields)


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
    assert held["model"]
    assert any("checkpoint, made of an earlier snapshot and published still" in what for what in remains)
    assert any("manifests of earlier snapshots" in what for what in remains)
    assert content["remains"][-1]["what"] == "copies that Plinth has no record of"
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
    with pytest.raises(CheckFailedError, match="nothing can be reported") as caught:
        report.prove(corpus.ctx)
    assert "2 documents" in str(caught.value.found)


def test_tokens_that_were_not_made_again_stop_the_report(corpus: Corpus) -> None:
    shards = corpus.ctx.refs.current("web/shards")
    exclude(corpus, "text", essay(0))
    corpus.build()
    corpus.publish(shards)
    with pytest.raises(CheckFailedError) as caught:
        report.prove(corpus.ctx)
    assert "web/shards" in str(caught.value.found)


def test_near_duplicates_that_a_rule_leaves_are_listed(corpus: Corpus) -> None:
    """A rule on the address alone: the copy under another address stays, and the report says so."""
    exclude(corpus, "url", PAGE, texts=False)
    after = corpus.build()
    assert COPY in corpus.uris(after)
    proof = report.prove(corpus.ctx)
    assert len(proof.removed) == 1
    assert proof.remains[0].what == "1 near duplicates of url h0.example.org/0 under other addresses"


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

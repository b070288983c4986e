"""From what is asked for to an entry, and the corpus without it: copies gone, only touched parts written again."""

from __future__ import annotations

from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.corpus import exclusions
from plinth.errors import MissingError, RequestError
from plinth_audit.takedown import search
from plinth_audit.takedown.search import propose
from tests.taken_corpus import COPY, FILES, LINES, PAGE, QUOTE, Corpus, copied, essay


def excluded(corpus: Corpus, *args: Any, **options: Any) -> search.Proposal:
    proposed = propose(corpus.ctx, *args, reason="a letter", **options)
    exclusions.append(corpus.ctx, **proposed.fields)
    return proposed


def how(found: search.FoundDocuments) -> dict[str, str]:
    return {one.uri: one.how for one in found.documents}


def test_a_text_brings_its_copy_and_its_quotation(corpus: Corpus) -> None:
    found = search.find(corpus.ctx, "text", essay(0).upper())
    assert found.notes == ()
    assert how(found)[PAGE] == "same text"
    assert how(found)[COPY] == "near duplicate"
    found = search.find(corpus.ctx, "text", essay(0))
    assert how(found)[QUOTE].startswith("verbatim span of ")
    assert set(how(found)) == {PAGE, COPY, QUOTE}


def test_a_removed_text_is_gone_with_its_copies_and_only_two_parts_are_new(corpus: Corpus) -> None:
    before = corpus.ctx.refs.current("web/documents")
    proposed = excluded(corpus, "text", essay(0))
    assert (proposed.count, proposed.parts, proposed.of_parts) == (2, 2, FILES)
    corpus.ctx = Context(corpus.ctx.workspace)  # whose costs begin at nothing
    after = corpus.build()
    assert corpus.uris(before) - corpus.uris(after) == {PAGE, COPY}
    assert corpus.ctx.costs["documents/takedown"].tasks == proposed.parts
    for step in ("documents", "minhash/signatures"):  # parts that no entry touches are not even signed again
        assert corpus.ctx.costs[step].tasks == (0 if step == "documents" else proposed.parts)
    kept = {part.blob.sha256 for part in before.named("part-")} & {part.blob.sha256 for part in after.named("part-")}
    assert len(kept) == FILES - 2
    found = search.find(corpus.ctx, "text", essay(0))
    assert {one.uri for one in found.documents if one.published} == {QUOTE}
    assert found.documents[0].how.startswith("verbatim span")


def test_quotations_go_when_they_are_asked_for(corpus: Corpus) -> None:
    before = corpus.ctx.refs.current("web/documents")
    assert excluded(corpus, "text", essay(0), spans=True).count == 3
    assert corpus.uris(before) - corpus.uris(corpus.build()) == {PAGE, COPY, QUOTE}


def test_an_address_takes_its_text_under_another_address_in_a_later_snapshot(corpus: Corpus) -> None:
    before = corpus.ctx.refs.current("web/documents")
    excluded(corpus, "url", "h0.example.org/0")
    corpus.write("later.jsonl", {"https://mirror.example/x": copied(essay(0)), "https://mirror.example/y": essay(9999)})
    after = corpus.build()
    assert corpus.uris(after) - corpus.uris(before) == {"https://mirror.example/y"}
    assert corpus.uris(before) - corpus.uris(after) == {PAGE, COPY}
    assert after.stats["rejects"]["takedown"] == 3


def test_an_address_alone_when_texts_are_left_out(corpus: Corpus) -> None:
    assert propose(corpus.ctx, "url", PAGE, "a letter", texts=False).count == 1


def test_a_document_that_has_left_is_taken_by_the_text_that_an_earlier_snapshot_has(corpus: Corpus) -> None:
    found = search.find(corpus.ctx, "url", PAGE)
    excluded(corpus, "url", PAGE, texts=False)
    corpus.build()
    earlier = search.find(corpus.ctx, "document", found.documents[0].id)
    assert (earlier.count, earlier.earlier) == (1, 1)  # the copy, in its cluster
    assert propose(corpus.ctx, "document", found.documents[0].id, "a letter").count == 1  # the copy


def test_much_of_the_corpus_needs_a_confirmation(corpus: Corpus) -> None:
    proposed = propose(corpus.ctx, "licence", "MIT", "a letter")
    assert (proposed.count, proposed.share, proposed.needs_confirmation) == (FILES * LINES, 1.0, True)
    assert not propose(corpus.ctx, "url", PAGE, "a letter", texts=False).needs_confirmation


def test_what_is_unknown_or_without_reason_is_refused(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match="no document"):
        propose(corpus.ctx, "document", "0" * 32, "a letter")
    with pytest.raises(RequestError, match="reason"):
        propose(corpus.ctx, "url", PAGE, " ")
    for module in (search, search):
        monkeypatch.setattr(module, "LISTED", 5)
    with pytest.raises(RequestError, match="too many texts"):
        propose(corpus.ctx, "domain", "example.org", "a letter", texts=True)

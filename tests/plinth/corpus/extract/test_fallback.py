"""Fallback of the engine `blocks`: when the slow engine reads a page, which text is taken, and what a page may cost."""

from __future__ import annotations

from collections import Counter

import pytest

from plinth.corpus.documents import documents
from plinth.corpus.extract.extractor import Extractor, extracted
from plinth.corpus.extract.fallback import agreement, with_fallback
from plinth.corpus.extract.page import (
    SLOW,
    UNSURE,
    UNSURE_ABOVE,
    UNSURE_KEY,
    ExtractionFailure,
    MainContent,
    Page,
    Text,
)
from plinth.corpus.extract.worker import LIBRARIES, engine
from plinth.corpus.sources.parameters import Bucket, Documents, Extraction
from plinth.corpus.sources.record import RawRecord
from tests.plinth.corpus.extract.test_content import FIRST, SECOND, THIRD

#: Text of which the model is sure, and text that may be a link to another page.
LONG = f"<p>{FIRST} {SECOND}</p><p>{SECOND} {THIRD}</p><p>{THIRD} {FIRST} {SECOND}</p><p>{FIRST} {THIRD}</p>"
SHORT = f"<p>{FIRST}</p><p>{SECOND}</p><div class=related><p>{THIRD}</p></div>"


def page(kind: str, text: str) -> str:
    head = f'<head><title>T</title><meta property="og:type" content="{kind}"></head>'
    body = f"<body><article>{text}</article><footer>Imprint</footer></body>"
    return f"<!doctype html><html>{head}{body}</html>"


def fast(text: str, unsure: float) -> MainContent:
    return MainContent(text, "title", unsure, article=True)


@pytest.mark.parametrize(
    ("unsure", "slow", "expected"),
    [
        (0.2, "other words", ("one two three four", 0)),
        (0.4, "one two three", ("one two three", SLOW)),
        (0.4, "one other text here", ("one two three four", UNSURE)),
        (0.4, "", ("one two three four", UNSURE)),
    ],
)
def test_the_slow_text_is_taken_if_both_agree(unsure: float, slow: str, expected: tuple[str, int]) -> None:
    extract = with_fallback(lambda html: fast(html, unsure), lambda html: MainContent(slow, None))
    found = extract("one two three four")
    assert (found.text, found.route) == expected
    assert found.title == "title"


def test_an_engine_that_fails_costs_no_text() -> None:
    def slow(html: str) -> MainContent:
        raise RecursionError

    assert with_fallback(lambda html: fast(html, 9.0), slow)("text") == fast("text", 9.0)._replace(route=UNSURE)


def test_agreement_is_the_f1_of_words() -> None:
    assert agreement("A b, c d.", "a b") == pytest.approx(2 * 2 / 6)
    assert agreement("a a", "a") == pytest.approx(2 / 3)
    assert agreement("", "") == 1.0
    assert agreement("a", "") == 0.0


def test_only_articles_are_read_again() -> None:
    extract = engine("blocks")
    short, other = extract(page("article", SHORT)), extract(page("website", SHORT))
    long = extract(page("article", LONG))
    assert short.unsure > UNSURE_ABOVE
    assert other.unsure > UNSURE_ABOVE
    assert long.unsure == 0.0
    assert (short.article, other.article, long.article) == (True, False, True)
    forum = page("article", SHORT).replace("<body>", '<body class="bbpress topic">')
    a_list = f"{page('article', SHORT)}<i itemtype=https://schema.org/CollectionPage>"
    assert not extract(forum).article
    assert not extract(a_list).article
    assert with_fallback(lambda html: other, lambda html: MainContent("no", None))("") == other


def test_pages_are_counted_by_the_engine_that_wrote_their_text() -> None:
    bodies = [page("article", SHORT), page("website", SHORT), page("article", LONG)]
    records = [
        RawRecord(f"https://x.org/{n}", body.encode(), "text/html", "MIT", 9, "") for n, body in enumerate(bodies)
    ]
    text = RawRecord("https://x.org/text", "text", "text/plain", "MIT", 4, "")
    counts = Counter[str]()
    with Extractor(Extraction(engine="blocks+trafilatura")) as extractor:
        found = list(extracted([*records, text], extractor, counts))
    assert counts == {"pages": 3, "unsure_pages": 1, "fallback_pages": 1}
    assert [item.content for item in found if isinstance(item, RawRecord)] == [
        engine("trafilatura")(bodies[0]).text,
        *(engine("blocks")(body).text for body in bodies[1:]),
        "text",
    ]
    with Extractor(Extraction(engine="blocks")) as extractor:
        counts.clear()
        list(extracted(records, extractor, counts))
    assert not counts


def test_a_document_says_how_unsure_the_engine_was() -> None:
    bodies = [page("website", SHORT), page("article", LONG)]
    with Extractor(Extraction(engine="blocks")) as extractor:
        unsure, sure = extractor.extract([Page(body.encode()) for body in bodies])
    assert isinstance(unsure, Text)
    assert isinstance(sure, Text)
    assert unsure.facts[UNSURE_KEY] == f"{engine('blocks')(bodies[0]).unsure:.2f}"
    assert UNSURE_KEY not in sure.facts


@pytest.fixture
def slow_page() -> Page:
    """Article that the fast engine reads in a fraction of the time that the slow one needs."""
    return Page(page("article", SHORT + "<a href=x>x</a>" * 100_000).encode())


def test_a_page_that_is_too_slow_for_the_fallback_keeps_its_text(slow_page: Page) -> None:
    sure = Page(page("website", SHORT).encode())
    with Extractor(Extraction(engine="trafilatura", seconds_per_page=0.5)) as extractor:
        (alone,) = extractor.extract([slow_page])
    assert isinstance(alone, ExtractionFailure)
    assert alone.reason == "extract_timeout"
    with Extractor(Extraction(engine="blocks+trafilatura", seconds_per_page=0.5)) as extractor:
        found = extractor.extract([sure, slow_page, sure])
    assert [isinstance(item, Text) for item in found] == [True] * 3
    assert [item.route for item in found if isinstance(item, Text)] == [0, UNSURE, 0]


def test_both_engines_are_part_of_the_identity() -> None:
    terms = {"train": True, "redistribute": True, "commercial": True}
    source = {"kind": "html", "path": "x", "licence": "MIT", "terms": terms, "domain": "d", "snapshot": "s"}
    bucket = Bucket.model_validate({"description": "d", "owner": "o", "sources": [source]})
    params = Documents.model_validate({"extraction": "blocks+trafilatura"})
    assert {*LIBRARIES["blocks"], *LIBRARIES["trafilatura"]} <= set(documents.libraries(bucket, params))

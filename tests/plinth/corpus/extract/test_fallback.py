"""Fallback of the engine `blocks`: when the slow engine reads a page, which text is taken, and what a page may cost."""

from __future__ import annotations

from collections import Counter

import pytest

from plinth.corpus.documents import documents
from plinth.corpus.extract.content.engine import BlockEngine, default_model
from plinth.corpus.extract.content.risk import risk_of
from plinth.corpus.extract.extractor import Extractor, extracted
from plinth.corpus.extract.fallback import (
    AGAINST,
    AGREEMENT,
    ASKED_ABOVE,
    FOR,
    NEARLY_SURE,
    NEARLY_SURE_AGREEMENT,
    agreement,
    votes,
    with_fallback,
)
from plinth.corpus.extract.page import (
    RISK_ABOVE,
    RISK_KEY,
    SLOW,
    UNSURE,
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
SHORT = f"<p>{FIRST}</p><p>{SECOND}</p><div class='related comments'><p>{THIRD}</p></div>"


PUBLISHED = '<meta property="article:published_time" content="2026-01-01">'


def page(kind: str, text: str) -> str:
    head = f'<head><title>T</title><meta property="og:type" content="{kind}">{PUBLISHED}</head>'
    body = f"<body><article>{text}</article><footer>Imprint</footer></body>"
    return f"<!doctype html><html>{head}{body}</html>"


def voted(html: str, slow: str) -> MainContent:
    """Return the main content of a page by `blocks`, with the votes of a text."""
    return with_fallback(BlockEngine(default_model()), lambda html: MainContent(slow, None))(html)


def test_the_slow_text_votes_on_the_blocks_if_both_agree() -> None:
    html = page(
        "article", f"<ul><li>{FIRST}</li></ul><p>{SECOND}</p><div class='related comments'><p>{THIRD}</p></div>"
    )
    alone = BlockEngine(default_model())(html)
    assert alone.unsure > ASKED_ABOVE
    assert THIRD in alone.text
    without = voted(html, f"- {FIRST}\n{SECOND}")
    assert without.text == f"  • {FIRST}\n\n{SECOND}"  # in the form of `blocks`
    assert (without.route, without.title) == (SLOW, "T")
    assert 1 - agreement(alone.text, without.text) < without.unsure < alone.unsure
    every = voted(html, f"{FIRST} {SECOND} {THIRD}")
    assert (every.text, every.route) == (alone.text, SLOW)
    assert every.unsure < alone.unsure
    assert voted(html, "other words") == alone._replace(route=UNSURE)
    assert voted(html, "") == alone._replace(route=UNSURE)


def test_a_text_that_is_nearly_sure_gives_way_to_a_similar_text_only() -> None:
    alone = BlockEngine(default_model())
    unsure = page("article", SHORT)
    sure = page("article", f"{LONG}<div class='related comments'><p>{FIRST} {THIRD}</p></div>")
    assert alone(unsure).unsure > NEARLY_SURE > alone(sure).unsure > ASKED_ABOVE
    for html, route in ((unsure, SLOW), (sure, UNSURE)):
        text = alone(html).text
        assert AGREEMENT < agreement(text, half := text[: len(text) // 2]) < NEARLY_SURE_AGREEMENT
        assert voted(html, half).route == route


def test_the_slow_engine_reads_a_page_without_what_is_surely_no_content() -> None:
    menu = "<nav class=menu><ul><li><a href=/a>Home</a><li><a href=/b>News</a></ul></nav>"
    unseen = "<!-- no --><script>no</script><svg><g/></svg><div hidden><p>no</p></div><b style='display:none'>no</b>"
    html = page("article", f"<p class=lead>{FIRST} <b>of</b> <a href=/c>it</a></p>{unseen}<div><i></i></div>{menu}")
    copy = f"<html><body><article><p class=lead>{FIRST} of <a href=/c>it</a></p><div></div>"
    alone = BlockEngine(default_model())
    assert alone.shortened(html, 5.0).html == f"{copy}<nav class=menu></nav></article><footer></footer></body></html>"
    whole = alone.shortened(html, 99.0)
    assert whole.html == f"{copy}{menu}</article><footer>Imprint</footer></body></html>"
    assert whole.texts == [f"{FIRST} of it", "Home", "News", "Imprint"]


def test_a_vote_is_the_share_of_a_block_that_is_in_the_text() -> None:
    half = f"{FIRST} {THIRD}"
    for_it, against, mixed, *short = votes([FIRST, SECOND, half, "The mill", "—"], f"{FIRST} The mill").tolist()
    assert (for_it, against, short) == (FOR, -AGAINST, [0, 0])
    assert -1 < mixed < 1


def test_a_slow_engine_that_fails_costs_no_text() -> None:
    def slow(html: str) -> MainContent:
        raise RecursionError

    html, fast = page("article", SHORT), BlockEngine(default_model())
    assert with_fallback(fast, slow)(html) == fast(html)._replace(route=UNSURE)


def test_agreement_is_the_f1_of_words() -> None:
    assert agreement("A b, c d.", "a b") == pytest.approx(2 * 2 / 6)
    assert agreement("a a", "a") == pytest.approx(2 / 3)
    assert agreement("", "") == 1.0
    assert agreement("a", "") == 0.0


def test_only_articles_are_read_again() -> None:
    extract = engine("blocks")
    short, other = extract(page("article", SHORT)), extract(page("website", SHORT))
    long = extract(page("article", LONG))
    assert short.unsure > ASKED_ABOVE
    assert other.unsure > ASKED_ABOVE
    assert long.unsure < 0.05
    assert (short.article, other.article, long.article) == (True, False, True)
    forum = page("article", SHORT).replace("<body>", '<body class="bbpress topic">')
    a_list = f"{page('article', SHORT)}<i itemtype=https://schema.org/CollectionPage>"
    assert not extract(forum).article
    assert not extract(a_list).article
    once = page("article", SHORT).replace(PUBLISHED, "")  # some programs declare every page an article
    assert not extract(once).article
    assert extract(once + '<script type="application/ld+json">{"@type": "NewsArticle"}</script>').article
    assert voted(page("website", SHORT), FIRST) == other


def test_pages_are_counted_by_the_engines_that_read_them() -> None:
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
        *(engine("blocks+trafilatura")(body).text for body in bodies),
        "text",
    ]
    with Extractor(Extraction(engine="blocks")) as extractor:
        counts.clear()
        list(extracted(records, extractor, counts))
    assert not counts


def test_a_document_says_how_risky_its_text_is() -> None:
    items = "".join(
        f"<div class=item><h3><a href=/{n}>The story of the mill in the year {n}</a></h3><p>{text}</p></div>"
        for n, text in ((1903, FIRST), (1904, SECOND), (1905, THIRD))
    )
    bodies = [page("website", SHORT), page("article", LONG), page("website", items)]
    with Extractor(Extraction(engine="blocks")) as extractor:
        found = extractor.extract([Page(body.encode()) for body in bodies])
    contents = [engine("blocks")(body) for body in bodies]
    risks = [risk_of(content.unsure, content.traits) for content in contents]
    unsure, sure, index = risks
    assert sure < RISK_ABOVE < 0.25 < min(unsure, index)
    written = [one.facts.get(RISK_KEY) for one in found if isinstance(one, Text)]
    assert written == [f"{unsure:.3f}", None, f"{index:.3f}"]
    with Extractor(Extraction(engine="trafilatura")) as extractor:
        (other,) = extractor.extract([Page(bodies[1].encode())])
    assert isinstance(other, Text)
    assert RISK_KEY not in other.facts


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

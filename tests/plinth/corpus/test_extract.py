"""Extraction: what comes out of pages, and what hostile pages cannot do."""

from __future__ import annotations

import os
import signal
import time

import pytest

from plinth.corpus.extract import Extractor, Failure, Page, Text
from plinth.errors import WorkerError
from plinth.recipe.sources import Extraction

ARTICLE = b"""<!doctype html><html lang="en"><head><title> The  title </title>
<link rel="canonical" href="https://example.org/a"><meta property="article:published_time" content="2026-01-02">
</head><body><nav><a href="/">Home</a> <a href="/b">Other</a></nav><article><h1>The title</h1>
<p>The first paragraph says enough to be kept as the main content of this page, and so does&nbsp;this.</p>
<p>The second paragraph goes on at some length about the same matter, as articles are wont to do.</p>
</article><footer>Imprint</footer></body></html>"""
#: Found to loop without end in resiliparse 2.0.
DEEP = b"<div>" * 100_000 + b"x" + b"</div>" * 100_000


def extract(pages: list[Page], **params: object) -> list[Text | Failure]:
    with Extractor(Extraction.model_validate(params)) as extractor:
        return list(extractor.extract(pages))


@pytest.mark.parametrize("engine", ["resiliparse", "trafilatura"])
def test_main_content_and_facts(engine: str) -> None:
    (found,) = extract([Page(ARTICLE)], engine=engine)
    assert isinstance(found, Text)
    assert "The first paragraph" in found.text
    assert "does this" in found.text
    assert "Imprint" not in found.text
    facts = {"title": "The title", "canonical": "https://example.org/a", "date": "2026-01-02", "lang": "en"}
    assert found.facts == facts


@pytest.mark.parametrize(
    ("body", "charset"),
    [
        ("<p>schön</p>".encode(), ""),
        ("<p>schön</p>".encode("latin-1"), "iso-8859-1"),
        ('<meta charset="iso-8859-1"><p>schön</p>'.encode("latin-1"), ""),
        ("<p>schön</p>".encode("utf-16"), ""),
        (b"\xef\xbb\xbf" + "<p>schön</p>".encode(), "iso-8859-1"),
        ("<p>schön</p>".encode(), "no-such-charset"),
    ],
)
def test_character_sets(body: bytes, charset: str) -> None:
    (found,) = extract([Page(body, charset)])
    assert isinstance(found, Text)
    assert found.text.strip() == "schön"


def test_a_page_that_hangs_the_parser_is_a_failure_and_the_rest_go_on() -> None:
    started = time.monotonic()
    pages = [Page(ARTICLE), Page(DEEP), Page(ARTICLE), Page(b"<p>a\0b"), Page(ARTICLE)]
    found = extract(pages, seconds_per_page=0.5)
    kinds = ["text" if isinstance(item, Text) else item.reason for item in found]
    assert kinds == ["text", "extract_timeout", "text", "nul_bytes", "text"]
    assert time.monotonic() - started < 20


def test_a_dead_child_costs_no_page() -> None:
    with Extractor(Extraction()) as extractor:
        answers = extractor.extract([Page(ARTICLE)] * 40)
        first = next(answers)
        assert extractor._child is not None
        os.kill(extractor._child.pid, signal.SIGKILL)
        assert [first, *answers] == [first] * 40


def test_the_end_of_the_parent_is_the_end_of_the_child() -> None:
    with Extractor(Extraction()) as extractor:
        list(extractor.extract([Page(ARTICLE)]))
        child = extractor._child
    assert child is not None
    assert child.poll() is not None


def test_an_extractor_that_cannot_start_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(WorkerError, match="does not start"):
        extract([Page(ARTICLE)])

"""Metadata of a page: spellings, places that are ignored, dates in common notations."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.corpus.extract.extractor import _with_text
from plinth.corpus.extract.page import HEAD_CHARACTERS, Text, page_facts
from plinth.corpus.sources.record import RawRecord
from plinth.corpus.sources.times import iso_date

E = "https://e.org/a"


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("2026-01-02", "2026-01-02"),
        (" 2026-1-2 ", "2026-01-02"),
        ("2026-01-02T23:30:00-05:00", "2026-01-02"),
        ("2026-01-02 10:00:00.000Z", "2026-01-02"),
        ("2026/01/02", "2026-01-02"),
        ("20260102", "2026-01-02"),
        ("20260102T101500Z", "2026-01-02"),
        ("20260102101500", "2026-01-02"),
        ("2026-01", "2026-01"),
        ("2026", "2026"),
        ("Fri, 02 Jan 2026 10:00:00 GMT", "2026-01-02"),
        ("Fri Jan 02 2026 10:00:00 GMT+0100 (CET)", "2026-01-02"),
        ("Fri Jan  2 10:00:00 2026", "2026-01-02"),
        ("Fri Jan  2 10:00:00 CET 2026", "2026-01-02"),
        ("January 2nd, 2026", "2026-01-02"),
        ("Published on 2 January 2026", "2026-01-02"),
        ("2nd of January, 2026", "2026-01-02"),
        ("2-Jan-2026", "2026-01-02"),
        ("Sept. 2019", "2019-09"),
        ("02.01.2026", "2026-01-02"),
        ("31/01/2026", "2026-01-31"),
        ("01/31/2026", "2026-01-31"),
        ("1767312000", "2026-01-02"),
        ("1767312000000", "2026-01-02"),
        ("1886-05-04", "1886-05-04"),
        ("02/01/2026", None),  # the first of February, or the second of January
        ("2026-02-30", None),
        ("2026-13-01", None),
        ("31.02.2026", None),
        ("0000-00-00", None),
        ("0001-01-01T00:00:00", None),
        ("2026-01-023", None),
        ("١٩٩٩-٠١-٠١", None),
        ("yesterday", None),
        ("12026", None),
        ("", None),
    ],
)
def test_dates_as_pages_write_them(text: str, date: str | None) -> None:
    assert iso_date(text) == date


@given(st.text() | st.from_regex(re.compile(r"\s?\d{1,4}[-/. ]?(\d{1,2}|Jan|december)[-/., ]?\d{1,14}", re.ASCII)))
def test_of_any_text_a_date_is_one_of_the_calendar_or_none(text: str) -> None:
    date = iso_date(text)
    assert date is None or re.fullmatch(r"[12]\d{3}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?", date)


LINK = f'<link rel="canonical" href="{E}">'


@pytest.mark.parametrize(
    ("html", "facts"),
    [
        (f"<head>{LINK}</head>", {"canonical": E}),
        ("<LINK HREF='https://e.org/a' REL='CANONICAL'>", {"canonical": E}),
        (f"<link href={E} rel=canonical/>", {}),  # the slash belongs to an unquoted value
        (f"<link href={E} rel=canonical />", {"canonical": E}),
        (f'<link rel="alternate canonical" href="{E}">', {"canonical": E}),
        (f'<link rel="alternate" href="/b">{LINK}<link rel="canonical" href="/c">', {"canonical": E}),
        ('<link rel="canonical" href="https://e.org/?a=1&amp;b= 2\n">', {"canonical": "https://e.org/?a=1&b=%202"}),
        ('<link rel="canonical" href="b"><base href="https://e.org/x/">', {"canonical": "https://e.org/x/b"}),
        ('<base href="https://[bad"><link rel="canonical" href="b">', {}),
        (f'<link rel="canonical" href="https://e.org/{"x" * 3000}">', {}),
        (f'<link rel="canonical" href=""><meta property="og:url" content="{E}">', {"canonical": E}),
        (f"<title>canonical {LINK}</title><p>{LINK}<body>", {}),
        (f"<!-- {LINK} --><script>'{LINK}'</script><style>{LINK}</style><template>{LINK}</template>", {}),
        (f"<!--[if !IE]><!-->{LINK}<!--<![endif]-->", {"canonical": E}),
        (f"<!-->{LINK}", {"canonical": E}),
        (f"<!-- -- - ->{LINK}-->", {}),
        (f"<head></head>{LINK}<body>", {"canonical": E}),
        (f"<head><div>user wrote {LINK}</div>", {}),
        (f"<body>{LINK}", {}),
        (f'<meta content="a > b" name=x>{LINK}', {"canonical": E}),
        (f'<meta content="never closed>{LINK}', {}),
        (f"<meta name=it's>{LINK}", {"canonical": E}),
        (f"<noscript>{LINK}</noscript>", {"canonical": E}),
        ("<meta property='OG:Title' content=' A &amp;\n B '>", {"title": "A & B"}),
        ("<meta name=DC.Date content=2020-02-03>", {"date": "2020-02-03"}),
        ('<meta name="date" content="soon"><meta name="pubdate" content="3 Feb 2020">', {"date": "2020-02-03"}),
        (
            '<meta name="citation_date" content="2018"><meta property="article:published_time" content="2020-02-03">',
            {"date": "2020-02-03"},
        ),
        ('<body><script>{"datePublished" : "2020-02-03T10:00:00"}</script>', {"date": "2020-02-03"}),
        ('<body><time datetime="2020-02-03" itemprop="datePublished">Monday</time>', {"date": "2020-02-03"}),
        ('<body><meta itemprop=datePublished content="2020-02-03">', {"date": "2020-02-03"}),
        ('<body>write "datePublished" into it, or itemprop=datePublished', {}),
        ("<html lang=de-AT>", {"lang": "de-AT"}),
        ('<!DOCTYPE html>\n<HTML class="a"\n LANG = "en" >', {"lang": "en"}),
        ('<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="pt">', {"lang": "pt"}),
        ('<html data-lang="x"><body lang="fr">', {}),
        ('<html lang="">', {}),
    ],
)
def test_facts_of_a_head(html: str, facts: dict[str, str]) -> None:
    assert page_facts(html, None) == facts


def test_the_title_of_the_page_comes_before_the_one_for_sharing() -> None:
    shared = '<meta property="og:title" content="Shared">'
    assert page_facts(shared, " The \n title ") == {"title": "The title"}
    assert page_facts(shared, " \n ") == {"title": "Shared"}


@pytest.mark.parametrize(
    "piece",
    [
        *(
            '<meta name="',
            "<meta content='a' ",
            "<meta date=",
            "<!-- ",
            "<script>",
            "<html lang ",
            "<link rel=canonical",
        ),
        *("x", " ", "=", "<title>date", '"datePublished"', "<html" + " " * 100, "<meta " + "y" * 1000),
    ],
)
def test_hostile_heads_end(piece: str) -> None:
    """By the square of its length any of these would take hours."""
    html = "<html><meta og: " + piece * (2 * HEAD_CHARACTERS // len(piece))
    assert set(page_facts(html, "t")) <= {"title", "lang", "date"}


@pytest.mark.parametrize(
    ("uri", "written", "kept"),
    [
        ("https://e.org/x/y?z", "/a", E),
        ("https://e.org/x/y", "../a", E),
        ("https://e.org/x", "//e.org/a", E),
        ("https://e.org/x", "HTTPS://e.org/a", E),
        ("https://e.org/x", "javascript:void(0)", None),
        ("https://e.org/x", "//[", None),
        ("folder/page.html", "/a", None),
        ("folder/page.html", E, E),
    ],
)
def test_a_canonical_address_is_one_of_the_web(uri: str, written: str, kept: str | None) -> None:
    page = RawRecord(uri, b"<p>", "text/html", "MIT", 3, "record 1", charset="utf-8", extra={"truncated": "length"})
    found = _with_text(page, Text("text", {"canonical": written}))
    assert found.extra == {"truncated": "length"} | ({"canonical": kept} if kept else {})
    assert (found.uri, found.content, found.charset, found.where) == (uri, "text", "", "record 1")

"""Extraction: what comes out of pages, and what hostile pages cannot do."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import psutil
import pytest

from plinth.compute.worker import SPARES
from plinth.corpus.extract import worker
from plinth.corpus.extract.extractor import Extractor
from plinth.corpus.extract.page import ExtractionFailure, Page, Text
from plinth.corpus.sources.parameters import Extraction
from plinth.errors import WorkerError

ARTICLE = b"""<!doctype html><html lang="en"><head><title> The  title </title>
<link rel="canonical" href="https://example.org/a"><meta property="article:published_time" content="2026-01-02">
</head><body><nav><a href="/">Home</a> <a href="/b">Other</a></nav><article><h1>The title</h1>
<p>The first paragraph says enough to be kept as the main content of this page, and so does&nbsp;this.</p>
<p>The second paragraph goes on at some length about the same matter, as articles are wont to do.</p>
</article><footer>Imprint</footer></body></html>"""
#: Found to loop without end in resiliparse 2.0.
DEEP = b"<div>" * 100_000 + b"x" + b"</div>" * 100_000


def extract(pages: list[Page], **params: object) -> list[Text | ExtractionFailure]:
    with Extractor(Extraction.model_validate(params)) as extractor:
        return list(extractor.extract(pages))


@pytest.mark.parametrize("engine", ["blocks", "blocks+trafilatura", "resiliparse", "trafilatura"])
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
        ("<p>schön</p>".encode("utf-16-le"), ""),
        ("<p>schön</p>".encode("utf-16-be"), "utf-8"),
        ('<meta charset="utf-16"><p>schön</p>'.encode("latin-1"), ""),
        ('<meta charset="no-such-charset"><p>schön</p>'.encode(), ""),
    ],
)
def test_character_sets(body: bytes, charset: str) -> None:
    (found,) = extract([Page(body, charset)])
    assert isinstance(found, Text)
    assert found.text.strip() == "schön"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("これは日本語の文章です。とても短いですが、十分でしょう。", "shift_jis"),
        ("这是一个中文网页，内容很短，但是应该足够了。", "gb18030"),
        ("Это страница на русском языке, и её текст довольно короткий.", "windows-1251"),
    ],
)
def test_a_charset_that_cannot_be_true_is_not_believed(text: str, encoding: str) -> None:
    body = f'<meta charset="iso-8859-1"><p>{text}</p>'.encode(encoding)
    (found,) = extract([Page(body, "iso-8859-1")])
    assert isinstance(found, Text)
    assert found.text.strip() == text


CODE = """def f(x):
    for i in range(3):
        if x < i:

            print("a  b")
    return  x"""
MANUAL = """<!doctype html><html lang="en"><head><title>T</title></head><body>
<div id="cookie-banner" class="cookie-consent">We use cookies. Accept all</div>
<nav><ul><li><a href="/">Home</a></li><li><a href="/b">Blog</a></li></ul></nav>
<main><article><h1>How to write loops</h1>
<p>The first paragraph says enough to be kept as the main content of this page, and so does this one.</p>
<pre><code class="language-python">CODE
</code></pre>
<p>Use <code>range(n)</code> in a second paragraph which goes on at some length about the matter, as articles do.</p>
<table><tr><th>Name</th><th>Value</th></tr><tr><td>alpha</td><td>1.5</td></tr><tr><td>beta</td><td>2</td></tr></table>
<p>Then there are lists, of which the following is one with three items of different length in it:</p>
<ul><li>the first item of the list is a sentence of some length</li><li>the second item</li><li>and a third</li></ul>
<p>The last paragraph has <b>bold</b> words and a <br> break, and closes the article with enough words to stay.</p>
</article></main><footer>Copyright, imprint, privacy policy</footer></body></html>""".replace(
    "CODE", CODE.replace("<", "&lt;")
)


@pytest.mark.parametrize("engine", ["blocks", "blocks+trafilatura", "resiliparse", "trafilatura"])
def test_boilerplate_goes_and_content_stays(engine: str) -> None:
    (found,) = extract([Page(MANUAL.encode())], engine=engine)
    assert isinstance(found, Text)
    for gone in ("cookies", "Home", "Blog", "imprint"):
        assert gone not in found.text
    for kept in ("How to write loops", "The first paragraph", "Use range(n) in", "bold words", "words to stay."):
        assert kept in found.text
    places = [found.text.index(mark) for mark in ("first paragraph", "def f", "second paragraph", "alpha", "last para")]
    assert places == sorted(places)


def test_tables_and_lists_can_be_read() -> None:
    """Cases that the engines miss: resiliparse separates table cells only with tabs, and omits lists that it takes for
    menus; trafilatura writes both as Markdown, but separates paragraphs by a single line end."""
    fast, close = (extract([Page(MANUAL.encode())], engine=name)[0] for name in ("resiliparse", "trafilatura"))
    assert isinstance(fast, Text)
    assert isinstance(close, Text)
    assert [line.split() for line in fast.text.splitlines() if "alpha" in line] == [["alpha", "1.5"]]
    assert "| alpha | 1.5 |" in close.text
    assert "- the second item\n- and a third" in close.text
    assert "this one.\n\ndef f" in fast.text
    assert "this one.\ndef f" in close.text


BOMB = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True))
HOSTILE = {
    "entities": f'<!DOCTYPE html [<!ENTITY a "aaaaaaaaaa">{BOMB}]><p>start &i; end</p>'.encode(),
    "file entity": b'<!DOCTYPE html [<!ENTITY x SYSTEM "file:///etc/passwd">]><html><body><p>my &x; here</p>',
    "megabyte attribute": b'<p title="' + b"x" * 3_000_000 + b'">text</p>',
    "many attributes": b"<p " + b" ".join(b"a%d=1" % n for n in range(100_000)) + b">text</p>",
    "nested": DEEP,
    "nested formatting": b"<b>" * 50_000 + b"text",
    "nested tables": b"<table><tr><td>" * 30_000 + b"text",
    "unclosed": b"<p>" * 100_000,
    "comment": b"<!--" + b"-" * 1_000_000 + b"<p>text",
    "brackets": b"<" * 300_000,
    "ampersands": b"&" * 300_000,
    "templates": b"<template><svg><select><option>" * 20_000,
    "script only": b"<html><body><script>document.write('secret'.repeat(1000))</script></body></html>",
    "style only": b"<style>secret {color: red}</style>",
    "nul": b"<p>a\0b</p>",
    "nothing": b"",
    "not HTML": bytes(range(256)) * 100,
}


@pytest.mark.parametrize("engine", ["blocks", "blocks+trafilatura", "resiliparse", "trafilatura"])
def test_hostile_pages_give_text_or_a_reason_and_the_page_after_them_is_read(engine: str) -> None:
    pages = [Page(body) for body in HOSTILE.values()]
    found = extract([*pages, Page(ARTICLE)], engine=engine, seconds_per_page=0.4)
    assert len(found) == len(pages) + 1
    assert isinstance(found[-1], Text)
    for name, item in zip(HOSTILE, found, strict=False):
        if isinstance(item, ExtractionFailure):
            assert item.reason in ("extract_timeout", "extract_failed", "nul_bytes"), name
        else:
            assert "secret" not in item.text, name
            assert "root:" not in item.text, name
            assert len(item.text) < 2 * len(HOSTILE[name]) + 100, name


def test_a_page_that_hangs_the_parser_is_a_failure_and_the_rest_go_on() -> None:
    pages = [Page(ARTICLE), Page(DEEP), Page(ARTICLE), Page(b"<p>a\0b"), Page(ARTICLE)]
    found = extract(pages, seconds_per_page=0.5)
    kinds = ["text" if isinstance(item, Text) else item.reason for item in found]
    assert kinds == ["text", "extract_timeout", "text", "nul_bytes", "text"]


@pytest.mark.parametrize("when", ["between pages", "inside a page"])
def test_a_child_killed_from_outside_costs_no_page(when: str) -> None:
    slow = Page(b"<p>slow" + b"<b>" * 3000)
    batches = [[Page(ARTICLE)] * 5, [Page(ARTICLE), slow, slow, Page(ARTICLE)], [Page(ARTICLE)] * 3]
    with Extractor(Extraction()) as extractor:
        whole = list(extractor.map(batches))
    assert all(isinstance(item, Text) for answers in whole for item in answers)
    with Extractor(Extraction()) as extractor:
        answers = extractor.map(batches)
        found = [next(answers)]
        child = extractor._stream._worker
        assert child is not None
        while when == "inside a page" and child.started_and_finished()[0] == child.started_and_finished()[1]:
            time.sleep(0)
        os.kill(child.pid, signal.SIGKILL)
        assert [*found, *answers] == whole


def test_many_batches_of_any_size_keep_their_order() -> None:
    """Pages larger than a pipe, answers larger than a pipe, none at all, and failures anywhere."""
    large = b"<p>" + b"word " * 500_000
    bodies = [b"<p>%d</p>" % n for n in range(30)] + [large] * 2 + [b"<p>a\0b"] * 2 + [DEEP]
    random.Random(0).shuffle(bodies)
    pages = [Page(body) for body in bodies]
    params = Extraction(seconds_per_page=0.3)
    with Extractor(params) as extractor:
        single = [extractor.extract([page])[0] for page in pages]
    assert [type(item) for item in single].count(ExtractionFailure) == 3
    for size in (7, len(pages)):
        batches = [pages[at : at + size] for at in range(0, len(pages), size)]
        with Extractor(params) as extractor:
            found = list(extractor.map(chain.from_iterable(([], batch) for batch in batches)))
        assert [len(answers) for answers in found] == [n for batch in batches for n in (0, len(batch))]
        assert [item for answers in found for item in answers] == single


def test_a_page_gets_its_time_however_much_the_pages_before_it_took() -> None:
    """Timers are not set before each page: what is left of them must still be the limit."""
    slow = Page(b"<b>" * 20_000 + b"text")
    (alone,) = extract([slow], seconds_per_page=60)
    assert isinstance(alone, Text)
    with Extractor(Extraction(seconds_per_page=60)) as extractor:
        extractor.extract([Page(ARTICLE)])
        assert extractor._stream._worker is not None
        child = psutil.Process(extractor._stream._worker.pid)
        before = sum(child.cpu_times()[:2])
        extractor.extract([slow])
        used = sum(child.cpu_times()[:2]) - before
    found = extract([slow] * 12, seconds_per_page=max(1.0, 4 * used))
    assert found == [alone] * 12


def test_an_idle_child_serves_the_next_part_and_no_other_parameters() -> None:
    with Extractor(Extraction(seconds_per_page=7)) as extractor:
        extractor.extract([Page(ARTICLE)])
        assert extractor._stream._worker is not None
        first = extractor._stream._worker.pid
    with Extractor(Extraction(seconds_per_page=7)) as extractor, Extractor(Extraction(seconds_per_page=7)) as other:
        assert extractor.extract([Page(ARTICLE)]) == other.extract([Page(ARTICLE)])
        assert extractor._stream._worker is not None
        assert other._stream._worker is not None
        assert extractor._stream._worker.pid == first != other._stream._worker.pid
    with Extractor(Extraction(seconds_per_page=8)) as extractor:
        extractor.extract([Page(ARTICLE)])
        assert extractor._stream._worker is not None
        assert extractor._stream._worker.pid != first
    assert len(SPARES) == 1


def test_a_spare_that_has_gone_is_replaced() -> None:
    """An idle spare process ends by itself; that is never reported as the fault of a page."""
    with Extractor(Extraction()) as extractor:
        extractor.extract([Page(ARTICLE)])
        for _ in range(2):
            assert extractor._stream._worker is not None
            os.kill(extractor._stream._worker.pid, signal.SIGTERM)
            assert isinstance(extractor.extract([Page(ARTICLE)])[0], Text)
        assert extractor._stream._worker is not None
        os.kill(extractor._stream._worker.pid, signal.SIGTERM)
    assert isinstance(extract([Page(ARTICLE)])[0], Text)


def test_a_child_with_pages_left_is_no_spare() -> None:
    SPARES.end()
    with Extractor(Extraction(seconds_per_page=600)) as extractor:
        next(extractor.map([[Page(ARTICLE)], [Page(DEEP)]]))  # the second is read for minutes
        child = extractor._stream._worker
    assert child is not None
    assert not len(SPARES)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_the_end_of_the_parent_is_the_end_of_the_child() -> None:
    code = """if True:
        import os
        from plinth.corpus.extract.extractor import Extractor
        from plinth.corpus.extract.page import Page
        from plinth.corpus.sources.parameters import Extraction
        with Extractor(Extraction()) as extractor:
            extractor.extract([Page(b"<p>text</p>")])
            print(extractor._stream._worker.pid, flush=True)
        os._exit(0)  # without any handler, as a worker that is killed"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
    pid, deadline = int(done.stdout), time.monotonic() + 300
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_an_extractor_that_cannot_start_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    SPARES.end()
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(WorkerError, match="does not start"):
        extract([Page(ARTICLE)])


def test_no_page_pays_for_word_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    from trafilatura import external

    monkeypatch.setattr(external, "JT_STOPLIST", None)
    worker.engine("trafilatura")
    assert external.JT_STOPLIST

"""Code as highlighters write it, through both extractors: to the letter, without the numbers of its lines."""

from __future__ import annotations

from html import escape

import pytest

from plinth.corpus.extract.page import Extract
from plinth.corpus.extract.worker import engine

CODE = "if x < 1:\n\n    print('a  b')\nelse:\n\tpass"
CLOSE = CODE.replace("\n\n", "\n")  # resiliparse makes two lines of an element with nothing but a line's end in it
REFERENCES = CODE.replace("a  b", "&lt;b&gt;")


def lines(start: str, end: str, code: str = CODE, between: str = "\n") -> str:
    """Each line of the code in `start`, where `#` is its number, and `end`."""
    each = enumerate(code.split("\n"), start=1)
    return between.join(f"{start.replace('#', str(number))}{escape(line, quote=False)}{end}" for number, line in each)


COLUMN = "<td class='linenos'><div class='linenodiv'><pre>1\n2\n3\n4\n5</pre></div></td>"
WRITTEN = {
    "plain": (f"<pre>{lines('', '')}</pre>", CODE),
    "empty element first (Pygments)": (f"<div class='highlight'><pre><span></span>{lines('', '')}\n</pre></div>", CODE),
    "spans": (f"<pre><code>{lines('<span>', '</span>')}</code></pre>", CODE),
    "comment inside": (f"<pre><!-- generated -->{lines('', '')}</pre>", CODE),
    "br": (f"<pre>{lines('', '', between='<br>')}</pre>", CODE),
    "div per line": (f"<pre>{lines('<div>', '</div>', CLOSE, '')}</pre>", CLOSE),
    "numbers in line": (f"<pre>{lines('<span class=linenos>#</span>', '')}</pre>", CODE),
    "numbers beside it": (f"<table><tr>{COLUMN}<td><pre><span></span>{lines('', '')}\n</pre></td></tr></table>", CODE),
    "references": (f"<pre>{lines('', '', REFERENCES)}</pre>", REFERENCES),
}
PARAGRAPHS = [
    f"This is paragraph {n} of the page. It says enough, as paragraphs of articles do, to be kept as main content, for "
    "it has several sentences. They end with a full stop, and none of them is a link to another page."
    for n in range(3)
]


@pytest.fixture(scope="module", params=["blocks", "resiliparse", "trafilatura"])
def extract(request: pytest.FixtureRequest) -> Extract:
    return engine(request.param)


def page(inside: str) -> str:
    first, second, third = (f"<p>{paragraph}</p>" for paragraph in PARAGRAPHS)
    return f"<!doctype html><html><head><title>T</title></head><body><article>{first}{inside}{second}{third}</article>"


@pytest.mark.parametrize("how", WRITTEN)
def test_code_comes_out_as_it_is(extract: Extract, how: str) -> None:
    html, code = WRITTEN[how]
    found = extract(page(html))[0]
    before, between, after = found.partition(f"\n{code}\n")
    assert between, found
    assert before.strip() == PARAGRAPHS[0]
    assert after.split("\n")[-1] == PARAGRAPHS[2]
    assert len(after.split()) == 2 * len(PARAGRAPHS[1].split())


def test_only_numbers_are_line_numbers(extract: Extract) -> None:
    inside = "<pre>x = 1</pre><p class='gutter'>This column is text of the page and no number of a line.</p>"
    assert "This column is text" in extract(page(inside))[0]
    assert "42 apples" in extract(page("<pre>x <span class='lineno'>42 apples</span></pre>"))[0]


def test_listings_that_are_alike_keep_their_places(extract: Extract) -> None:
    found = extract(page(f"<pre>a\n\nb</pre><p>{PARAGRAPHS[1]}</p><pre>a\n\n\n  b</pre>"))[0]
    assert -1 < found.find("\na\n\nb\n") < found.find(PARAGRAPHS[1]) < found.find("\na\n\n\n  b\n")


def test_what_no_reader_sees_is_no_content(extract: Extract) -> None:
    found = extract(page("<template><p>secret plan</p></template><p hidden>secret plan</p>tail of it"))[0]
    assert "secret" not in found
    assert "tail of it" in found


@pytest.mark.parametrize(
    "inside",
    ["<b>" * 20_000, "<pre>" * 2_000, "<div>a</div>" * 5_000, "<i class=lineno>1</i>" * 5_000, "<!--" * 1000, ""],
)
def test_hostile_listings_end(extract: Extract, inside: str) -> None:
    assert isinstance(extract(f"<html><body><p>{PARAGRAPHS[0]}</p><pre>{inside}x")[0], str)

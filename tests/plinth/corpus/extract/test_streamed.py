"""Parts of a page that React sends late: in their places, once each, through every engine."""

from __future__ import annotations

import pytest

from plinth.corpus.extract.streamed import in_place
from plinth.corpus.extract.worker import engine
from tests.plinth.corpus.extract.test_listings import PARAGRAPHS


def place(number: str, kind: str = "B") -> str:
    return f'<template id="{kind}:{number}"></template>'


def part(number: str, inside: str, tail: str = "") -> str:
    return f'<div hidden id="S:{number}">{inside}</div>{tail}'


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>a</p>", "<p>a</p>"),
        (f"<p>a</p>{place('0')}b{part('0', 'c', '<script>$RC()</script></body>')}",
         "<p>a</p><div>c</div>b<script>$RC()</script></body>"),
        (place("a") + place("1", "P") + part("1", "one") + part("a", "ten"), "<div>ten</div><div>one</div>"),
        (place("0") + "|" + part("0", f"<div>a{place('1')}b</div>") + part("1", "c"),
         "<div><div>a<div>c</div>b</div></div>|"),
        (f"a{part('0', place('0') + 'b')}", "a<div>b</div>"),
        (place("0") + place("0") + part("0", "a") + part("0", "b"), "<div>a</div>"),
        (f'{place("0")}<div hidden id="S:0">a', "<div>a</div>"),
        (f"{place('7')}a{part('8', 'b')}c", "a<div>b</div>c"),
    ],
)  # fmt: skip
def test_late_parts_are_put_into_their_places(html: str, expected: str) -> None:
    assert in_place(html) == expected


def test_parts_within_parts_within_parts_end() -> None:
    count = 20_000
    page = place("0") + "".join(part(f"{n:x}", place(f"{n + 1:x}")) for n in range(count))
    assert in_place(page) == count * "<div>" + count * "</div>"


@pytest.mark.parametrize("name", ["blocks", "resiliparse", "trafilatura"])
def test_the_main_content_of_a_streamed_page_is_read(name: str) -> None:
    late = [part(str(n), f"<p>{text}</p>", f"<script>$RC('{n}')</script>") for n, text in enumerate(PARAGRAPHS)]
    places = "".join(place(str(n)) for n in range(len(PARAGRAPHS)))
    page = f"<html><head><title>T</title></head><body><main>{places}</main>{''.join(reversed(late))}</body></html>"
    found = engine(name)(f"<!doctype html>{page}")
    assert (found.text.split(), found.title) == (" ".join(PARAGRAPHS).split(), "T")

"""The extractors: HTML text in, main content and facts out. Loaded in the child process only."""

from __future__ import annotations

import re
from typing import Any

from plinth.corpus.extract.page import Extract, Text

FACT_CHARACTERS = 500
DATES = ("article:published_time", "date", "dc.date", "dcterms.created")
#: Marks of encodings whose bytes are ASCII: the escapes of ISO-2022, the NULs of UTF-16 without a mark.
_SEVEN_BIT = re.compile(b"[\x1b\0]")


def engine(name: str) -> Extract:
    """The extractor of a recipe's `extraction.engine`."""
    return {"resiliparse": _resiliparse, "trafilatura": _trafilatura}[name]()


def decode(body: bytes, declared: str) -> str:
    """HTML bytes as text: by byte order mark, as UTF-8 where it is that, else by the server's charset, the
    page's own, or detection.

    Bytes that are valid UTF-8 beyond ASCII are hardly ever anything else, whatever the server says. Bytes that
    the character set does not know are dropped.
    """
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5

    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return str(bytes_to_str(body, "utf-16"))
    if not _SEVEN_BIT.search(body):
        try:
            return body.decode("utf-8-sig")
        except UnicodeDecodeError:
            pass  # decided below
    charset = map_encoding_to_html5(declared, fallback_utf8=False) if declared else None
    return str(bytes_to_str(body, charset or detect_encoding(body, from_html_meta=True) or "utf-8"))


def _resiliparse() -> Extract:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    def extract(html: str) -> Text:
        tree = HTMLTree.parse(html)
        text = extract_plain_text(tree, main_content=True, preserve_formatting=True, alt_texts=False)
        facts = {"title": tree.title, **_head_facts(tree)}
        return Text(_spaces(text), _kept(facts))

    return extract


def _head_facts(tree: Any) -> dict[str, str | None]:
    facts: dict[str, str | None] = {}
    root = tree.document.query_selector("html")
    if root is not None:
        facts["lang"] = root.getattr("lang")
    if tree.head is None:
        return facts
    link = tree.head.query_selector('link[rel="canonical"]')
    if link is not None:
        facts["canonical"] = link.getattr("href")
    for meta in tree.head.query_selector_all("meta[content]"):
        name = meta.getattr("property") or meta.getattr("name") or ""
        if name.lower() in DATES:
            facts.setdefault("date", meta.getattr("content"))
    return facts


def _trafilatura() -> Extract:
    from trafilatura import extract as main_content
    from trafilatura import load_html

    def extract(html: str) -> Text:
        tree = load_html(html)
        if tree is None:
            return Text("")
        facts = {"title": tree.findtext(".//title"), "lang": tree.get("lang")}
        for key, path in (
            ("canonical", './/link[@rel="canonical"]/@href'),
            ("date", './/meta[@property="article:published_time"]/@content'),
        ):
            values = tree.xpath(path)
            facts[key] = str(values[0]) if values else None
        # Favour precision, without comments: FineWeb's choice.
        text = main_content(tree, favor_precision=True, include_comments=False)
        return Text(_spaces(text or ""), _kept(facts))

    return extract


def _spaces(text: str) -> str:
    """No-break spaces lay out a page; in running text they are spaces."""
    return text.replace("\xa0", " ")


def _kept(facts: dict[str, str | None]) -> dict[str, str]:
    """Facts that are there, in one line of bounded length."""
    lines = {key: " ".join(value.split())[:FACT_CHARACTERS] for key, value in facts.items() if value}
    return {key: value for key, value in lines.items() if value}

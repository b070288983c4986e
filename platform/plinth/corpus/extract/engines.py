"""The extractors: HTML text in, main content and facts out. Loaded in the child process only.

Facts, by the names they have in a document's `extra`: `title`, `canonical` (address), `date` as the page states it,
`lang` of the root element.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from plinth.corpus.extract.page import Extract, Text

FACT_CHARACTERS = 500
#: Names of `meta` that state when a page was published, the surest first (Open Graph, schema.org, Dublin Core).
DATES = (
    "article:published_time",
    "datepublished",
    "dc.date.issued",
    "dcterms.issued",
    "dcterms.created",
    "dc.date",
    "dcterms.date",
    "date",
    "pubdate",
    "publish-date",
    "parsely-pub-date",
)
#: What Latin-1 means in HTML, and bytes that are no western word.
WESTERN, _FOREIGN = "cp1252", re.compile(b"[\x80-\xff]{8}")
ADDRESS, TITLE = "og:url", "og:title"
#: In every name above is one of these.
DATE, PUBLISH, TERMS, OPEN = b"date", b"publish", b"dcterms", b"og:"
HEAD_CHARACTERS = 1 << 18
_NAMES = ("name", "property", "itemprop")
_WANTED = tuple(sorted((*DATES, ADDRESS, TITLE)))
_WANTED_BYTES = tuple((name, name.encode()) for name in _WANTED)
#: A page's beginning up to the end of its root element's tag, when every attribute is written in the plainest way.
_ROOT = re.compile(r'\s*(?:<!doctype[^<>]*>\s*)?<html((?:\s+[a-z][a-z:-]*="[^"<>&]*")*)\s*>', re.I)
_LANG = re.compile(r'\slang="([^"]+)"', re.I)


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
    # Encodings whose bytes are ASCII have the escapes of ISO-2022, or the NULs of UTF-16 without a mark.
    if b"\0" not in body and b"\x1b" not in body:
        try:
            return body.decode("utf-8-sig")
        except UnicodeDecodeError:
            pass  # decided below
    charset = _utf16(body) or (map_encoding_to_html5(declared, fallback_utf8=False) if declared else None)
    charset = charset or detect_encoding(body, from_html_meta=True) or "utf-8"
    if charset == WESTERN and _FOREIGN.search(body):
        # Many servers and templates say Latin-1 of everything; in no western text do such runs stand.
        charset = detect_encoding(body, from_html_meta=False) or charset
    return str(bytes_to_str(body, charset))


def _utf16(body: bytes) -> str | None:
    """UTF-16 without a byte order mark, by its first character, which is `<` or white space in markup."""
    head = body[:2]
    if len(body) % 2 == 0 and b"\0" in head and head.strip(b"\0 \t\r\n<") == b"":
        return "utf-16be" if head[:1] == b"\0" else "utf-16le"
    return None


def _resiliparse() -> Extract:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    def extract(html: str) -> Text:
        tree = HTMLTree.parse(html)
        text = extract_plain_text(tree, main_content=True, preserve_formatting=True, alt_texts=False)
        return Text(_spaces(text), _resiliparse_facts(tree, html))

    return extract


def _resiliparse_facts(tree: Any, html: str) -> dict[str, str]:
    """Every question to the tree costs as much as a small page's text: only those are asked that the head's text may
    answer, and the language is read from the text where it stands at the very beginning."""
    facts: dict[str, str | None] = {"title": tree.title}
    end = html.find("</head>")
    end = end if 0 <= end < HEAD_CHARACTERS else HEAD_CHARACTERS
    text = html[:end].encode("utf-8", "surrogatepass").lower()
    canonical = b"canonical" in text
    metas = OPEN in text or DATE in text or PUBLISH in text or TERMS in text
    root = _ROOT.match(html, 0, end)
    plain = _LANG.search(root[1]) if root is not None else None
    if plain is not None and not canonical and not metas:
        facts["lang"] = plain[1]
        return _kept(facts)
    if (head := tree.head) is None:
        return _kept(facts)
    if plain is not None:
        facts["lang"] = plain[1]
    elif b"lang" in text and (element := head.parent) is not None:
        facts["lang"] = element.getattr("lang") or element.getattr("xml:lang")
    if canonical:
        link = head.query_selector('link[rel="canonical" i]')
        facts["canonical"] = link.getattr("href") if link is not None else None
    if not metas or not (selectors := _selectors(html, text, end)):
        return _kept(facts)
    found = head.query_selector_all(selectors).values()
    return _with_metas(facts, (([meta.getattr(key) for key in _NAMES], meta.getattr("content")) for meta in found))


def _selectors(html: str, head: bytes, end: int) -> str:
    """What finds the wanted `meta` elements that a page may have: those whose names are in its head's text."""
    # A name may be written with references, and an element after the head's end belongs to the head as well.
    if b"&#" in head or any(html.find(tag, end) >= 0 for tag in ("<meta", "<META", "<Meta")):
        return _meta_selectors(_WANTED)
    return _meta_selectors(tuple(name for name, written in _WANTED_BYTES if written in head))


@lru_cache(maxsize=256)
def _meta_selectors(names: tuple[str, ...]) -> str:
    return ", ".join(f'meta[{key}="{name}" i]' for name in names for key in _NAMES)


def _trafilatura() -> Extract:
    from trafilatura import extract as main_content
    from trafilatura import load_html

    def extract(html: str) -> Text:
        tree = load_html(html)
        if tree is None:
            return Text("")
        facts = _trafilatura_facts(tree)
        blocks = [block for pre in tree.iter("pre") if (block := "".join(pre.itertext()).strip("\r\n"))]
        # Favour precision, without comments: FineWeb's choice.
        text = main_content(tree, favor_precision=True, include_comments=False) or ""
        return Text(_spaces(_with_blocks(text, blocks)), facts)

    return extract


def _trafilatura_facts(tree: Any) -> dict[str, str]:
    facts: dict[str, str | None] = {"title": tree.findtext(".//title")}
    facts["lang"] = tree.get("lang") or tree.get("xml:lang")
    for link in tree.iter("link"):
        if (link.get("rel") or "").lower() == "canonical":
            facts.setdefault("canonical", link.get("href"))
    metas = (([meta.get(key) for key in _NAMES], meta.get("content")) for meta in tree.iter("meta"))
    return _with_metas(facts, metas)


def _with_metas(facts: dict[str, str | None], metas: Iterable[tuple[list[str | None], str | None]]) -> dict[str, str]:
    """Facts with what `meta` elements, as (names, content), add to them; the first of a name counts."""
    found: dict[str, str] = {}
    for names, content in metas:
        for name in names:
            if name and content and name.lower() in _WANTED:
                found.setdefault(name.lower(), content)
    facts["date"] = next((found[name] for name in DATES if name in found), None)
    facts["canonical"] = facts.get("canonical") or found.get(ADDRESS)
    facts["title"] = facts.get("title") or found.get(TITLE)
    return _kept(facts)


def _with_blocks(text: str, blocks: list[str]) -> str:
    """Trafilatura drops the blank lines of preformatted text: put the blocks back as they are in the page."""
    at = 0
    for block in blocks:
        squeezed = "\n".join(line.rstrip() for line in block.splitlines() if line.strip())
        found = text.find(squeezed, at)
        if found >= 0 and squeezed != block:
            text = text[:found] + block + text[found + len(squeezed) :]
            at = found + len(block)
    return text


def _spaces(text: str) -> str:
    """No-break spaces lay out a page; in running text they are spaces."""
    return text.replace("\xa0", " ")


def _kept(facts: dict[str, str | None]) -> dict[str, str]:
    """Facts that are there, in one line of bounded length."""
    cut = {key: value[: 4 * FACT_CHARACTERS] for key, value in facts.items() if value}
    lines = {key: " ".join(value.split())[:FACT_CHARACTERS] for key, value in cut.items()}
    return {key: value for key, value in lines.items() if value}

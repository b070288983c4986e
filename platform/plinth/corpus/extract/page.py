"""Pages and the worker's answers, and their serialization between processes; metadata that a page's head declares."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import NamedTuple
from urllib.parse import urljoin

from plinth.corpus.sources.times import DIRECTIVES, REL_LICENSE, TDM_POLICY, directives, iso_date, one_of

# A page, the answer to it, and the bytes of both between the process that reads pages and its worker.
#
# Plain lengths and UTF-8, never pickle: a hostile page may control the worker, and the owner must not execute its
# bytes.
#
#     page       kind; length of charset; charset; body
#     answer     status, route, length of text, length of each fact; text and facts that are there

CHARSET_BYTES = 255
#: The risk of a text in a document's `extra`, if it is above this value.
RISK_KEY, RISK_ABOVE = "extraction_risk", 0.15
#: Metadata of a page, by the names in a document's `extra`, with the maximum characters of each.
FACTS = ("title", "canonical", "date", "lang", DIRECTIVES, TDM_POLICY, REL_LICENSE, RISK_KEY)
FACT_CHARACTERS = 500
ANSWER = struct.Struct(f"<BBI{len(FACTS)}H")
#: Status of an answer: text came out, or one of these reasons.
REASONS = ("", "extract_failed", "nul_bytes", "encrypted")


#: Parser of a page by the media type of its record; all others are HTML.
KINDS = ("html", "pdf", "latex")
KIND_OF = {"application/pdf": "pdf", "text/x-tex": "latex"}


@dataclass(frozen=True, slots=True)
class Page:
    """Undecoded HTML page with the character set that its server declared, if any. A page can also be a whole file of
    another kind, such as a PDF."""

    body: bytes
    charset: str = ""
    kind: str = KINDS[0]


@dataclass(frozen=True, slots=True)
class Text:
    """Main content of a page. Title, canonical URL, date, language and usage signals are included if the page declares
    them. `route` is `UNSURE` or `SLOW` if a second engine read the page."""

    text: str
    facts: Mapping[str, str] = field(default_factory=dict)
    route: int = 0


@dataclass(frozen=True, slots=True)
class ExtractionFailure:
    """Failed extraction, with the reason and the detail for the reject."""

    reason: str
    detail: str


_NO_FACTS = (0,) * len(FACTS)
Answer = Text | ExtractionFailure


class MainContent(NamedTuple):
    """Main content of HTML as an engine returns it.

    Args:
        unsure: 1 minus the F1 of characters that the model expects, or the share of characters in blocks of which the
            model is not sure, if that is more; 0 from engines that do not know.
        article: the page declares an article (`og:type`) and its type or time of publication, and neither a forum nor a
            list.
        traits: traits of the text from which its risk follows (`content.risk`); none from engines that do not know.
        route: `UNSURE` or `SLOW` if a second engine read the page (`fallback`), otherwise 0.
    """

    text: str
    title: str | None
    unsure: float = 0.0
    article: bool = False
    traits: tuple[float, ...] = ()
    route: int = 0


#: Routes of a page: the first engine was unsure and its text was kept; the text of the slow engine decided.
UNSURE, SLOW = 1, 2
Extract = Callable[[str], MainContent]


def page_bytes(page: Page) -> bytes:
    """Serialize a page."""
    charset = page.charset.encode("ascii", "ignore")[:CHARSET_BYTES]
    return b"".join((KINDS.index(page.kind).to_bytes(), len(charset).to_bytes(), charset, page.body))


def page_of(data: memoryview) -> Page:
    """Parse a page serialized by `page_bytes`, and copy its data."""
    start = 2 + data[1]
    return Page(bytes(data[start:]), str(data[2:start], "ascii"), KINDS[data[0]])


def answer_bytes(answer: Answer) -> bytes:
    """Serialize the answer to one page."""
    if isinstance(answer, ExtractionFailure):
        detail = answer.detail.encode("utf-8", "replace")
        return ANSWER.pack(REASONS.index(answer.reason), 0, len(detail), *_NO_FACTS) + detail
    text = answer.text.encode("utf-8", "replace")
    facts = [answer.facts.get(name, "").encode("utf-8", "replace") for name in FACTS]
    return b"".join((ANSWER.pack(0, answer.route, len(text), *map(len, facts)), text, *facts))


def answer_of(data: bytes) -> Answer:
    """Parse an answer serialized by `answer_bytes`."""
    status, route, text_bytes, *facts_bytes = ANSWER.unpack_from(data)
    at = ANSWER.size + text_bytes
    text = str(data[ANSWER.size : at], "utf-8")
    if status:
        return ExtractionFailure(REASONS[status], text)
    facts = {}
    for name, size in zip(FACTS, facts_bytes, strict=True):
        if size:
            facts[name] = str(data[at : at + size], "utf-8")
            at += size
    return Text(text, facts, route)


# Title, canonical address, date, language and opt-outs of a page, by one scan of its head and without the parsed tree.
#
# A query of the tree costs as much as a small page's text, and most heads have none of these: the scan is made where
# the head's text has one of the words that they stand under. It follows the standard (HTML, 13.2.6.4.4): tags inside
# comments and scripts are none, and the first tag that no head may have ends the head, closed or not.

HEAD_CHARACTERS = 1 << 18
#: Names of `meta` that state when a page was published, the surest first (Open Graph, schema.org, Dublin Core,
#: Highwire, and the spellings of large publishers).
DATES = (
    "article:published_time",
    "datepublished",
    "dc.date.issued",
    "dcterms.issued",
    "dcterms.created",
    "dc.date",
    "dcterms.date",
    "citation_publication_date",
    "citation_date",
    "article.published",
    "date",
    "pubdate",
    "publish-date",
    "parsely-pub-date",
    "sailthru.date",
)
ADDRESS, TITLE = "og:url", "og:title"
ROBOTS, TDM_META, POLICY_META = "robots", "tdm-reservation", "tdm-policy"
#: One of these is in every name above, in every value that opts out or in the text next to it; the most frequent first.
_WORDS = (
    *(b"og:", b"canonical", b"date", b"publish", b"dcterms"),
    *(b"noai", b"noindex", b"noarchive", b"noimageai", b'"none', b"'none", b"tdm-"),
)
#: In JSON-LD and microdata, anywhere in a page.
PUBLISHED = "datePublished"
_WANTED = frozenset((*DATES, ADDRESS, TITLE, POLICY_META))
_SEVERAL = (ROBOTS, TDM_META)
#: A page names its license in its head or, as Creative Commons advises, in its text.
LICENSE, MOST_LICENSES, TAG_CHARACTERS = "license", 100, 1000
REL, REL_CHARACTERS = "rel=", 100
_LINKING = re.compile(r"<(?:a|area|link)\s", re.I)
# What these patterns have begun they end wherever they stop, so that a hostile page takes time by its length, not by
# its square.
_ATTRIBUTES = r"""((?:[^>=]+|=\s*(?:"[^"]*"|'[^']*'|[^\s>"'][^\s>]*)?)*)"""
_TAG = re.compile(
    rf"""<(?:(meta|link|base)(?=[\s/]){_ATTRIBUTES}
    |!--(?!-?>)(?:[^-]+|-(?!->))*
    |(?P<raw>script|style|title|noframes|template)\b(?:[^<]+|<(?!/(?P=raw)))*
    |(?!(?:html|head|noscript|meta|link|base|basefont|bgsound)\b)(?P<end>[a-z]))""",
    re.I | re.X,
)
_ATTRIBUTE = re.compile(r"""([^\s=>"'/][^\s=>/]*+)(?:\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s>"'][^\s>]*))?)?""")
_LANGUAGE = re.compile(
    r"""<[hH][tT][mM][lL](?=\s)[^<>]*?\s(?:xml:)?(?i:lang)\s*=\s*["']?([A-Za-z][A-Za-z0-9_-]{0,34})"""
)
_JSON_DATE = re.compile(rf'"{PUBLISHED}"\s*:\s*"([^"]*)"')


def page_facts(html: str, title: str | None) -> dict[str, str]:
    """Return the metadata that a page declares: `title` (the argument `title`, otherwise `og:title`), `canonical` (URL
    as written, resolved against `base` only), `date` (of publication, ISO 8601), `lang` (of the root element), the
    license link, and the usage signals in `signals`."""
    end = html.find("<body", 0, HEAD_CHARACTERS)
    end = end if end >= 0 else HEAD_CHARACTERS
    head = html[:end].encode("utf-8", "surrogatepass").lower()
    facts = dict[str, str]()
    if title and (line := _line(title)):
        facts["title"] = line
    if any(word in head for word in _WORDS):
        _add_tags(facts, html, end)
    if "date" not in facts and PUBLISHED in html and (date := _published(html)):
        facts["date"] = date
    if b"lang" in head and (root := _LANGUAGE.search(html, 0, end)):
        facts["lang"] = root[1]
    if address := one_of(_licences(html)):
        facts[REL_LICENSE] = address
    return facts


def _add_tags(facts: dict[str, str], html: str, end: int) -> None:
    """Add to `facts` values of `link`, `meta` and `base` elements. If a name is repeated, the first value is used."""
    metas: dict[str, str] = {}
    several: list[tuple[str, str]] = []
    canonical = base = ""
    for tag in _TAG.finditer(html, 0, end):
        if tag["end"]:
            break
        if tag[1] is None:
            continue
        kind, attributes = tag[1].lower(), _attributes(tag[2])
        if kind == "meta":
            for key in ("name", "property", "itemprop"):
                if (name := attributes.get(key, "").strip().lower()) in _WANTED and attributes.get("content"):
                    metas.setdefault(name, attributes["content"])
                elif name in _SEVERAL:
                    several.append((name, attributes.get("content", "")))
        elif kind == "base":
            base = base or attributes.get("href", "")
        elif "canonical" in attributes.get("rel", "").lower().split():
            canonical = canonical or attributes.get("href", "")
    if "title" not in facts and (title := _line(metas.get(TITLE, ""))):
        facts["title"] = title
    if address := _address(base, canonical) or _address(base, metas.get(ADDRESS, "")):
        facts["canonical"] = address
    if date := next((day for name in DATES if name in metas and (day := iso_date(metas[name]))), None):
        facts["date"] = date
    if several and (found := directives(*([value for of, value in several if of == name] for name in _SEVERAL))):
        facts[DIRECTIVES] = found
    if POLICY_META in metas and (policy := _address(base, metas[POLICY_META])):
        facts[TDM_POLICY] = policy[:FACT_CHARACTERS]


def _licences(html: str) -> Iterator[str]:
    """Yield the URLs of links with `rel=license`."""
    at = -1
    for _ in range(MOST_LICENSES):
        at = html.find(LICENSE, at + 1)
        if at < 0:
            return
        if html.rfind(REL, max(0, at - REL_CHARACTERS), at) < 0:
            continue
        start, end = html.rfind("<", max(0, at - TAG_CHARACTERS), at), html.find(">", at, at + TAG_CHARACTERS)
        if start < 0 or end < 0 or not _LINKING.match(html, start):
            continue
        attributes = _attributes(html[start + 1 : end])
        if LICENSE in attributes.get("rel", "").lower().split():
            yield attributes.get("href", "")[:FACT_CHARACTERS]


def _published(html: str) -> str | None:
    """Return the first date of publication in JSON-LD or microdata."""
    if (stated := _JSON_DATE.search(html)) and (date := iso_date(stated[1])):
        return date
    at = html.find(PUBLISHED)
    tag = html[max(0, html.rfind("<", 0, at)) : at + 2 * FACT_CHARACTERS].partition(">")[0]
    attributes = _attributes(tag)
    if attributes.get("itemprop") != PUBLISHED:
        return None
    return iso_date(attributes.get("content") or attributes.get("datetime") or "")


def _attributes(text: str) -> dict[str, str]:
    """Return an element's attributes by lower-case name. If a name is repeated, the first value is used."""
    found: dict[str, str] = {}
    for name, *values in _ATTRIBUTE.findall(text):
        found.setdefault(name.lower(), unescape("".join(values)))
    return found


def _address(base: str, address: str) -> str:
    """Return the URL cleaned as browsers do, or an empty text if the URL is too long."""
    address = "".join(address.strip().split("\n")).replace("\t", "").replace("\r", "").replace(" ", "%20")
    try:
        address = urljoin(base.strip(), address) if base and address else address
    except ValueError:
        return ""
    return address if len(address) <= 4 * FACT_CHARACTERS else ""


def _line(text: str) -> str:
    """Return the text as a single line of bounded length."""
    return " ".join(text[: 4 * FACT_CHARACTERS].split())[:FACT_CHARACTERS]

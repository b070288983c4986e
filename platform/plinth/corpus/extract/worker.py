"""Extraction worker: the engines, which extract main content and title from HTML, and the handler that runs an engine
on blocks of pages.
"""

from __future__ import annotations

import gc
import re
import resource
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from plinth.compute.worker_process import Handler, ItemWatch
from plinth.corpus.extract.content.risk import risk_of
from plinth.corpus.extract.page import (
    RISK_ABOVE,
    RISK_KEY,
    Answer,
    Extract,
    ExtractionFailure,
    MainContent,
    Page,
    Text,
    answer_bytes,
    page_facts,
    page_of,
)
from plinth.corpus.extract.readable import labels_in_place, readable_formulas, with_lists
from plinth.corpus.extract.streamed import in_place
from plinth.corpus.sources.codings import decode

#: Distributions and own files that decide the text of each engine. Trafilatura falls back on jusText where it finds
#: little.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "blocks": ("plinth:corpus/extract/content/model.npz", "plinth:corpus/extract/content/risk.json"),
    "resiliparse": ("Resiliparse",),
    "trafilatura": ("trafilatura", "jusText", "lxml"),
}
LIBRARIES["blocks+trafilatura"] = LIBRARIES["blocks"] + LIBRARIES["trafilatura"]
#: Resiliparse 2.0.1 drops a text of three bytes that ends in none of ASCII: `<i>où</i>`, `<b>年</b>`, `<i>x²</i>`. An
#: invisible character makes it longer, and is taken out again.
_THREE_BYTES = re.compile(r">\s*+(?:[!-~]?[\x80-\u07ff]|[\u0800-\uffff]|[!-~]?&#?\w{1,31}+;)(?=\s*+<)")
_JOINER = "\u2060"


def engine(name: str, model: Path | None = None) -> Extract:
    """Return the extraction function for the recipe's `extraction`: an engine, or an engine and its fallback.

    `model` is the model file of `blocks`; if None, the default model is used.
    """
    if name.startswith("blocks"):
        return _blocks(name, model)
    extract = _resiliparse() if name == "resiliparse" else _trafilatura()
    return lambda html: extract(readable_formulas(in_place(html)))


def _blocks(name: str, model: Path | None) -> Extract:
    from plinth.corpus.extract.content.engine import BlockEngine, default_model, read_model, with_formulas
    from plinth.corpus.extract.fallback import with_fallback

    fast = BlockEngine(read_model(model) if model else default_model())
    extract = with_fallback(fast, _trafilatura()) if name.endswith("+trafilatura") else fast
    return lambda html: extract(with_formulas(in_place(html)))


def _resiliparse() -> Extract:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    def extract(html: str) -> MainContent:
        tree = HTMLTree.parse(
            html if html.isascii() and "&" not in html else _THREE_BYTES.sub(rf"\g<0>{_JOINER}", html)
        )
        without_gutters(tree, html)
        labeled = with_lists(tree)
        text = extract_plain_text(tree, main_content=True, preserve_formatting=True, alt_texts=False)
        text = labels_in_place(text) if labeled else text
        return MainContent(_spaces(text).replace(_JOINER, ""), tree.title)

    return extract


def _trafilatura() -> Extract:
    from trafilatura import extract as main_content
    from trafilatura import load_html
    from trafilatura.external import jt_stoplist_init

    jt_stoplist_init()  # half a second that the first page to need the fallback would be charged with

    def extract(html: str) -> MainContent:
        tree = load_html(html)
        if tree is None:
            return MainContent("", None)
        title = tree.findtext("./head/title")
        listings = plain_listings(tree, html)
        # Favor precision, without comments: FineWeb's choice.
        text = main_content(tree, favor_precision=True, include_comments=False) or ""
        return MainContent(_spaces(with_listings(text, listings)), title)

    return extract


def _spaces(text: str) -> str:
    """Replace no-break spaces in running text with spaces."""
    return text.replace("\xa0", " ")


# Code listings to the letter: without the numbers of their lines, and past what Trafilatura does to them.
#
# Both engines take a column of line numbers for text. Trafilatura also drops blank lines, runs the cells of a table
# together in one line, where highlighters like to put code, and does not see that `<br>` and `<div>` end a line.

#: Classes under which highlighters write line numbers (Pygments, Rouge, SyntaxHighlighter).
GUTTERS = ("linenos", "lineno", "linenodiv", "gutter", "rouge-gutter", "line-number")
#: One of these is in each of those.
_MARKS = ("lineno", "gutter", "line-n")
_SELECTOR = ", ".join(f".{name}" for name in GUTTERS)
_XPATH = "|".join(f"//*[contains(concat(' ', normalize-space(@class), ' '), ' {name} ')]" for name in GUTTERS)
_BLOCKS = ("div", "p", "li", "tr")
_NUMBERS = re.compile(r"[\s\d]*")
_UNSEEN = "//template | //*[@hidden]"


def without_gutters(tree: Any, html: str) -> None:
    """Remove line numbers of code listings from a resiliparse tree."""
    if "<pre" in html and _has_gutters(html) and tree.body is not None:
        for element in tree.body.query_selector_all(_SELECTOR).values():
            if _NUMBERS.fullmatch(element.text):
                element.decompose()


def plain_listings(tree: Any, html: str) -> list[str]:
    """Simplify the code listings of an lxml tree so that Trafilatura can read them. Return the text of each `pre`, in
    order."""
    if "<template" in html or "hidden" in html:
        for element in tree.xpath(_UNSEEN):
            element.drop_tree()
    if tree.find(".//pre") is None:
        return []
    if _has_gutters(html):
        for element in tree.xpath(_XPATH):
            if _NUMBERS.fullmatch(element.text_content()) and element.getparent() is not None:
                element.drop_tree()
    for table in list(tree.iter("table")):
        _unwrap(table)
    return [text for pre in list(tree.iter("pre")) if (text := _flat(pre).strip("\r\n"))]


def _has_gutters(html: str) -> bool:
    return any(mark in html for mark in _MARKS)


def with_listings(text: str, listings: list[str]) -> str:
    """Return the main content with the text of every code listing restored to its form in the page."""
    at = 0
    for listing in listings:
        squeezed = "\n".join(line.rstrip() for line in listing.splitlines() if line.strip())
        # Character references that the code is about are resolved once too often.
        for written in (squeezed, unescape(squeezed)):
            found = text.find(written, at)
            if found >= 0:
                text = text[:found] + listing + text[found + len(written) :]
                at = found + len(listing)
                break
    return text


def _unwrap(table: Any) -> None:
    """Replace a table that contains only code listings by the listings themselves."""
    pres = table.findall(".//pre")
    words = "".join("".join(pre.text_content() for pre in pres).split())
    parent = table.getparent()
    if words and parent is not None and words == "".join(table.text_content().split()):
        for pre in pres:
            pre.tail = None
            table.addprevious(pre)
        table.drop_tree()


def _flat(pre: Any) -> str:
    """Return the text of a `pre` element, and replace its content by this text. Elements that end a line become line
    ends.

    Some highlighters begin a `pre` with an empty element, and Trafilatura would drop the text after the empty element.
    """
    pieces: list[str] = []
    todo = [(pre, False)]  # elements, and whether their inside is written
    while todo:
        element, written = todo.pop()
        if element is not pre and element.tag in _BLOCKS and pieces and not pieces[-1].endswith("\n"):
            pieces.append("\n")
        if written:
            pieces += [element.tail] if element is not pre and element.tail else []
            continue
        if isinstance(element.tag, str):  # a comment is none
            pieces += ["\n"] if element.tag == "br" else [element.text] if element.text else []
        todo.append((element, True))
        todo += [(child, False) for child in reversed(element)]
    text = "".join(pieces)
    for child in list(pre):
        pre.remove(child)
    pre.text = text
    return text


# The handler of an extraction worker: pages in, answers out.
#
# CPU time is limited at the recipe's seconds per page (of PDF each page, of LaTeX a file), so that a busy machine does
# not change what is rejected, and wall clock well above it, for a page that sleeps.

#: A page that was read: its HTML and main content.
Read = tuple[str, MainContent]
MEMORY_BYTES = 4 * 2**30
WALL_FACTOR, WALL_FLOOR_S = 10, 30
#: Pages whose metadata is read together, after their text: code that runs for a moment after a parser runs slowly,
#: because the processor's caches have lost it. No timer runs then: the work is bounded by the head's length, and calls
#: nothing that can hang.
BLOCK_PAGES, BLOCK_BYTES = 16, 1 << 17
#: Pages leave hardly any cyclic garbage; the collector would otherwise run every few pages.
GARBAGE_OBJECTS = 50_000


def set_limits(watch: ItemWatch, seconds: float) -> None:
    """Limit the memory of this process, and the time per page to `seconds` of CPU time."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    gc.set_threshold(GARBAGE_OBJECTS)
    watch.limit(cpu_s=seconds, wall_s=max(WALL_FLOOR_S, seconds * WALL_FACTOR))


def extracting(watch: ItemWatch, name: str, seconds: str, model: str = "") -> Handler:
    """Return a handler that extracts main content from serialized pages.

    Args:
        name: extraction engine.
        seconds: maximum CPU seconds per page.
        model: path of the model of `blocks`; if empty, the default model is used.
    """
    set_limits(watch, float(seconds))
    extract = engine(name, Path(model) if model else None)

    def handle(items: Iterator[memoryview]) -> Iterator[bytes]:
        for block in _groups(items):
            pages = list[Read | Answer]()
            for page in block:
                watch.begin()
                pages.append(_read(extract, page) if page.kind == "html" else _whole(page, watch))
                watch.end()
            watch.stop()
            yield from map(_answer, pages)

    return handle


def _groups(items: Iterator[memoryview]) -> Iterator[list[Page]]:
    block, size = list[Page](), 0
    for item in items:
        block.append(page_of(item))
        size += len(item)
        if len(block) == BLOCK_PAGES or size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _read(extract: Extract, page: Page) -> Read | ExtractionFailure:
    try:
        html = decode(page.body, page.charset, html=True)
        if b"\0" in page.body and "\0" in html:  # slow to find in text; no encoding makes it of other bytes
            return ExtractionFailure("nul_bytes", f"NUL at character {html.index(chr(0))} of the decoded page")
        return html, extract(html)
    except BaseException as error:  # a panic of Rust code is not an Exception
        return ExtractionFailure("extract_failed", f"{type(error).__name__}: {error}")


def _whole(page: Page, watch: ItemWatch) -> Answer:
    """Extract the text and metadata of a document that is not HTML."""
    try:
        if page.kind == "pdf":
            from plinth.corpus.extract.pdf import pdf_text

            return pdf_text(page.body, watch.renew)
        from plinth.corpus.extract.latex import latex_text

        return latex_text(decode(page.body, page.charset))
    except BaseException as error:  # pylatexenc goes as deep as its source does
        return ExtractionFailure("extract_failed", f"{type(error).__name__}: {error}")


def _answer(read: Read | Answer) -> bytes:
    if isinstance(read, ExtractionFailure | Text):
        return answer_bytes(read)
    html, content = read
    try:
        facts = page_facts(html, content.title)
        if content.traits and (risk := risk_of(content.unsure, content.traits)) > RISK_ABOVE:
            facts[RISK_KEY] = f"{risk:.3f}"
        return answer_bytes(Text(content.text, facts, content.route))
    except Exception as error:  # memory may run out here as well
        return answer_bytes(ExtractionFailure("extract_failed", f"{type(error).__name__}: {error}"))

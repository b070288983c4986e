"""The extractors: HTML text in, main content and title out. Loaded in the worker only."""

from __future__ import annotations

import re

from plinth.corpus.extract.formulas import readable_formulas
from plinth.corpus.extract.listings import plain_listings, with_listings, without_gutters
from plinth.corpus.extract.lists import labels_in_place, with_lists
from plinth.corpus.extract.page import Extract

#: Distributions that decide the text of each extractor; trafilatura falls back on jusText where it finds little.
LIBRARIES = {"resiliparse": ("Resiliparse",), "trafilatura": ("trafilatura", "jusText", "lxml")}
#: Resiliparse 2.0.1 drops a text of three bytes that ends in none of ASCII: `<i>où</i>`, `<b>年</b>`, `<i>x²</i>`. An
#: invisible character makes it longer, and is taken out again.
_THREE_BYTES = re.compile(r">\s*+(?:[!-~]?[\x80-\u07ff]|[\u0800-\uffff]|[!-~]?&#?\w{1,31}+;)(?=\s*+<)")
_JOINER = "\u2060"


def engine(name: str) -> Extract:
    """The extractor of a recipe's `extraction.engine`."""
    extract = {"resiliparse": _resiliparse, "trafilatura": _trafilatura}[name]()
    return lambda html: extract(readable_formulas(html))


def _resiliparse() -> Extract:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    def extract(html: str) -> tuple[str, str | None]:
        tree = HTMLTree.parse(
            html if html.isascii() and "&" not in html else _THREE_BYTES.sub(rf"\g<0>{_JOINER}", html)
        )
        without_gutters(tree, html)
        labeled = with_lists(tree)
        text = extract_plain_text(tree, main_content=True, preserve_formatting=True, alt_texts=False)
        text = labels_in_place(text) if labeled else text
        return _spaces(text).replace(_JOINER, ""), tree.title

    return extract


def _trafilatura() -> Extract:
    from trafilatura import extract as main_content
    from trafilatura import load_html
    from trafilatura.external import jt_stoplist_init

    jt_stoplist_init()  # half a second that the first page to need the fallback would be charged with

    def extract(html: str) -> tuple[str, str | None]:
        tree = load_html(html)
        if tree is None:
            return "", None
        title = tree.findtext("./head/title")
        listings = plain_listings(tree, html)
        # Favour precision, without comments: FineWeb's choice.
        text = main_content(tree, favor_precision=True, include_comments=False) or ""
        return _spaces(with_listings(text, listings)), title

    return extract


def _spaces(text: str) -> str:
    """No-break spaces lay out a page; in running text they are spaces."""
    return text.replace("\xa0", " ")

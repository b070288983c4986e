"""Reference for the line rules of C4 and RefinedWeb, in slow and obvious Python.

Every function gives the page that stays, or None when it goes. `tidy` makes pages comparable: lines without the white
space around them, and no blank ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
CITATION = re.compile(r"\[[0-9]*\]|\[edit\]|\[citation needed\]")
THINGS = (
    "likes", "shares", "comments", "retweets", "reposts", "quotes", "bookmarks", "upvotes", "downvotes", "downloads",
    "views", "followers",
)  # fmt: skip


def sentences(line: str) -> list[str]:
    """Sentences by the rule of `plinth_text.rules.c4`: given to projects that use Punkt."""
    pieces = re.split(r"[.!?]+[\"')]*(?=[ \t]|\Z)", line)
    full = [piece for piece in pieces if any(c > " " for c in re.sub(r"[.!?]+[\"')]*", "", piece))]
    return full or [line]


def lower(text: str) -> str:
    """Lower case of ASCII alone, which is all that phrases have."""
    return "".join(c.lower() if c.isascii() else c for c in text)


def tidy(page: str | None) -> str | None:
    if page is None:
        return None
    return "\n".join(" ".join(line.split()) for line in page.splitlines() if line.strip())


def cut(text: str, spans: list[dict[str, Any]]) -> str:
    """The text without these spans, which are sorted and disjoint."""
    kept, at = [], 0
    for span in spans:
        assert at <= span["start_cp"] < span["end_cp"] <= len(text)
        kept.append(text[at : span["start_cp"]])
        at = span["end_cp"]
    return "".join([*kept, text[at:]])


def c4_paper(text: str) -> str | None:
    kept, count = [], 0
    for line in map(str.strip, text.splitlines()):
        if any(len(word) > 1000 for word in line.split()):
            continue
        line = CITATION.sub("", line)
        low = lower(line)
        if not line.endswith((".", "?", "!", '"')) or line.endswith("...") or len(line.split()) < 3:
            continue
        if "lorem ipsum" in low:
            return None
        if "javascript" in low:
            continue
        if "{" in line:
            return None
        if not any(phrase in low for phrase in POLICIES):
            kept.append(line)
            count += len(sentences(line))
    return "\n".join(kept) if count >= 5 else None


def c4_dclm(text: str) -> str | None:
    """A page is what its steps leave of it; an empty line passes the rules of lines."""
    if len(text) > 190_000:
        return None

    def left(keep: Callable[[str], bool], page: str) -> str:
        return "\n".join(line for line in page.split("\n") if keep(line))

    page = left(lambda line: all(len(word) <= 1000 for word in line.split()), text)
    page = CITATION.sub("", page)
    page = left(lambda line: not line or line.rstrip().endswith((".", "!", "?", '"', "…")), page)
    page = left(lambda line: not line.rstrip().endswith(("...", "…")), page)
    page = left(lambda line: not line or len(line.split()) >= 5, page)
    if "lorem ipsum" in lower(page):
        return None
    page = left(lambda line: "javascript" not in lower(line), page)
    if "{" in page:
        return None
    page = left(lambda line: not any(phrase in lower(line) for phrase in POLICIES), page)
    count = sum(len(sentences(line.strip())) for line in page.split("\n") if line.strip())
    return page if count >= 3 else None


def c4_dolma(text: str) -> str | None:
    if any(phrase in lower(text) for phrase in ("{", "lorem ipsum", "javascript")):
        return None
    lines = [(line, line.strip()) for line in text.split("\n")]
    return "\n".join(line for line, bare in lines if bare.endswith((".", "?", "!", '"')) and len(bare.split()) >= 3)


def words(text: str) -> int:
    """Words between ASCII white space that begin with a letter or digit."""
    return sum(word[:1].isalnum() for word in re.split(r"[ \n\r\t\v\f\0]+", text))


def refinedweb(text: str) -> str | None:
    """Steps over a page that loses the white space at its ends after most of them."""
    things = "|".join(THINGS)
    page = text
    for keep, strips in (
        (lambda line: not line or sum(map(str.isupper, line)) / len(line) <= 0.5, True),
        (lambda line: not line or sum(map(str.isdigit, line)) / len(line) <= 0.999999, True),
        (lambda line: not re.fullmatch(rf"\W*\d[,.\d]*[kmb]?\s+({things})\W*", lower(line)), True),
        (lambda line: not line or len(line.split()) >= 2, False),
    ):
        page = "\n".join(line for line in page.split("\n") if keep(line))
        page = page.strip() if strips else page
    for pattern in (r"\s?items in cart", r"\s?read more...\Z", r"\Asign-in\s?"):
        kept = []
        for line in page.split("\n"):
            left = re.sub(pattern, "", line, flags=re.IGNORECASE) if len(line.split()) <= 10 else line
            if left.strip() or not line:
                kept.append(left)
        page = "\n".join(kept).strip()
    before = words(text)
    if not before or not page or (before - words(page)) / before > 0.05:
        return None
    return page

"""Lists as a reader sees them: those that the engine would drop from main content, and numbers as browsers count.

Resiliparse drops every `<ul>` fewer than four levels below `body`, and every one whose text is links for more than a
fifth. Navigation looks like that, and so do the lists of plain pages. A list is kept where links are no more than a
fifth of its text, or where it is among prose: paragraphs next to it, or next to the element that holds nothing else. A
list inside a kept one is kept. Resiliparse also numbers every `<ol>` from 1.

The label of an item (bullet, number, letter) is written into the tree between two characters that no text has, and
takes the place of Resiliparse's own afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

#: Levels below `body` from which Resiliparse 2.0.1 considers a list, and the share of links above which it does not.
DEPTH, MAX_LINKS = 4, 0.2
#: Characters of paragraphs next to a list that make it a part of the text, and siblings to look at for them.
MIN_PROSE, MAX_SIBLINGS = 140, 16
BULLET = "•"
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_SHALLOW = "body > ul, body > * > ul, body > * > * > ul"
_AMONG_PROSE = "p ~ ul, ul:has(~ p), p ~ * > ul:only-child, :has(~ p) > ul:only-child"
_NUMBERED = "ol[start], ol[reversed], ol[type], ol[style*='list-style'], ol:has(> li[value]), ol:has(> li[type])"
#: One query for all, which costs hardly more than one for each.
_LISTS = f"{_SHALLOW}, {_AMONG_PROSE}, {_NUMBERED}"
#: What Resiliparse writes before an item, and the label after it; of an item that begins with a list, its own goes.
_LABEL = re.compile(rf"(?:\d+\. )?{_OPEN}([^{_OPEN}{_CLOSE}\n]*){_CLOSE}\s*(?:(?=(?:\d+\. )?{_OPEN}|{BULLET} )())?")
_INTEGER = re.compile(r"\s*([+-]?\d{1,9})")
_STYLE = re.compile(r"list-style(?:-type)?\s*:[^;]*?\b(decimal|none|(?:lower|upper)-(?:alpha|latin|roman))\b", re.I)
_KINDS = {"decimal": "1", "none": "", "lower-alpha": "a", "lower-latin": "a", "lower-roman": "i"}
_KINDS |= {"upper-alpha": "A", "upper-latin": "A", "upper-roman": "I"}
_ROMAN = 1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1
_LETTERS = "m", "cm", "d", "cd", "c", "xc", "l", "xl", "x", "ix", "v", "iv", "i"


def with_lists(tree: Any) -> bool:
    """Label the lists of a tree of Resiliparse that it would drop or misnumber; True if there are any."""
    body, labeled = tree.body, False
    if body is None:
        return False
    for found in body.query_selector_all(_LISTS).values():
        if found.tag == "ol":
            labeled |= _number(tree, found)
        elif found.parent is not None and _is_content(found):
            for ul in [found, *found.get_elements_by_tag_name("ul").values()]:
                labeled |= _keep(tree, ul)
    return labeled


def labels_in_place(text: str) -> str:
    """The text of a tree that `with_lists` has labeled."""
    return _LABEL.sub(lambda found: f"{found[1]} " if found[1] and found[2] is None else "", text)


def _is_content(ul: Any) -> bool:
    return not _linked(ul) or _among_prose(ul)


def _linked(element: Any) -> bool:
    """True if more than `MAX_LINKS` of an element's text is links."""
    links = element.get_elements_by_tag_name("a").values()
    left = MAX_LINKS * len(" ".join(element.text.split())) if links else 0
    return any((left := left - len(" ".join(a.text.split()))) < 0 for a in links)


def _among_prose(ul: Any) -> bool:
    alone = ul.previous_element_sibling is None and ul.next_element_sibling is None
    return _has_prose(ul) or (alone and ul.parent.tag != "body" and _has_prose(ul.parent))


def _has_prose(element: Any) -> bool:
    """True if paragraphs among the nearest siblings of an element have `MIN_PROSE` characters."""
    found = 0
    for step in ("previous_element_sibling", "next_element_sibling"):
        sibling = getattr(element, step)
        for _ in range(MAX_SIBLINGS):
            if sibling is None:
                break
            if sibling.tag == "p" and not _linked(sibling):
                found += len(sibling.text)
            if found >= MIN_PROSE:
                return True
            sibling = getattr(sibling, step)
    return False


def _keep(tree: Any, ul: Any) -> bool:
    """Make a list that Resiliparse would drop one that it keeps: an `ol` with bullets; True if it was such a list."""
    if _depth(ul) >= DEPTH and not _linked(ul):
        return False
    ol = tree.create_element("ol")
    for name in ul.attrs:  # by which it may be dropped for other reasons
        ol.setattr(name, ul.getattr(name))
    while (child := ul.first_child) is not None:
        ol.append_child(child)
    ul.replace_with(ol)
    for item in _items(ol):
        _label(tree, item, BULLET)
    return True


def _depth(element: Any) -> int:
    depth = 0
    while element is not None and element.tag != "body" and depth < DEPTH:
        element, depth = element.parent, depth + 1
    return depth


def _number(tree: Any, ol: Any) -> bool:
    items = list(_items(ol))
    step = -1 if ol.hasattr("reversed") else 1
    number = _integer(ol.getattr("start"), len(items) if step < 0 else 1)
    for item in items:
        number = _integer(item.getattr("value"), number)
        _label(tree, item, _numeral(number, _kind(item) or _kind(ol) or "1"))
        number += step
    return bool(items)


def _kind(element: Any) -> str:
    """How an element's attributes write numbers: `1`, `a`, `A`, `i`, `I`, `none`; empty where they do not say."""
    style = _STYLE.search(element.getattr("style") or "")
    if style:
        return _KINDS[style[1].lower()] or "none"
    stated = (element.getattr("type") or "").strip()
    return stated if stated in ("1", "a", "A", "i", "I") else ""


def _numeral(number: int, kind: str) -> str:
    if kind == "none":
        return ""
    written = str(number)
    if kind in "aA" and number > 0:
        written = ""
        while number > 0:
            number, letter = divmod(number - 1, 26)
            written = chr(ord(kind) + letter) + written
    elif kind in "iI" and 0 < number < 4000:
        written = ""
        for value, letters in zip(_ROMAN, _LETTERS, strict=True):
            count, number = divmod(number, value)
            written += letters * count
        written = written.upper() if kind == "I" else written
    return f"{written}."


def _integer(text: str | None, default: int) -> int:
    found = _INTEGER.match(text or "")
    return int(found[1]) if found else default


def _items(ol: Any) -> Iterator[Any]:
    child = ol.first_element_child
    while child is not None:
        if child.tag == "li":
            yield child
        child = child.next_element_sibling


def _label(tree: Any, item: Any, label: str) -> None:
    if item.text.strip():
        item.insert_before(tree.create_text_node(f"{_OPEN}{label}{_CLOSE}"), item.first_child)

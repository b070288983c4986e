"""Preparation of HTML so that an extraction engine keeps list numbers and bullets, and formulas as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import escape, unescape
from typing import Any

# Lists as a reader sees them: those that the engine would drop from main content, and numbers as browsers count.
#
# Resiliparse drops every `<ul>` fewer than four levels below `body`, and every one whose text is links for more than a
# fifth. Navigation looks like that, and so do the lists of plain pages. A list is kept where links are no more than a
# fifth of its text, or where it is among prose: paragraphs next to it, or next to the element that holds nothing else.
# A list inside a kept one is kept. Resiliparse also numbers every `<ol>` from 1.
#
# The label of an item (bullet, number, letter) is written into the tree between two characters that no text has, and
# takes the place of Resiliparse's own afterward.

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
#: Text that Resiliparse writes before an item, and the label after it; an item that begins with a list loses its own.
_LABEL = re.compile(rf"(?:\d+\. )?{_OPEN}([^{_OPEN}{_CLOSE}\n]*){_CLOSE}\s*(?:(?=(?:\d+\. )?{_OPEN}|{BULLET} )())?")
_INTEGER = re.compile(r"\s*([+-]?\d{1,9})")
_STYLE = re.compile(r"list-style(?:-type)?\s*:[^;]*?\b(decimal|none|(?:lower|upper)-(?:alpha|latin|roman))\b", re.I)
_KINDS = {"decimal": "1", "none": "", "lower-alpha": "a", "lower-latin": "a", "lower-roman": "i"}
_KINDS |= {"upper-alpha": "A", "upper-latin": "A", "upper-roman": "I"}
_ROMAN = 1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1
_LETTERS = "m", "cm", "d", "cd", "c", "xc", "l", "xl", "x", "ix", "v", "iv", "i"


def with_lists(tree: Any) -> bool:
    """Label the lists that Resiliparse would drop or number incorrectly, in a Resiliparse tree. Return True if a list
    was labeled."""
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
    """Replace the labels that `with_lists` added by list numbers and bullets, in the text of the tree."""
    return _LABEL.sub(lambda found: f"{found[1]} " if found[1] and found[2] is None else "", text)


def _is_content(ul: Any) -> bool:
    return not _linked(ul) or _among_prose(ul)


def _linked(element: Any) -> bool:
    """Return True if links make up more than the share `MAX_LINKS` of an element's text."""
    links = element.get_elements_by_tag_name("a").values()
    left = MAX_LINKS * len(" ".join(element.text.split())) if links else 0
    return any((left := left - len(" ".join(a.text.split()))) < 0 for a in links)


def _among_prose(ul: Any) -> bool:
    alone = ul.previous_element_sibling is None and ul.next_element_sibling is None
    return _has_prose(ul) or (alone and ul.parent.tag != "body" and _has_prose(ul.parent))


def _has_prose(element: Any) -> bool:
    """Return True if the paragraphs among an element's nearest siblings have at least `MIN_PROSE` characters."""
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
    """Replace a list that Resiliparse would drop by an `ol` with bullets, because Resiliparse keeps `ol`. Return True
    if the list was replaced."""
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
    """Return the number style in a list element's attributes: `1`, `a`, `A`, `i`, `I` or `none`. Return an empty text
    if the element has no number style."""
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


# Formulas as a reader sees them: raised and lowered text marked, MathML in one line of text.
#
# Both engines run `10<sup>6</sup>` together to `106`, and one of them prints a formula and its TeX source side by side.
# Before a page is parsed its formulas are written out, so that both give the same:
#
#     10<sup>6</sup>, x<sub>i</sub>         10⁶, xᵢ           where Unicode has every character raised or lowered
#     e<sup>-kt</sup>, V<sub>out,1</sub>    e^(-kt), V_(out,1)
#     <math> … </math>                      its presentation: (a+b)/(2c), √(x), xᵢ²; its sources are not shown
#
# References to notes, ordinals, and small print are not formulas, and are kept.

_RAISED = str.maketrans("0123456789+-−=()ni′″‴∘°", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿⁱ′″‴°°")
_LOWERED = str.maketrans("0123456789+-−=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")
#: Innermost first; one that is not closed costs no more than the way to the next.
_SCRIPT = re.compile(
    r"<([sS][uU][bBpP])\b([^<>]*)>([^<]*(?:<(?!/?[sS][uU][bBpP]\b)[^<]*)*)</\1\s*>"  # `re.I` would search slowly
)
_MARKUP = re.compile(r"<[^<>]*>")
#: Base of a raised or lowered text: a letter, a digit or a bracket, with closing tags of inline elements between.
_BASE = re.compile(r"[\w)\]}'′″°%&;](?:</(?:i|em|b|strong|var|span|su[bp]|a|tt|code|font|u)\s*>)*\Z", re.I)
_LOOK_BACK = 64
_NOTE = re.compile(r"<a\b|\A\s*(?:\[|&#91;)", re.I)
_NOTE_CLASS = re.compile(r"reference|footnote|noteref|citation", re.I)
_WORDS = re.compile(r"[^\W\d_]{2,}\s+[^\W\d_]{2,}")
_LONGEST = 40
#: After a digit or a Roman numeral; those of several letters after anything.
_ORDINALS = frozenset({"st", "nd", "rd", "th", "er", "re", "ère", "ème", "eme", "me", "mme", "lle", "os", "as"})
_NUMERAL = re.compile(r"[0-9IVXLCM]\Z")
_MARKS = {"tm": "™", "sm": "℠", "®": "®", "™": "™", "©": "©"}
_ROUNDS = 4

#: A source of a formula may stand in an attribute, with brackets of its own.
_MATH = re.compile(r"""<math\b(?:[^<>"']|"[^"]{0,9999}"|'[^']{0,9999}')*>([^<]*(?:<(?!/?math\b)[^<]*)*)</math\s*>""")
#: Wikipedia hides the MathML of a formula and shows its picture.
_HIDDEN = re.compile(r"""(<span class="mwe-math-mathml[^"<>]*")\s+style="display:\s*none;?\"""")
_TOKEN = re.compile(r"<!--[^<>]*-->|<(/?)(?:\w++:)?(\w[\w-]*+)[^<>]*?(/?)>|([^<]+)")
#: Function application, and times, separator and plus that are not seen.
_UNSEEN = {ord(c): None for c in "\u2061\u2062\u2063\u2064"}
_SOURCES = frozenset({"annotation", "annotation-xml", "mphantom", "none", "mprescripts"})
_DEEPEST = 64


def readable_formulas(html: str) -> str:
    """Return a page with its formulas converted to text."""
    if "<math" in html:
        html = _MATH.sub(_formula, _HIDDEN.sub(r"\1", html))
    for _ in range(_ROUNDS):
        if "<su" not in html and "<SU" not in html:
            break
        before, html = html, _SCRIPT.sub(_script, html)
        if html == before:
            break
    return html


def raised(text: str) -> str:
    """Return the text as superscript, in Unicode characters if all of them exist, otherwise as `^(…)`."""
    return _script_text(text, _RAISED, "^")


def lowered(text: str) -> str:
    """Return the text as subscript, in Unicode characters if all of them exist, otherwise as `_(…)`."""
    return _script_text(text, _LOWERED, "_")


def _script_text(text: str, table: dict[int, int], mark: str) -> str:
    if not text:
        return ""
    known = all(ord(c) in table for c in text)
    return text.translate(table) if known else f"{mark}({text})"


def _script(found: re.Match[str]) -> str:
    kind, attributes, inside = found[1].lower(), found[2], found[3]
    text = " ".join(unescape(_MARKUP.sub("", inside)).split())
    before = found.string[max(0, found.start() - _LOOK_BACK) : found.start()]
    if not text or _NOTE.search(inside) or _NOTE_CLASS.search(attributes):
        return found[0] if text else ""
    if kind == "sup" and text.lower() in _MARKS:
        return _MARKS[text.lower()]
    if len(text) > _LONGEST or _WORDS.search(text) or not _BASE.search(before):
        return found[0]
    if kind == "sub":
        return escape(lowered(text), quote=False)
    if text.lower() in _ORDINALS or (text == "e" and _NUMERAL.search(before)):
        return found[0]
    return escape(raised(text), quote=False)


class _Element:
    __slots__ = ("children", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: list[_Element | str] = []


def _formula(found: re.Match[str]) -> str:
    return escape(_text(_parsed(found[1])).translate(_UNSEEN), quote=False)


def _parsed(markup: str) -> _Element:
    """Parse the elements of a formula. Elements that are nested deeper than in real formulas are flattened."""
    root = _Element("math")
    stack = [root]
    for token in _TOKEN.finditer(markup):
        ends, name, empty, text = token.groups()
        if text is not None:
            stack[-1].children.append(" ".join(unescape(text).split()))
        elif name is None:
            continue
        elif not ends:
            element = _Element(name.lower())
            stack[-1].children.append(element)
            if not empty and len(stack) < _DEEPEST:
                stack.append(element)
        elif len(stack) > 1 and stack[-1].name == name.lower():
            stack.pop()
    return root


def _text(element: _Element) -> str:
    parts = [one if isinstance(one, str) else _text(one) for one in element.children]
    inner = [part for one, part in zip(element.children, parts, strict=True) if isinstance(one, _Element)]
    name = element.name
    if name in _SOURCES:
        return ""
    if name == "semantics":
        return inner[0] if inner else "".join(parts)
    if name == "mspace":
        return " "
    if name == "msqrt":
        return f"√({''.join(parts)})"
    if name == "mtable":
        return f"[{'; '.join(inner)}]"
    if name == "mtr":
        return ", ".join(inner)
    if name == "mfenced":
        return f"({', '.join(inner)})"
    write = _LAYOUTS.get((name, len(inner)))
    return write(*inner) if write else "".join(parts)


def _operand(text: str) -> str:
    return text if len(text) < 2 or text.isdecimal() else f"({text})"


#: By name and number of children.
_LAYOUTS: dict[tuple[str, int], Callable[..., str]] = {
    ("msup", 2): lambda base, top: base + raised(top),
    ("mover", 2): lambda base, top: base + raised(top),
    ("msub", 2): lambda base, low: base + lowered(low),
    ("munder", 2): lambda base, low: base + lowered(low),
    ("msubsup", 3): lambda base, low, top: base + lowered(low) + raised(top),
    ("munderover", 3): lambda base, low, top: base + lowered(low) + raised(top),
    ("mfrac", 2): lambda over, under: f"{_operand(over)}/{_operand(under)}",
    ("mroot", 2): lambda base, index: f"{raised(index)}√({base})",
}

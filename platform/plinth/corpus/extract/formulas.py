"""Formulas as a reader sees them: raised and lowered text marked, MathML in one line of text.

Both engines run `10<sup>6</sup>` together to `106`, and one of them prints a formula and its TeX source side by side.
Before a page is parsed its formulas are written out, so that both give the same:

    10<sup>6</sup>, x<sub>i</sub>         10⁶, xᵢ           where Unicode has every character raised or lowered
    e<sup>-kt</sup>, V<sub>out,1</sub>    e^(-kt), V_(out,1)
    <math> … </math>                      its presentation: (a+b)/(2c), √(x), xᵢ²; sources beside it are not shown

References to notes, ordinals, and small print are no formulas and stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape, unescape

_RAISED = str.maketrans("0123456789+-−=()ni′″‴∘°", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿⁱ′″‴°°")
_LOWERED = str.maketrans("0123456789+-−=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")
#: Innermost first; one that is not closed costs no more than the way to the next.
_SCRIPT = re.compile(
    r"<([sS][uU][bBpP])\b([^<>]*)>([^<]*(?:<(?!/?[sS][uU][bBpP]\b)[^<]*)*)</\1\s*>"  # `re.I` would search slowly
)
_MARKUP = re.compile(r"<[^<>]*>")
#: What a script stands at: a letter, a digit or a bracket, with tags of inline elements closed in between.
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
    """A page with its formulas as text."""
    if "<math" in html:
        html = _MATH.sub(_formula, _HIDDEN.sub(r"\1", html))
    for _ in range(_ROUNDS):
        if "<su" not in html and "<SU" not in html:
            break
        html = _SCRIPT.sub(_script, html)
    return html


def raised(text: str) -> str:
    """Raised text: by Unicode's characters where there are all of them, else `^(…)`."""
    return _script_text(text, _RAISED, "^")


def lowered(text: str) -> str:
    """Lowered text, the same way: `_(…)`."""
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
    """The elements of a formula; what is nested deeper than any formula is becomes flat."""
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

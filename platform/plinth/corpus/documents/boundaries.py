"""Boundaries that line ends and page ends have put in the wrong place, mended where the text itself shows how.

For text out of PDFs, scans and e-books. Every rule prefers leaving a fault to making one:

    page ends     a form feed inside a sentence (no closing mark before it, a small letter after it) is a space;
                  a line with nothing but a number beside the form feed is the page's number and goes
    hyphens       `exam-` / `ple` at a line's end becomes `example` only where the text has `example` elsewhere, and
                  `well-known` only where it has `well-known`; otherwise it stays
    sentences     `ended.The next` gets its space when a small-lettered word is before the mark and one of the words
                  that begin sentences after it

Lines that look like code, and words with anything but letters around the mark (addresses, numbers, file names,
abbreviations) are left alone. No letter is ever lost.
"""

from __future__ import annotations

import re

_HYPHEN = re.compile(r"(?<![\w-])([^\W\d_]{2,})-\n([^\W\d_]{2,})(?![\w-])")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
#: Function words that begin English sentences and hardly ever name a module, a class or a domain.
_OPENERS = (
    "The|This|That|These|Those|There|It|Its|He|She|We|They|You|His|Her|Their|Our|My|However|Therefore|Although|Because|"
    "When|While|After|Before|During|Since|Then|Thus|Also|Even|Many|Most|Some|Such|What|Why|How|Where|But|And|In|On|At|By"
)
_GLUED = re.compile(rf"(?<![\w.:/@\\`'\x22(-])([^\W\d_A-Z]{{3,}}[.!?])((?:{_OPENERS})) (?=[^\W\d_A-Z])")
#: Characters of code that prose hardly uses.
_CODE = re.compile(r"[{}<>;=`\\|_]|\(\)|::|->|^\s*(?:#|//|>>>|\$ )|^(?: {4}|\t)")
_CLOSING = '.!?:;"”»)]…。！？'


def mend(text: str) -> str:
    """A text with wrong boundaries mended; line ends are `\n` already, page ends still `\f`. Linear in its length."""
    if "\f" in text:
        text = _mend_pages(text.split("\f"))
    if "-\n" in text:
        text = _mend_hyphens(text)
    if _GLUED.search(text):
        text = "\n".join(line if _CODE.search(line) else _GLUED.sub(r"\1 \2 ", line) for line in text.split("\n"))
    return text


def _mend_pages(pages: list[str]) -> str:
    """Pages one after another, without the blank lines and page numbers at their joints."""
    pieces: list[str] = []
    last_line = ""
    for index, page in enumerate(pages):
        lines = page.split("\n")
        if index > 0:
            lines = _trimmed(lines)
        if index < len(pages) - 1:
            lines = _trimmed(lines[::-1])[::-1]
        if not lines:
            continue
        if pieces:
            pieces.append(_joint(last_line, lines[0]))
        pieces.append("\n".join(lines))
        # A page of one line goes on with the line before it; only its end matters for the next joint.
        last_line = lines[-1]
    return "".join(pieces)


def _trimmed(lines: list[str]) -> list[str]:
    """Lines without blank ones at the beginning, and one page number among them."""
    start, numbers = 0, 0
    while start < len(lines):
        word = lines[start].strip().strip("-").strip()
        numbers += bool(word)
        if word and (numbers > 1 or len(word) > 4 or not (word.isascii() and word.isdigit())):
            break
        start += 1
    return lines[start:]


def _joint(before: str, after: str) -> str:
    """A space inside a sentence, a line's end where a rule for lines decides, a paragraph's end otherwise."""
    before = before.rstrip()
    if _CODE.search(before) or _CODE.search(after):
        return "\n"
    if not after[:1].islower() or not before or before[-1] in _CLOSING:
        return "\n\n"
    return "\n" if before[-1] == "-" else " "


def _mend_hyphens(text: str) -> str:
    words = {word.casefold() for word in _WORD.findall(text)}

    def joined(match: re.Match[str]) -> str:
        first, second = match.groups()
        line_start = text.rfind("\n", 0, match.start()) + 1
        if _CODE.search(text[line_start : match.start()] + first) or not second[0].islower():
            return match.group()
        if (first + second).casefold() in words:
            return f"{first}{second}"
        return f"{first}-{second}" if f"{first}-{second}".casefold() in words else match.group()

    return _HYPHEN.sub(joined, text)

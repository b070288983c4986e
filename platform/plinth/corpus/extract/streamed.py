"""Parts of a page that a server sends late, in the places that they are for.

React sends a placeholder (`<template id="B:0">`) for a part that is not ready, and the part as a hidden element at the
end of the page (`<div hidden id="S:0">`). A script of the page moves it. Often the part is all of the main content.
"""

from __future__ import annotations

import re

_HIDDEN = '<div hidden id="S:'
_PART = re.compile(rf'{_HIDDEN}([0-9a-f]+)">')
_PLACE = re.compile(r'<template id="[BP]:([0-9a-f]+)"></template>')


def in_place(html: str) -> str:
    """Return a page with its late parts in their places; parts without a place stay at the end, but are not hidden."""
    if _HIDDEN not in html:
        return html
    first, *rest = _PART.split(html)
    parts, tails, written = dict[str, str](), list[str](), list[str]()
    for number, text in zip(rest[::2], rest[1::2], strict=True):
        inside, end, tail = text.rpartition("</div>")
        parts.setdefault(number, f"<div>{inside}{end}" if end else f"<div>{tail}</div>")
        tails.append(tail if end else "")
    unfinished = [(first, 0)]
    while unfinished:
        text, at = unfinished.pop()
        place = _PLACE.search(text, at)
        written.append(text[at : place.start() if place else None])
        if place:
            unfinished.append((text, place.end()))
            unfinished.append((parts.pop(place[1], ""), 0))
        elif not unfinished and parts:
            unfinished.append((parts.pop(next(iter(parts))), 0))
    return "".join(written + tails)

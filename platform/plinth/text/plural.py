"""Counts in words for terminals, pages and logs."""

from __future__ import annotations


def counted(number: int, what: str, verb: str = "") -> str:
    """A count with its noun and its verb, which are given as `step` and `be`, `hold`.

    `1 step`, `2 steps`, `1 file is`, `1,000 entries hold`.
    """
    one = number == 1
    noun = what if one else f"{what[:-1]}ies" if what.endswith("y") and what[-2:-1] not in "aeiou" else f"{what}s"
    said = ("is" if one else "are") if verb == "be" else f"{verb}s" if verb and one else verb
    return f"{number:,} {noun} {said}".rstrip()

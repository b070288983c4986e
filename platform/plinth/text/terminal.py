"""Foreign text for a terminal: what would command it, or reorder what it shows, is written out."""

from __future__ import annotations

import re

#: Control characters of ASCII and Latin-1 but for line ends and tabs, marks of direction, line separators, and halves
#: of surrogate pairs, which cannot be printed.
_COMMANDS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def visible(text: str) -> str:
    """Text with such characters as `\\x1b`, the escapes of Python; line ends and tabs stay."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaped(json_text: str) -> str:
    """A JSON document with such characters as `\\u001b`: its meaning does not change."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)

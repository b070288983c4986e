"""Media that a record says belong to it: `media: [{"sha256": …, "phash": …}]`, hashes and nothing else.

Lists of illegal images are lists of such hashes; the images themselves are never read.
"""

from __future__ import annotations

import re
from typing import Any

#: Hexadecimal digits of each hash.
DIGITS = {"sha256": 64, "phash": 16}


def media(value: Any) -> list[dict[str, str]]:
    """The hashes that a field declares, lower case; other things of the same name have none and are left out.

    Raises:
        ValueError: a hash of the wrong form, which no list could be held against; says which.
    """
    found = []
    for number, item in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(item, dict):
            continue
        hashes = {}
        for name, digits in DIGITS.items():
            given = item.get(name)
            if given is None:
                continue
            if not isinstance(given, str) or not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", given):
                raise ValueError(f"media[{number}].{name} is not {digits} hexadecimal digits")
            hashes[name] = given.lower()
        if hashes:
            found.append(hashes)
    return found

"""Licence names, as Python metadata and Debian write them, to SPDX expressions; `unknown` where the name is unclear."""

from __future__ import annotations

import re
from collections.abc import Sequence

UNKNOWN = "unknown"
#: A BSD licence of an unstated number of clauses: permissive, but without an SPDX identifier.
BSD = "LicenseRef-BSD"

#: Values of the `License` field, in lower case without punctuation and filler words.
NAMES = {
    "mit": "MIT",
    "expat": "MIT",
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2 0": "Apache-2.0",
    "asl 2 0": "Apache-2.0",
    "bsd": BSD,
    "bsd 2 clause": "BSD-2-Clause",
    "2 clause bsd": "BSD-2-Clause",
    "simplified bsd": "BSD-2-Clause",
    "bsd 3 clause": "BSD-3-Clause",
    "3 clause bsd": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "modified bsd": "BSD-3-Clause",
    "isc": "ISC",
    "isc iscl": "ISC",
    "psf": "PSF-2.0",
    "psf 2 0": "PSF-2.0",
    "mpl 2 0": "MPL-2.0",
    "zpl 2 1": "ZPL-2.1",
    "gplv2": "GPL-2.0-only",
    "gplv3": "GPL-3.0-only",
    "gpl 2 0 or later": "GPL-2.0-or-later",
    "gpl 3 0 or later": "GPL-3.0-or-later",
    "lgpl 2 1 or later": "LGPL-2.1-or-later",
    "lgpl 3 0 or later": "LGPL-3.0-or-later",
    "unlicense": "Unlicense",
    "zlib": "Zlib",
    "cc0 1 0": "CC0-1.0",
    "0bsd": "0BSD",
}

#: Last part of `License ::` classifiers.
CLASSIFIERS = {
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Apache Software License": "Apache-2.0",
    "BSD License": BSD,
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "zlib/libpng License": "Zlib",
    "Zope Public License": "ZPL-2.1",
    "Academic Free License (AFL)": "AFL-3.0",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": "CC0-1.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Historical Permission Notice and Disclaimer (HPND)": "HPND",
    "GNU General Public License (GPL)": "GPL-1.0-or-later",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.0-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
    "GNU Library or Lesser General Public License (LGPL)": "LGPL-2.0-or-later",
    "Other/Proprietary License": UNKNOWN,
}

#: Debian's short names (copyright format 1.0) that are not SPDX already.
DEBIAN = {
    "expat": "MIT",
    "mit": "MIT",
    "mit/x11": "MIT",
    "x11": "X11",
    "isc": "ISC",
    "zlib": "Zlib",
    "openssl": "OpenSSL",
    "artistic": "Artistic-1.0-Perl",
    "artistic-2.0": "Artistic-2.0",
    "artistic-1": "Artistic-1.0-Perl",
    "psf-2": "PSF-2.0",
    "psf": "PSF-2.0",
    "public-domain": "LicenseRef-public-domain",
    "apache-2": "Apache-2.0",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-2": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsd-3": "BSD-3-Clause",
    "bsd-3-clause-uc": "BSD-3-Clause",
    "bsd-4-clause": "BSD-4-Clause",
    "bsd-4-clause-uc": "BSD-4-Clause-UC",
    "bsd": BSD,
    "cc0": "CC0-1.0",
    "curl": "curl",
    "unlicense": "Unlicense",
    "verbatim": "Linux-man-pages-copyleft",
}
_FAMILY = re.compile(r"^(a?gpl|lgpl|gfdl)(?:-niv|-nivs)?-v?(\d(?:\.\d)?)(\+|-or-later|-only)?$")
#: SPDX identifiers that Debian writes as SPDX does.
SAME = {
    *(
        "Apache-2.0",
        "Artistic-2.0",
        "0BSD",
        "BSL-1.0",
        "CC0-1.0",
        "CC-BY-3.0",
        "CC-BY-4.0",
        "CC-BY-SA-3.0",
        "CC-BY-SA-4.0",
    ),
    *(
        "EPL-1.0",
        "EPL-2.0",
        "MIT-0",
        "MPL-1.1",
        "MPL-2.0",
        "OFL-1.1",
        "LPPL-1.3c",
        "Unicode-DFS-2016",
        "PSF-2.0",
        "ZPL-2.1",
    ),
}
_PLAIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.+-]*$")
#: Long forms are licence texts, not names.
_NAME_CHARACTERS = 60


def from_metadata(expression: str | None, field: str | None, classifiers: Sequence[str]) -> str:
    """The licence that a distribution declares: its SPDX expression, else its name, else its classifiers.

    Several classifiers are joined by AND, the strictest reading.
    """
    if expression and expression.strip():
        return expression.strip()
    named = _named(field or "")
    if named not in (UNKNOWN, BSD):
        return named
    tails = (text.split("::")[-1].strip() for text in classifiers if text.startswith("License"))
    known = sorted({CLASSIFIERS.get(tail, UNKNOWN) for tail in tails if tail != "OSI Approved"})
    if UNKNOWN in known:
        return UNKNOWN
    return " AND ".join(known) if known else named


def from_debian(name: str) -> str:
    """A licence field of a Debian copyright file: `GPL-2+ and BSD-3-clause` becomes an SPDX expression."""
    text = name.strip().rstrip(".,").replace(",", " ")
    parts = re.split(r"\s+(and/or|and|or)\s+", text)
    joined = []
    for part in parts:
        if part in ("and", "or", "and/or"):
            joined.append("OR" if part == "or" else "AND")
            continue
        one = _debian_name(part.strip())
        if one == UNKNOWN:
            return UNKNOWN
        joined.append(one)
    operators = set(joined[1::2])
    # `A or B and C` means different things to different writers.
    return " ".join(joined) if len(operators) <= 1 else UNKNOWN


def _debian_name(name: str) -> str:
    family = _FAMILY.match(name.lower())
    if family:
        letters, version, later = family.groups()
        number = version if "." in version else f"{version}.0"
        return f"{letters.upper()}-{number}-{'or-later' if later in ('+', '-or-later') else 'only'}"
    if name.lower() in DEBIAN:
        return DEBIAN[name.lower()]
    return name if name in SAME else UNKNOWN


def _named(field: str) -> str:
    """A short licence name as SPDX."""
    text = field.strip()
    if not text or len(text) > _NAME_CHARACTERS or "\n" in text:
        return UNKNOWN
    if re.search(r" (OR|AND|WITH) ", text) and all(_PLAIN.match(word) for word in re.split(r"[\s()]+", text) if word):
        return text
    if text in ("Apache-2.0", "MIT", "ISC", "MPL-2.0", "PSF-2.0", "ZPL-2.1", "BSD-2-Clause", "BSD-3-Clause"):
        return text
    words = re.sub(r"[^a-z0-9]+", " ", text.lower())
    words = re.sub(r"\b(the|licen[cs]e|version|v|software|clause license)\b", " ", words)
    return NAMES.get(" ".join(words.split()), UNKNOWN)

"""Installed packages with their declared licenses, and two buckets of their text. License names from Python metadata
and from Debian are converted to SPDX expressions, or to `unknown` if the name is unclear.
"""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.message import Message
from functools import cache, cached_property
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import cast

from plinth_jobs.harvest.output import Caps, Output, gzipped, level, shares, take

UNKNOWN = "unknown"
#: A BSD license whose number of clauses is not stated. It is permissive but has no SPDX identifier.
BSD = "LicenseRef-BSD"

#: Values of the `License` field, in lower case without punctuation and filler words.
NAMES = {
    "mit": "MIT", "expat": "MIT", "apache": "Apache-2.0", "apache 2": "Apache-2.0", "apache 2 0": "Apache-2.0",
    "asl 2 0": "Apache-2.0", "bsd": BSD, "bsd 2 clause": "BSD-2-Clause", "2 clause bsd": "BSD-2-Clause",
    "simplified bsd": "BSD-2-Clause", "bsd 3 clause": "BSD-3-Clause", "3 clause bsd": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause", "modified bsd": "BSD-3-Clause", "isc": "ISC", "isc iscl": "ISC", "psf": "PSF-2.0",
    "psf 2 0": "PSF-2.0", "mpl 2 0": "MPL-2.0", "zpl 2 1": "ZPL-2.1", "gplv2": "GPL-2.0-only",
    "gplv3": "GPL-3.0-only", "gpl 2 0 or later": "GPL-2.0-or-later", "gpl 3 0 or later": "GPL-3.0-or-later",
    "lgpl 2 1 or later": "LGPL-2.1-or-later", "lgpl 3 0 or later": "LGPL-3.0-or-later", "unlicense": "Unlicense",
    "zlib": "Zlib", "cc0 1 0": "CC0-1.0", "0bsd": "0BSD",
}  # fmt: skip

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

#: Debian's short names (copyright format 1.0) that are not SPDX identifiers.
DEBIAN = {
    "expat": "MIT", "mit": "MIT", "mit/x11": "MIT", "x11": "X11", "isc": "ISC", "zlib": "Zlib", "openssl": "OpenSSL",
    "artistic": "Artistic-1.0-Perl", "artistic-2.0": "Artistic-2.0", "artistic-1": "Artistic-1.0-Perl",
    "psf-2": "PSF-2.0", "psf": "PSF-2.0", "public-domain": "LicenseRef-public-domain", "apache-2": "Apache-2.0",
    "bsd-2-clause": "BSD-2-Clause", "bsd-2": "BSD-2-Clause", "bsd-3-clause": "BSD-3-Clause", "bsd-3": "BSD-3-Clause",
    "bsd-3-clause-uc": "BSD-3-Clause", "bsd-4-clause": "BSD-4-Clause", "bsd-4-clause-uc": "BSD-4-Clause-UC",
    "bsd": BSD, "cc0": "CC0-1.0", "curl": "curl", "unlicense": "Unlicense", "verbatim": "Linux-man-pages-copyleft",
}  # fmt: skip
_FAMILY = re.compile(r"^(a?gpl|lgpl|gfdl)(?:-niv|-nivs)?-v?(\d(?:\.\d)?)(\+|-or-later|-only)?$")
#: SPDX identifiers that Debian also uses.
SAME = {
    "Apache-2.0", "Artistic-2.0", "0BSD", "BSL-1.0", "CC0-1.0", "CC-BY-3.0", "CC-BY-4.0", "CC-BY-SA-3.0",
    "CC-BY-SA-4.0", "EPL-1.0", "EPL-2.0", "MIT-0", "MPL-1.1", "MPL-2.0", "OFL-1.1", "LPPL-1.3c", "Unicode-DFS-2016",
    "PSF-2.0", "ZPL-2.1",
}  # fmt: skip
_PLAIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.+-]*$")
#: Longer values are license texts, not names.
_NAME_CHARACTERS = 60


def from_metadata(expression: str | None, field: str | None, classifiers: Sequence[str]) -> str:
    """Return the license that a distribution declares: its SPDX expression. If there is no expression, use the license
    name; if there is no name, use the classifiers.

    Several classifiers are joined by AND, which is the strictest reading.
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
    """Convert a license field of a Debian copyright file, such as `GPL-2+ and BSD-3-clause`, to SPDX."""
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
    """Convert a short license name, such as `Apache 2.0`, to an SPDX expression."""
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


# Installed packages with their declared licenses, and two buckets of their text.
#
# code    Python source of the standard library and of the packages: `code/<owner>/<path>` and `LICENCES.json`
# prose   long descriptions as gzipped JSON lines

#: This project's own package is left out, because its files change with every edit.
SKIPPED = {"plinth"}


@dataclass(frozen=True)
class Package:
    """Installed distribution. `name` is normalized as in PEP 503."""

    name: str
    version: str
    licence: str
    distribution: Distribution

    @cached_property
    def description(self) -> str:
        """Long description in Markdown or reStructuredText."""
        message = headers(self.distribution)
        return str(message.get_payload() or message.get("Description") or "").strip()

    @property
    def mime(self) -> str:
        """Media type of the description."""
        declared = str(headers(self.distribution).get("Description-Content-Type") or "text/x-rst")
        return declared.partition(";")[0].strip().lower()

    def sources(self) -> dict[str, Path]:
        """Return the installed Python files of the package by relative path."""
        files = self.distribution.files or []
        return {
            str(file): Path(str(file.locate())) for file in files if file.suffix == ".py" and ".." not in file.parts
        }


@cache
def headers(distribution: Distribution) -> Message:
    """Parse a distribution's metadata, which is an e-mail message."""
    return cast(Message, distribution.metadata)


def site_folders() -> list[Path]:
    """Return the folders of installed distributions, without duplicates."""
    paths = sysconfig.get_paths()
    return [Path(path) for path in dict.fromkeys((paths["purelib"], paths["platlib"]))]


def packages() -> list[Package]:
    """Return every installed distribution once, sorted by name."""
    found: dict[str, Package] = {}
    for distribution in distributions(path=[str(folder) for folder in site_folders()]):
        metadata = headers(distribution)
        name = (metadata.get("Name") or "").lower().replace("_", "-").replace(".", "-")
        if not name or name in SKIPPED:
            continue
        licence = from_metadata(
            metadata.get("License-Expression"), metadata.get("License"), metadata.get_all("Classifier") or []
        )
        found.setdefault(name, Package(name, distribution.version, licence, distribution))
    return [found[name] for name in sorted(found)]


STDLIB, STDLIB_LICENCE = "stdlib", "PSF-2.0"
#: The standard library's share of the size limit. The packages share the rest evenly.
STDLIB_SHARE = 0.3
SKIPPED_FOLDERS = {
    *("test", "tests", "testing", "idlelib", "turtledemo", "site-packages", "dist-packages", "__pycache__"),
    *("ensurepip", "lib2to3", "encodings"),
}
MIN_BYTES = 200
_GENERATED = re.compile(rb"(?i)do not edit|@generated|auto-?generated|generated by|automatically generated")
_GENERATED_NAME = re.compile(r"(_pb2(_grpc)?|_generated|topics)\.py$|(^|/)test_[^/]*$")


def write_code(output: Output, caps: Caps, packages: Iterable[Package]) -> None:
    """Write the Python files of the standard library and of packages, each with the license of its owner. Files with
    unknown and non-permissive licenses are included."""
    licences = {STDLIB: STDLIB_LICENCE}
    stdlib = _wanted(_stdlib(), caps)
    _copy_source(output, STDLIB, STDLIB_LICENCE, stdlib, int(caps.code * STDLIB_SHARE))
    owned = {package: _wanted(package.sources(), caps) for package in packages}
    used = sum(size for _, size in output.counts.values())
    share = level((sum(size for _, size in files.values()) for files in owned.values()), caps.code - used)
    for package, files in owned.items():
        if _copy_source(output, package.name, package.licence, files, share):
            licences[package.name] = package.licence
    output.write("LICENCES.json", json.dumps(licences, indent=1, sort_keys=True).encode() + b"\n")


def _stdlib() -> dict[str, Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    return {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py"))}


def _wanted(files: dict[str, Path], caps: Caps) -> dict[str, tuple[Path, int]]:
    """Select files of moderate size that are neither tests nor marked as generated by their name."""
    wanted = {}
    for name, path in files.items():
        if SKIPPED_FOLDERS & set(name.split("/")[:-1]) or _GENERATED_NAME.search(name):
            continue
        try:
            size = path.stat().st_size
        except OSError:
            continue
        if MIN_BYTES <= size <= caps.file:
            wanted[name] = (path, size)
    return wanted


def _copy_source(output: Output, owner: str, licence: str, files: dict[str, tuple[Path, int]], bound: int) -> int:
    """Copy the files of one owner up to a size limit in bytes, and return the number of copied files."""
    copied = 0
    for name in take({name: size for name, (_, size) in files.items()}, bound):
        try:
            data = files[name][0].read_bytes()
        except OSError:
            continue
        if not _GENERATED.search(data[:2000]):
            output.write(f"{owner}/{name}", data)
            output.count(licence, len(data))
            copied += 1
    return copied


MIN_DESCRIPTION = 200
PROSE_FILES = 4


def write_prose(output: Output, caps: Caps, packages: Iterable[Package]) -> None:
    """Write one JSON line per package: id, name, version, license, mime, text."""
    described = {package.name: package for package in packages if len(package.description) >= MIN_DESCRIPTION}
    sizes = {name: len(package.description.encode("utf-8", "replace")) for name, package in described.items()}
    for index, names in shares(take(sizes, caps.prose), PROSE_FILES):
        lines = []
        for name in names:
            package = described[name]
            row = {
                "id": name,
                "licence": package.licence,
                "mime": package.mime,
                "name": name,
                "text": package.description,
                "version": package.version,
            }
            lines.append(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            output.count(package.licence, sizes[name])
        output.write(f"descriptions-{index:05d}.jsonl.gz", gzipped(b"".join(lines)))

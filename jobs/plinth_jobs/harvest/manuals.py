"""The machine's manual pages in all its languages, as text files with `LICENCES.json`.

Each page's licence is what the copyright file of its Debian package says, where dpkg has the package and the
file is machine-readable; elsewhere it is unknown. A machine without manual pages, or without groff to render
them, gets the language reference of Python instead, so that the recipe still has text of that kind.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from plinth import processes
from plinth_jobs.harvest.output import Caps, Output, level, take
from plinth_jobs.harvest.packages import UNKNOWN, from_debian
from plinth_jobs.harvest.web import LICENCE as PYTHON_LICENCE

ROOT = Path("/usr/share/man")
DPKG = Path("/var/lib/dpkg/info")
DOC = Path("/usr/share/doc")
MIN_CHARACTERS = 400
MAX_SOURCE_BYTES = 2_000_000
#: Bytes of text per byte of gzipped source, to choose by size before anything is read.
RATIO = 2.6
ENGLISH = "en"
#: Translations first, which the other buckets lack.
TRANSLATED_SHARE = 0.5
#: UTF-8 out, no colors or overstrikes; left-aligned lines without hyphens.
GROFF = ("groff", "-mandoc", "-Tutf8", "-P-cbou", "-rLL=100n", "-rHY=0", "-dAD=l")
RENDER_TIMEOUT_S = 120
_SECTION = re.compile(r"man\d\w*$")


def write_manuals(output: Output, caps: Caps, root: Path = ROOT) -> None:
    """Choose, convert and write the pages."""
    by_language: dict[str, dict[str, int]] = {}
    for name, size in pages(root):
        by_language.setdefault(language(name), {})[name] = int(size * RATIO)
    if not by_language or not shutil.which(GROFF[0]):
        lacking = "groff" if by_language else "pages"
        output.note = f"manuals: no {lacking} on this machine; Python's language reference stands in"
        _write_reference(output, caps)
        return
    owners = owning_packages()
    licences: dict[str, str] = {}
    english = by_language.pop(ENGLISH, {})
    chosen = _share(by_language.values(), int(caps.manuals * TRANSLATED_SHARE) if english else caps.manuals)
    used = sum(sizes.get(name, 0) for sizes in by_language.values() for name in chosen)
    by_package: dict[str, dict[str, int]] = {}
    for name, size in english.items():
        by_package.setdefault(owners.get(str(root / name), ""), {})[name] = size
    chosen += _share(by_package.values(), caps.manuals - used)
    with ThreadPoolExecutor(os.cpu_count()) as renderers:
        texts = renderers.map(page_text, (root / name for name in sorted(chosen)))
        rendered = dict(zip(sorted(chosen), texts, strict=True))
    for name, text in rendered.items():
        if MIN_CHARACTERS <= len(text) <= caps.file:
            target = f"{language(name)}/{Path(name).name.removesuffix('.gz')}.txt"
            licences[target] = _licence(owners.get(str(root / name), ""))
            _write(output, target, text, licences[target])
    output.write("LICENCES.json", json.dumps(licences, indent=0, sort_keys=True, ensure_ascii=False).encode() + b"\n")


def pages(root: Path) -> Iterator[tuple[str, int]]:
    """Relative name and size of every page under a manual root; links to other pages are passed over."""
    for folder, below, names in os.walk(root):
        below.sort()
        if not _SECTION.match(os.path.basename(folder)):
            continue
        for name in sorted(names):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                continue
            size = os.path.getsize(path)
            if size <= MAX_SOURCE_BYTES:
                yield os.path.relpath(path, root), size


def language(name: str) -> str:
    """The language of a page by its relative name; the untranslated ones are English."""
    first = name.split("/", 1)[0]
    return ENGLISH if _SECTION.match(first) else first


def page_text(path: Path) -> str:
    """The text of a page; empty when it cannot be read or rendered, or is in a legacy encoding."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        data.decode()
        # groff fails over warnings too; a page without text is dropped by its length
        command = [*GROFF, *_preprocessors(data)]
        done = processes.run(
            command, own={"LC_ALL": "C.UTF-8"}, input=data, capture_output=True, timeout=RENDER_TIMEOUT_S
        )
    except (OSError, EOFError, ValueError, subprocess.TimeoutExpired):
        return ""
    return plain(done.stdout.decode("utf-8", "replace"))


def _preprocessors(data: bytes) -> list[str]:
    """Options for pages with tables and with more than ASCII; each starts another process."""
    return [*(["-t"] if b".TS" in data else []), *([] if data.isascii() else ["-Kutf8"])]


def plain(rendered: str) -> str:
    """Rendered text without the blanks that align columns and margins, and at most one empty line in a row."""
    lines = (re.sub(r"(?<=\S) {2,}", " ", line).rstrip() for line in rendered.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def owning_packages(info: Path = DPKG) -> dict[str, str]:
    """Manual page path to Debian package, from dpkg's file lists."""
    owners: dict[str, str] = {}
    for path in sorted(info.glob("*.list")):
        package = path.name.removesuffix(".list").split(":")[0]
        for line in path.read_text("utf-8", "replace").split("\n"):
            if line.startswith("/usr/share/man/"):
                owners[line] = package
    return owners


def copyright_licence(text: str) -> str:
    """The licence of most of a package's files, from a machine-readable copyright file (`Files: *`)."""
    if "copyright-format" not in text[:500] and "/dep5" not in text[:500]:
        return UNKNOWN
    for paragraph in re.split(r"\n\s*\n", text):
        if re.search(r"(?m)^Files:\s*(\./)?\*\s*$", paragraph):
            found = re.search(r"(?m)^Licen[sc]e:[ \t]*(\S.*)$", paragraph)
            return from_debian(found[1]) if found else UNKNOWN
    return UNKNOWN


def _share(groups: Collection[Mapping[str, int]], bound: int) -> list[str]:
    """Names out of every group, none taking more than an even share of the bound."""
    share = level((sum(sizes.values()) for sizes in groups), bound)
    return [name for sizes in groups for name in take(sizes, share)]


@cache
def _licence(package: str) -> str:
    try:
        return copyright_licence((DOC / package / "copyright").read_text("utf-8", "replace")) if package else UNKNOWN
    except OSError:
        return UNKNOWN


def _write(output: Output, name: str, text: str, licence: str) -> None:
    data = text.encode("utf-8", "replace")
    output.write(name, data)
    output.count(licence, len(data))


def _write_reference(output: Output, caps: Caps) -> None:
    from pydoc_data.topics import topics

    texts = {name: str(text) for name, text in topics.items() if len(str(text)) >= MIN_CHARACTERS}
    for name in take({name: len(text.encode()) for name, text in texts.items()}, caps.manuals):
        _write(output, f"{ENGLISH}/{name}.txt", texts[name], PYTHON_LICENCE)
    output.write("LICENCES.json", json.dumps({"": PYTHON_LICENCE}).encode() + b"\n")

"""`harvest`: write all buckets and a set of tasks into one folder, and keep them until a new harvest is requested. This
module itself writes two buckets: the standard library's documentation, and the machine's manual pages.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from plinth import fingerprint, processes
from plinth.compute.progress import Meter, Progress, Silent
from plinth.storage.atomic import named_failures, write_bytes
from plinth_jobs.harvest import pages
from plinth_jobs.harvest.output import Caps, HarvestSummary, Output, draw, gzipped, level, shares, take
from plinth_jobs.harvest.packages import UNKNOWN, from_debian, packages, write_code, write_prose

# The standard library's documentation as HTML in gzipped WARC files, with fixed dates and record ids.

PYTHON_LICENCE = "PSF-2.0"
#: A host name that can never be registered: these pages were rendered here, not fetched.
HOST = f"https://pydoc.invalid/{sys.version_info.major}.{sys.version_info.minor}"
DATE = "2026-01-01T00:00:00Z"
WEB_FILES = 4
MAX_RESTARTS = 8
#: Modules whose import opens windows or browsers, prints, starts tests or changes the interpreter.
SKIPPED_MODULES = {
    *("antigravity", "this", "idlelib", "turtledemo", "turtle", "test", "tests", "lib2to3", "__main__", "__phello__"),
    *("ensurepip", "venv", "sitecustomize", "usercustomize", "site", "_sitebuiltins", "pydoc_data", "tkinter"),
}


def write_web(output: Output, caps: Caps, *, topics: bool = True) -> None:
    """Render and write the documentation pages of modules, and the pages of keywords and topics if `topics` is True."""
    names = [f"module:{name}" for name in module_names()]
    if topics:
        names += [f"topic:{name}" for name in topic_names()]
    rendered = render(sorted(names, key=draw), caps.web)
    sizes = {name: len(html.encode("utf-8", "replace")) for name, html in rendered.items()}
    for index, group in shares(take(sizes, caps.web), WEB_FILES):
        records = [gzipped(warc_record(_address(name), rendered[name].encode("utf-8", "replace"))) for name in group]
        output.write(f"stdlib-{index:05d}.warc.gz", b"".join(records))
        for name in group:
            output.count(PYTHON_LICENCE, sizes[name])


def module_names() -> list[str]:
    """Return the names of the standard library's public modules, including submodules, without importing them."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = {name for name in sys.stdlib_module_names if not name.startswith("_")} | {"__future__"}
    for package in sorted(found):
        folder = root / package
        for path in folder.rglob("*.py") if folder.is_dir() else ():
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            if not any(part.startswith("_") for part in parts[1:]):
                found.add(".".join(parts))
    return sorted(name for name in found if not SKIPPED_MODULES & set(name.split(".")))


def topic_names() -> list[str]:
    """Return the keywords and topics that pydoc can explain."""
    from pydoc_data.topics import topics

    return sorted(topics)


def render(names: list[str], bound: int = sys.maxsize) -> dict[str, str]:
    """Render HTML pages by name until a limit in characters is reached. If a module hangs or kills the rendering
    process, it is skipped, and a new process continues with the next name."""
    rendered: dict[str, str] = {}
    waiting = names
    for _ in range(MAX_RESTARTS):
        left = bound - sum(map(len, rendered.values()))
        begun, found = _render_some(waiting, left)
        rendered |= found
        if begun in (None, waiting[-1]) or sum(map(len, found.values())) >= left:
            break
        waiting = waiting[waiting.index(begun) + 1 :]
    return rendered


def warc_record(address: str, html: bytes) -> bytes:
    """Build a WARC 1.1 response record with the HTML of a page."""
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"
    body += b"Content-Length: %d\r\n\r\n" % len(html) + html
    name = uuid.uuid5(uuid.NAMESPACE_URL, address)
    head = (
        "WARC/1.1\r\nWARC-Type: response\r\n"
        f"WARC-Record-ID: <urn:uuid:{name}>\r\nWARC-Date: {DATE}\r\nWARC-Target-URI: {address}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body + b"\r\n\r\n"


def _render_some(names: list[str], bound: int) -> tuple[str | None, dict[str, str]]:
    """Render pages in one process until it ends. Return the last name for which rendering started, and the rendered
    pages."""
    # The user's environment is not passed on, because pages show defaults that are computed from it. The fixed hash
    # seed gives sets a fixed order.
    environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile() as out:
        child = processes.start(
            [sys.executable, "-P", "-s", "-S", "-B", pages.__file__, str(bound)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=empty,
            env=environment,
        )
        child.communicate("\n".join(names).encode())
        out.seek(0)
        return _read(out.read().decode())


def _read(lines: str) -> tuple[str | None, dict[str, str]]:
    begun, found = None, {}
    for line in lines.split("\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the process did not finish this line
        begun = row.get("begin", begun)
        if "page" in row:
            found[row["page"]] = row["html"]
    return begun, found


def _address(name: str) -> str:
    kind, _, rest = name.partition(":")
    return f"{HOST}/{'topics' if kind == 'topic' else 'library'}/{rest}.html"


# The machine's manual pages in all its languages, as text files with `LICENCES.json`.
#
# Each page's license comes from the copyright file of its Debian package if dpkg has the package and the file is
# machine-readable; otherwise it is unknown. A machine without manual pages, or without groff to render
# them, gets the language reference of Python instead, so that the recipe still has text of that kind.

MANUALS = Path("/usr/share/man")
DPKG = Path("/var/lib/dpkg/info")
DOC = Path("/usr/share/doc")
MIN_CHARACTERS = 400
MAX_SOURCE_BYTES = 2_000_000
#: Bytes of text per byte of gzipped source. Pages are chosen by this estimated size before they are read.
RATIO = 2.6
ENGLISH = "en"
#: Translations come first, because the other buckets have none.
TRANSLATED_SHARE = 0.5
#: Write UTF-8 without colors or overstrikes, and left-aligned lines without hyphenation.
GROFF = ("groff", "-mandoc", "-Tutf8", "-P-cbou", "-rLL=100n", "-rHY=0", "-dAD=l")
RENDER_TIMEOUT_S = 120
_SECTION = re.compile(r"man\d\w*$")


def write_manuals(output: Output, caps: Caps, root: Path = MANUALS) -> None:
    """Choose manual pages, convert them to text and write them with their licenses."""
    by_language: dict[str, dict[str, int]] = {}
    for name, size in manual_pages(root):
        by_language.setdefault(language(name), {})[name] = int(size * RATIO)
    if not by_language or not shutil.which(GROFF[0]):
        lacking = "groff" if by_language else "pages"
        output.note = f"manuals: no {lacking} on this machine; using Python's language reference instead"
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


def manual_pages(root: Path) -> Iterator[tuple[str, int]]:
    """Yield the relative name and size of every page under a manual root, except links to other pages."""
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
    """Return the language of a manual page from its relative name. Untranslated pages are English."""
    first = name.split("/", 1)[0]
    return ENGLISH if _SECTION.match(first) else first


def page_text(path: Path) -> str:
    """Return the text of a manual page. The result is empty if the page cannot be read or rendered, or has a legacy
    encoding."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        data.decode()
        # groff also fails on warnings, so its status is not checked. A page without text is dropped by its length.
        command = [*GROFF, *_preprocessors(data)]
        done = processes.run(
            command, own={"LC_ALL": "C.UTF-8"}, input=data, capture_output=True, timeout=RENDER_TIMEOUT_S
        )
    except (OSError, EOFError, ValueError, subprocess.TimeoutExpired):
        return ""
    return plain(done.stdout.decode("utf-8", "replace"))


def _preprocessors(data: bytes) -> list[str]:
    """Return the groff options for tables and non-ASCII text in a page. Each option starts another process."""
    return [*(["-t"] if b".TS" in data else []), *([] if data.isascii() else ["-Kutf8"])]


def plain(rendered: str) -> str:
    """Remove repeated empty lines and alignment blanks from rendered text."""
    lines = (re.sub(r"(?<=\S) {2,}", " ", line).rstrip() for line in rendered.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def owning_packages(info: Path = DPKG) -> dict[str, str]:
    """Return the Debian package of each manual page by path, from dpkg's file lists."""
    owners: dict[str, str] = {}
    for path in sorted(info.glob("*.list")):
        package = path.name.removesuffix(".list").split(":")[0]
        for line in path.read_text("utf-8", "replace").split("\n"):
            if line.startswith("/usr/share/man/"):
                owners[line] = package
    return owners


def copyright_licence(text: str) -> str:
    """Return the license that a machine-readable copyright file states for most files of its package (`Files: *`)."""
    if "copyright-format" not in text[:500] and "/dep5" not in text[:500]:
        return UNKNOWN
    for paragraph in re.split(r"\n\s*\n", text):
        if re.search(r"(?m)^Files:\s*(\./)?\*\s*$", paragraph):
            found = re.search(r"(?m)^Licen[sc]e:[ \t]*(\S.*)$", paragraph)
            return from_debian(found[1]) if found else UNKNOWN
    return UNKNOWN


def _share(groups: Collection[Mapping[str, int]], bound: int) -> list[str]:
    """Choose names from every group, with the size limit divided evenly among the groups."""
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


# `harvest`: write all buckets and a set of tasks into one folder, and keep them until a new harvest is requested.

#: Two small tasks in the format of lm-evaluation-harness, written for the text that the demo trains on.
TASKS = Path(__file__).parent / "task_files"
RECORD = ".harvest.json"
#: Buckets in the order in which they are written. `web` needs to know if `manuals` already has the language reference.
BUCKETS = ("manuals", "web", "code", "prose", "tasks")
LABELS = {"tasks": "packaged evaluation tasks"}


def harvest(
    target: Path, caps: Caps | None = None, *, again: bool = False, progress: Progress | None = None
) -> HarvestSummary:
    """Write `web/`, `code/`, `prose/`, `manuals/` and `tasks/` under `target`, unless an earlier harvest is there.

    An earlier harvest is kept while all its files exist, even if packages are installed later, so that a new package
    does not retrain the demo. The same state of the machine gives the same bytes. Other files in the folder are not
    touched.

    Args:
        again: True to replace an earlier harvest.

    Raises:
        WorkspaceError, DiskFullError: `target` cannot be written.
    """
    caps = caps or Caps()
    last = _recorded(target)
    if last and not again and _present(target, last["files"]):
        return HarvestSummary.model_validate(last["summary"]).model_copy(update={"fresh": False})
    installed = packages()
    with (progress or Silent()).meter("collecting text from this machine", len(BUCKETS)) as meter:
        outputs = {name: Output(target / name, _told(meter, name)) for name in BUCKETS}
        writers: dict[str, Callable[[Output], None]] = {
            "manuals": lambda output: write_manuals(output, caps),
            "web": lambda output: write_web(output, caps, topics=not outputs["manuals"].note),
            "code": lambda output: write_code(output, caps, installed),
            "prose": lambda output: write_prose(output, caps, installed),
            "tasks": write_tasks,
        }
        for name in BUCKETS:
            meter.tell(LABELS.get(name, name))
            writers[name](outputs[name])
            meter.advance()
    files = {f"{bucket}/{name}": size for bucket, output in outputs.items() for name, size in output.files.items()}
    for name in set(last.get("files", {})) - set(files):
        with named_failures(target / name):
            (target / name).unlink(missing_ok=True)
    buckets = {name: output.summary() for name, output in outputs.items() if output.counts or output.note}
    summary = HarvestSummary(buckets=buckets)
    record = {"files": files, "summary": summary.model_dump(mode="json")}
    write_bytes(target / RECORD, fingerprint.canonical(record))
    return summary


def write_tasks(output: Output) -> None:
    """Write the demo's task files and their data."""
    for path in sorted(TASKS.rglob("*")):
        if path.is_file():
            output.write(path.relative_to(TASKS).as_posix(), path.read_bytes())


def _told(meter: Meter, bucket: str) -> Callable[[int], None]:
    return lambda documents: meter.advance(0, f"{bucket}: {documents} documents")


def _recorded(target: Path) -> dict[str, Any]:
    try:
        record = json.loads((target / RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and record.keys() >= {"files", "summary"} else {}


def _present(target: Path, files: dict[str, int]) -> bool:
    try:
        return all(os.path.getsize(target / name) == size for name, size in files.items())
    except OSError:
        return False

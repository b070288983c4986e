"""The standard library's documentation as HTML in gzipped WARC files, with fixed dates and record ids."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
import uuid
from pathlib import Path

from plinth import processes
from plinth_jobs.harvest import pages
from plinth_jobs.harvest.output import Caps, Output, draw, gzipped, shares, take

LICENCE = "PSF-2.0"
#: A host name that can never be registered: these pages were rendered here, not fetched.
HOST = f"https://pydoc.invalid/{sys.version_info.major}.{sys.version_info.minor}"
DATE = "2026-01-01T00:00:00Z"
FILES = 4
MAX_RESTARTS = 8
#: Importing these opens windows or browsers, prints, starts tests or changes the interpreter.
SKIPPED = {
    *("antigravity", "this", "idlelib", "turtledemo", "turtle", "test", "tests", "lib2to3", "__main__", "__phello__"),
    *("ensurepip", "venv", "sitecustomize", "usercustomize", "site", "_sitebuiltins", "pydoc_data", "tkinter"),
}


def write_web(output: Output, caps: Caps, *, topics: bool = True) -> None:
    """Render and write the pages of modules, and of keywords and topics unless they serve as manuals."""
    names = [f"module:{name}" for name in module_names()]
    if topics:
        names += [f"topic:{name}" for name in topic_names()]
    rendered = render(sorted(names, key=draw), caps.web)
    sizes = {name: len(html.encode("utf-8", "replace")) for name, html in rendered.items()}
    for index, group in shares(take(sizes, caps.web), FILES):
        records = [gzipped(warc_record(_address(name), rendered[name].encode("utf-8", "replace"))) for name in group]
        output.write(f"stdlib-{index:05d}.warc.gz", b"".join(records))
        for name in group:
            output.count(LICENCE, sizes[name])


def module_names() -> list[str]:
    """Public modules of the standard library, packages' submodules included, found without importing any."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = {name for name in sys.stdlib_module_names if not name.startswith("_")} | {"__future__"}
    for package in sorted(found):
        folder = root / package
        for path in folder.rglob("*.py") if folder.is_dir() else ():
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            if not any(part.startswith("_") for part in parts[1:]):
                found.add(".".join(parts))
    return sorted(name for name in found if not SKIPPED & set(name.split(".")))


def topic_names() -> list[str]:
    """Keywords and topics that pydoc has text for."""
    from pydoc_data.topics import topics

    return sorted(topics)


def render(names: list[str], bound: int = sys.maxsize) -> dict[str, str]:
    """HTML by name, of the first pages that reach a bound in characters. A module that hangs or kills the process is
    left out; the rest go on in a new one."""
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
    """A WARC 1.1 response record."""
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
    """The last name begun, and what was rendered, until the end or the death of the process."""
    # Without the user's environment: pages show defaults that are computed from it. Fixed hashing orders sets.
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
            continue  # the end of a line that the process did not finish
        begun = row.get("begin", begun)
        if "page" in row:
            found[row["page"]] = row["html"]
    return begun, found


def _address(name: str) -> str:
    kind, _, rest = name.partition(":")
    return f"{HOST}/{'topics' if kind == 'topic' else 'library'}/{rest}.html"

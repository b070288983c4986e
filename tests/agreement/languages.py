"""Prose of this machine by language, not written for tests: questions of packages (debconf), translated manuals, and
messages of programs, as documents of some 2,500 bytes."""

from __future__ import annotations

import gettext
import gzip
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

SHARE = Path("/usr/share")
TEMPLATES = Path("/var/lib/dpkg/info")
BYTES = 2500
_PIECE = 60  # minimum number of characters of a message or paragraph


def documents(language: str, most: int = 400) -> list[str]:
    """Return documents in a language, given by its lid.176 label; no piece of text is used twice."""
    pieces = dict.fromkeys([*_templates(language), *_manuals(language), *_messages(language)])
    made: list[str] = []
    held: list[str] = []
    for piece in pieces:
        held.append(piece)
        if len("\n".join(held).encode()) >= BYTES:
            made.append("\n".join(held))
            held = []
        if len(made) >= most:
            break
    return made


def _folders(base: Path, language: str) -> Iterator[Path]:
    yield from sorted(path for path in base.glob(f"{language}*") if re.fullmatch(rf"{language}(_[A-Z]+)?", path.name))


def _templates(language: str) -> Iterator[str]:
    """Long descriptions: what follows the first line of a field, one paragraph a line."""
    field = re.compile(rf"^Description-{language}(_[A-Z]+)?\.UTF-8:.*\n((?: .*\n?)*)", re.MULTILINE)
    for path in sorted(TEMPLATES.glob("*.templates")):
        for found in field.finditer(path.read_text("utf-8", "replace")):
            for paragraph in found[2].split("\n .\n"):
                text = " ".join(line.strip() for line in paragraph.splitlines())
                if len(text) >= _PIECE and "${" not in text:
                    yield text


def _manuals(language: str) -> Iterator[str]:
    """Paragraphs of manual pages as `man` shows them on very wide lines."""
    for folder in _folders(SHARE / "man", language):
        for path in sorted(folder.glob("man*/*")):
            if path.is_symlink():
                continue
            source = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            command = ["groff", "-k", "-t", "-mandoc", "-Tutf8", "-P-cbou", "-rLL=4000n"]
            shown = subprocess.run(command, input=source[:200_000], capture_output=True, check=False).stdout
            for line in shown.decode("utf-8", "replace").splitlines():
                text = " ".join(line.split())
                if len(text) >= _PIECE:
                    yield text


def _messages(language: str) -> Iterator[str]:
    """Translations without placeholders."""
    for folder in _folders(SHARE / "locale", language):
        for path in sorted((folder / "LC_MESSAGES").glob("*.mo")):
            try:
                with path.open("rb") as file:
                    known = getattr(gettext.GNUTranslations(file), "_catalog", {})
            except (OSError, UnicodeDecodeError, ValueError):
                continue
            for key, text in known.items():
                if isinstance(text, str) and len(text) >= _PIECE and text != key and not re.search(r"[%<{\\$]", text):
                    yield " ".join(text.split())

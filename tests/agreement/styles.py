"""Real documents of this machine by style, the same ones each time; none was written for a test."""

from __future__ import annotations

import gettext
import gzip
import hashlib
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

SHARE = Path("/usr/share")
_LETTERS = 400  # shorter files say little


def documents(each: int, size: int) -> dict[str, list[str]]:
    """Texts by style, each different.

    Args:
        each: maximum number of texts per style.
        size: maximum number of characters per text.
    """
    return {style: _texts(paths(), read, each, size) for style, (paths, read) in _STYLES.items()}


def _texts(paths: Iterator[Path], read: Callable[[Path], str], each: int, size: int) -> list[str]:
    """In an order that does not depend on folders."""
    found: dict[str, None] = {}
    for path in sorted(set(paths), key=lambda path: hashlib.sha256(str(path).encode()).digest()):
        if len(found) >= each:
            break
        text = read(path)[:size]
        if len(text) >= _LETTERS:
            found[text] = None
    return list(found)


def _plain(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    return data[:400_000].decode("utf-8", "replace")


def _manual(path: Path) -> str:
    """As `man` shows it."""
    source = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    command = ["groff", "-k", "-t", "-mandoc", "-Tutf8", "-P-cbou", "-rLL=100n"]
    made = subprocess.run(command, input=source[:200_000], capture_output=True, check=False)
    return made.stdout.decode("utf-8", "replace")


def _page(path: Path) -> str:
    import trafilatura

    try:
        return trafilatura.extract(path.read_bytes()[:400_000]) or ""
    except (ValueError, TypeError):
        return ""


def _messages(path: Path) -> str:
    """The translations of a catalog, one after the other."""
    try:
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)
    except (OSError, UnicodeDecodeError, ValueError):
        return ""
    known = getattr(catalogue, "_catalog", {})
    return "\n".join(text for key, text in known.items() if key and isinstance(text, str) and text)


def _foreign(path: Path) -> str:
    return _messages(path) if path.suffix == ".mo" else _manual(path)


def _below(*patterns: str, roots: tuple[str, ...] = ()) -> Iterator[Path]:
    for root in roots or (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(SHARE)):
        for pattern in patterns:
            yield from (path for path in Path(root).rglob(pattern) if path.is_file() and not path.is_symlink())


_DOC = (str(SHARE / "doc"),)


_STYLES: dict[str, tuple[Callable[[], Iterator[Path]], Callable[[Path], str]]] = {
    "documentation": (lambda: _below("*.md", "*.rst", "*.txt", "README*", "NEWS*", "FAQ*", "AUTHORS*"), _plain),
    "manual pages": (lambda: (path for path in (SHARE / "man").glob("man[1-8]/*") if not path.is_symlink()), _manual),
    "package descriptions": (lambda: _below("METADATA"), _plain),
    "web pages": (lambda: _below("*.html", "*.htm"), _page),
    "source code": (lambda: _below("*.py", "*.c", "*.h", "*.js", "*.pl", "*.sh"), _plain),
    "lists": (lambda: _below("changelog*", "CHANGES*", "*.csv", "RECORD", "SOURCES.txt"), _plain),
    "licences": (lambda: _below("copyright", "LICENSE*", "COPYING*"), _plain),
    "other languages": (
        lambda: (
            path
            for pattern in ("man/??/man*/*", "man/??_??/man*/*", "locale/*/LC_MESSAGES/*.mo")
            for path in SHARE.glob(pattern)
            if path.is_file() and not path.is_symlink()
        ),
        _foreign,
    ),
}

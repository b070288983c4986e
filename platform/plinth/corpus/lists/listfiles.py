"""Files of lists: one entry a line, `#` starts a comment line, UTF-8, plain or gzip.

A list comes from outside and decides which text is dropped, so nothing in it is guessed: bytes that are not UTF-8,
a line of the wrong form or an entry that would match everything is a named failure with file and line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from plinth.errors import SourceError

E = TypeVar("E")

#: One entry may not be longer: a list that lost its line ends is not a list.
MAX_CHARACTERS = 4096
#: Bound on the size of a list, uncompressed.
MAX_BYTES = 2**31


def entries(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """Lines that hold something, stripped, with their numbers from 1.

    Raises:
        SourceError: not UTF-8, a damaged gzip file, or a line too long.
    """
    read = 0
    try:
        with gzip.open(path, "rb") if name.endswith(".gz") else path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                read += len(raw)
                if read > MAX_BYTES:
                    raise refused(name, number, f"more than {MAX_BYTES} bytes", "a list that fits into memory")
                line = raw.decode("utf-8").strip()
                if len(line) > MAX_CHARACTERS:
                    raise refused(name, number, f"{len(line)} characters", f"at most {MAX_CHARACTERS} on a line")
                if line and not line.startswith("#"):
                    yield number, line
    except UnicodeDecodeError as error:
        raise refused(name, 0, f"bytes that are not UTF-8 ({error.reason})", "text in UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise refused(name, 0, f"{type(error).__name__}: {error}", "a readable file") from error


def parsed(name: str, path: Path, parse: Callable[[str], E]) -> Iterator[E]:
    """Every entry through `parse`, whose `ValueError` becomes a failure with file and line."""
    for number, line in entries(name, path):
        try:
            yield parse(line)
        except ValueError as error:
            raise refused(name, number, repr(line[:80]), str(error)) from error


def by_role(files: Mapping[str, Path], roles: tuple[str, ...]) -> dict[str, list[tuple[str, Path]]]:
    """Files by what they list: a file belongs to the role that its name starts with (`domains-ads.txt.gz`).

    Raises:
        SourceError: a file that no role claims, since a list that is not read has no effect.
    """
    found: dict[str, list[tuple[str, Path]]] = {role: [] for role in roles}
    for name, path in sorted(files.items()):
        stem = name.rsplit("/", 1)[-1]
        role = next((role for role in sorted(roles, key=len, reverse=True) if stem.startswith(role)), None)
        if role is None:
            raise refused(name, 0, stem, f"a name that starts with {', '.join(roles)}")
        found[role].append((name, path))
    return found


def refused(name: str, line: int, found: str, expected: str) -> SourceError:
    """The failure of one list."""
    where = f"{name}, line {line}" if line else name
    return SourceError(
        f"list {where} cannot be used", found=found, expected=expected, remedy="correct the file; nothing was annotated"
    )

"""Files of lists: one entry a line, `#` starts a comment line, UTF-8, plain or gzip.

A list comes from outside and decides which text is dropped, so nothing in it is guessed: bytes that are not UTF-8 are
a named failure with file and line. Lists that the field publishes have some lines of a wrong form among millions, so
these are counted, and fail where they are more than `MAX_BAD_SHARE` of a file.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from plinth.errors import SourceError
from plinth.records import Frozen

E = TypeVar("E")

#: One entry may not be longer: a list that lost its line ends is not a list.
MAX_CHARACTERS = 4096
#: Lines of a wrong form that a file may have. UT1 as datatrove ships it has 691 among 4,558,940 domains (0.015%); a
#: list of some hundred lines, written by hand, may have none.
MAX_BAD_SHARE = 0.001
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


class Counts(Frozen):
    """Entries of a list, and its lines that were left out for their form, with the first of them."""

    entries: int = 0
    bad: int = 0
    first_bad: str = ""


def parsed(name: str, path: Path, parse: Callable[[str], E], counted: dict[str, Counts] | None = None) -> Iterator[E]:
    """Every entry through `parse`; lines that it refuses by `ValueError` are left out.

    Args:
        counted: receives the counts of the file by its name, when all is read.

    Raises:
        SourceError: more than `MAX_BAD_SHARE` of the lines are refused; file and line of the first.
    """
    good, bad = 0, list[tuple[int, str, str]]()
    for number, line in entries(name, path):
        try:
            yield parse(line)
            good += 1
        except ValueError as error:
            bad.append((number, line[:80], str(error)))
    if len(bad) > MAX_BAD_SHARE * (good + len(bad)):
        number, line, expected = bad[0]
        others = f", and {len(bad) - 1} more of {good + len(bad)} lines" if len(bad) > 1 else ""
        raise refused(name, number, f"{line!r}{others}", expected)
    if counted is not None:
        first = f"line {bad[0][0]}: {bad[0][1]!r}" if bad else ""
        counted[name] = Counts(entries=good, bad=len(bad), first_bad=first)


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

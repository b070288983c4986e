"""The licence of a file whose source says `per-document`.

A folder of files may hold `LICENCES.json` at its root: a JSON object from relative path (a folder, a file, or
`""` for everything else) to an SPDX expression. The longest path that leads to a file decides. What nothing
names is `unknown`, and the licence gate stops it. JSON lines and WARC have no such file: there the record
itself carries the licence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from plinth.errors import SourceError
from plinth.storage.files import SourceFile, opened

PER_DOCUMENT = "per-document"
UNKNOWN = "unknown"
LICENCES_FILE = "LICENCES.json"
MAX_LICENCES_BYTES = 64 * 2**20


class Licences:
    """Relative path to licence, by the longest path that leads to a file."""

    def __init__(self, by_path: Mapping[str, str]) -> None:
        self._by_path = {path.strip("/"): licence for path, licence in by_path.items()}

    def of(self, name: str) -> str:
        """The licence of a file by its name in the source."""
        path = name
        while path:
            if path in self._by_path:
                return self._by_path[path]
            path = path.rpartition("/")[0]
        return self._by_path.get("", UNKNOWN)


def read_licences(files: Sequence[SourceFile]) -> Licences:
    """The licences that a source's files declare for one another; empty when there is no `LICENCES.json`.

    Raises:
        SourceError: when the file is there and is not what it should be.
    """
    for file in files:
        if file.name == LICENCES_FILE and not file.refused:
            return Licences(_parse(file))
    return Licences({})


def _parse(file: SourceFile) -> dict[str, str]:
    with opened(file) as stream:
        data = stream.read(MAX_LICENCES_BYTES)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        found = error
    if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
        return found
    raise SourceError(
        f"{file.uri} does not say which file carries which licence",
        found=found if isinstance(found, Exception) else type(found).__name__,
        expected='a JSON object from relative path to SPDX expression, such as {"requests": "Apache-2.0"}',
        remedy="correct the file, or give the source one licence in the recipe",
    )

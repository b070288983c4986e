"""The mark of labelled sets that `plinth corpus slices --write` generates, and its refusal.

Generated good and bad text share one generator: a model that learns from one half and is measured on the other
looks perfect and takes innocent text of other kinds for bad. Such sets are for tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from plinth.corpus.models.examples import read_labelled
from plinth.errors import SourceError
from plinth.records import Manifest
from plinth.storage.store import Store

#: A field that every generated row has, whatever became of the file.
MARK = "generated"


def line(text: str, label: str, slice_name: str) -> str:
    """One row of a generated set, marked."""
    return json.dumps({"text": text, "label": label, "slice": slice_name, MARK: True}, ensure_ascii=False) + "\n"


def require_real(store: Store, lists: Mapping[str, Manifest], user: str) -> None:
    """Refuse labelled sets that hold generated rows.

    Args:
        lists: labelled sets by asset key.
        user: who wants to read them, as `models/toxicity`.

    Raises:
        SourceError: a set holds one, or cannot be read; names it.
    """
    for key, made in lists.items():
        for part in made.parts:
            where = f"{key}, {part.name}"
            marked = marked_rows(store.open_path(part.blob), where)
            if marked:
                raise refused(where, marked, user)


def marked_rows(path: Path, where: str) -> int:
    """How many rows of a labelled set are marked."""
    return sum(bool(row.get(MARK)) for row in read_labelled(path.read_bytes(), where))


def refused(where: str, marked: int, user: str) -> SourceError:
    """The error for a generated set in a recipe that is no test."""
    return SourceError(
        f"{user} may not read {where}",
        found=f"{marked:,} generated examples (`plinth corpus slices --write`)",
        expected="text that people labelled: good and bad text of one generator proves nothing about other text",
        remedy="name a labelled set of yours or a ready model (docs/learned-gates.md); `test: true` marks a test "
        "recipe, which may read it",
    )

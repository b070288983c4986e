"""Which of some strings stand word for word in training text, and in how many documents.

All training text is read, by an automaton whose time is linear in it (RE2); no text is indexed for this, because a
personal number is shorter than the spans that the index of the shards can find.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, read_table, write_table
from plinth.storage.store import Store

VERSION: Final = "1"
#: Strings of one automaton: with many more it would leave the memory that RE2 allows itself.
TOGETHER: Final = 100
TABLE: Final = "verbatim.parquet"


@dataclass(frozen=True)
class _Task:
    part: Part
    strings: tuple[str, ...]


def documents_with(ctx: Context, curated: Mapping[str, Manifest], strings: Sequence[str]) -> dict[str, int]:
    """By string, the training documents of all buckets in which it stands, not inside a longer word or number."""
    asked = tuple(sorted(set(strings)))
    counts = dict.fromkeys(asked, 0)
    parts = [part for _, made in sorted(curated.items()) for part in made.named("part-")]
    if not asked:
        return counts
    wanted = fingerprint.digest(list(asked))
    step = Step(name="pii/verbatim", version=VERSION)
    items = [Item((part.blob.sha256, wanted), _Task(part, asked), part.rows) for part in parts]
    for (found,) in run_items(ctx, step, _search, items, label="pii/verbatim"):
        for string, documents in zip(asked, read_table(ctx.store, found)["documents"].to_pylist(), strict=True):
            counts[string] += documents
    return counts


def pattern(strings: Sequence[str]) -> str:
    """A regular expression, for RE2 and for Python, that any text with one of the strings matches."""
    return "|".join(re.escape(one) for one in strings)


def _search(store: Store, task: _Task) -> tuple[Part, ...]:
    found = dict.fromkeys(task.strings, 0)
    whole = {one: re.compile(_bounded(one)) for one in task.strings}
    for texts in _texts(store, task.part):
        for start in range(0, len(task.strings), TOGETHER):
            some = task.strings[start : start + TOGETHER]
            for text in texts.filter(pc.match_substring_regex(texts, pattern(some))).to_pylist():
                for one in some:
                    found[one] += one in text and whole[one].search(text) is not None
    table = pa.table({"documents": pa.array(found.values(), pa.int64())})
    return (write_table(store, TABLE, table),)


def _texts(store: Store, part: Part) -> Iterator[pa.Array]:
    for batch in iter_batches(store, part, ["text"]):
        yield batch.column("text")


def _bounded(one: str) -> str:
    """The string where no letter or digit of its own kind goes on before or after it."""
    before, after = (r"(?<!\w)" * one[:1].isalnum(), r"(?!\w)" * one[-1:].isalnum())
    return f"{before}{re.escape(one)}{after}"

"""The asset `probe_sets`: the items of every probe as parts, and their contamination statuses.

The parts are compared with training text (`corpus/protected`) as sets named `probes/NAME`. Training documents that
contain an item are dropped before training, and every item gets a contamination status. The manifest has the version of
the built-in probes and the digest of every set.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, manifest
from plinth.corpus.documents.normalize import normalize
from plinth.corpus.protected import comparison, protected
from plinth.corpus.protected.protected import PREFIX
from plinth.corpus.sources.parameters import Normalisation
from plinth.errors import RejectRateError, SourceError
from plinth.evaluation.parameters import Probes, UserProbe
from plinth.evaluation.probes import base
from plinth.evaluation.probes.base import SCHEMA, ProbeItem, from_table, items_of, to_table
from plinth.records import Manifest, Part, Step
from plinth.storage import listing
from plinth.storage.files import opened
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store

ASSET = protected.PROBES
VERSION = f"1.{base.VERSION}"
LIBRARIES = fingerprint.libraries("ftfy", "unicode")
#: Status of an undecided item whose text is entirely common.
COMMON = "common"
REJECTS = pa.schema(
    [
        pa.field("probe", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
#: Maximum size of a custom probe's file.
MAX_BYTES = 64 * 2**20


def run(ctx: Context, params: Probes) -> Manifest:
    """Generate the items of built-in and installed probes, and read the items of custom probes.

    Returns:
        Manifest with one part per probe with `base.SCHEMA`, and `rejects.parquet`. Statistics: `sets` (by name
        family, items, templates, bytes, rejects, digest of the items).

    Raises:
        SourceError, RejectRateError: a custom probe's file is missing or invalid.
        RecipeError, ExtensionError: no package has a probe of that name, or the probe is unusable.
    """
    facts = params.model_dump(mode="json") | _packages(params)
    step = Step(name=ASSET, version=VERSION, params=facts, libraries=LIBRARIES)
    parts: list[Part] = []
    rejects: list[dict[str, Any]] = []
    stats: dict[str, dict[str, Any]] = {}
    inputs: dict[str, Manifest | str] = {}
    for name in params.names:
        bad = list[BadLine]()
        if name not in params.sets:
            items = items_of(base.PROBES.find(name))
        else:
            inputs[f"file:{name}"], data = _file(ctx, name, params.sets[name])
            items, bad = read(name, params.sets[name], data)
        part = write_table(ctx.store, f"{name}.parquet", _table(items))
        rejects += [{"probe": name, **one._asdict()} for one in bad]
        stats[name] = _stats(items) | {"rejects": len(bad), "digest": part.blob.sha256}
        parts.append(part)
    parts.append(write_table(ctx.store, "rejects.parquet", pa.Table.from_pylist(rejects, schema=REJECTS)))
    return manifest(ASSET, step, inputs, parts, {"sets": stats})


def outside(ctx: Context, params: Probes) -> str:
    """Return a string that identifies the inputs that are not in the recipe: files of custom probes, and probes from
    other packages."""
    files = {name: listing.inventory(one.path, ctx.workspace.input) for name, one in sorted(params.sets.items())}
    read = [[name, file.sha256] for name, found in files.items() for file in found]
    return fingerprint.digest([read, _packages(params)] if _packages(params) else read)


def _packages(params: Probes) -> dict[str, dict[str, str]]:
    """Return the versions of the probes that come from other packages."""
    found = base.versions([name for name in params.names if name not in params.sets])
    return {"packages": found} if found else {}


def load(store: Store, made: Manifest) -> list[ProbeItem]:
    """Return the items of all probes, in the order of the manifest."""
    return [one for part in protected.probe_parts(made).values() for one in from_table(read_table(store, part))]


def statuses(store: Store, compared: Manifest) -> dict[tuple[str, str], str]:
    """Return the contamination status by probe and item: clean, contaminated, suspected, undecided (the item is too
    short) or common (all text of the item is common in training text)."""
    (part,) = compared.named(comparison.FILE)
    rows = read_table(store, part, ["set", "item", "status", "why"]).to_pylist()
    return {
        (row["set"].removeprefix(PREFIX), row["item"]): COMMON if row["why"] == comparison.COMMON else row["status"]
        for row in rows
        if row["set"].startswith(PREFIX)
    }


def _table(items: list[ProbeItem]) -> pa.Table:
    """Return one row per item. The text compared with training text is normalized like documents; scored text is
    unchanged."""
    table = to_table(items)
    text = pa.array([normalize(one.text, Normalisation()) for one in items], pa.large_string())
    return table.set_column(SCHEMA.get_field_index("text"), SCHEMA.field("text"), text)


def _stats(items: list[ProbeItem]) -> dict[str, Any]:
    texts = (text for one in items for text in (one.prompt, one.gold, *one.wrong, one.control, one.examples))
    return {
        "family": items[0].family,
        "items": len(items),
        "templates": len({one.template for one in items}),
        "bytes": sum(len(text.encode()) for text in texts),
    }


def _file(ctx: Context, name: str, given: UserProbe) -> tuple[str, bytes]:
    """Return the digest and content of a custom probe's file."""
    files = listing.inventory(given.path, ctx.workspace.input)
    if len(files) != 1 or files[0].bytes > MAX_BYTES:
        raise SourceError(
            f"probe {name} needs exactly one file",
            found=f"{len(files)} files, {sum(file.bytes for file in files)} bytes",
            expected=f"one JSONL file of at most {MAX_BYTES} bytes",
            remedy=f"correct evaluation.probes.sets.{name}.path",
        )
    with opened(files[0]) as stream:
        return files[0].sha256, stream.read()


# Custom probes: one JSON object per line.
#
#     {"prompt": "The capital of Wales is", "gold": "Cardiff", "wrong": ["Swansea", "Newport"], "template": "capitals"}
#
# `prompt` and `gold` are required; `wrong`, `id`, `template` and `control` are optional. White space at the end of a
# prompt moves to the answers, as tokenizers expect; an answer that begins with a letter after a prompt that ends with a
# letter gets a space. Without `template` an item forms its own cluster. Without `control`, the control is the prompt
# with its words shuffled.
#
# Invalid lines are rejects with a reason; too high a share of them fails the stage.

FIELDS = {"id", "prompt", "gold", "wrong", "template", "control"}
#: Maximum characters of an item's prompt and answers together.
MOST_CHARACTERS = 100_000


class BadLine(NamedTuple):
    """Invalid line of a custom probe's file."""

    line: int
    reason: str


class Read(NamedTuple):
    """Result of reading a custom probe's file: items, and rejected lines."""

    items: list[ProbeItem]
    rejects: list[BadLine]


def read(name: str, given: UserProbe, data: bytes) -> Read:
    """Return the items in a custom probe's file, with few-shot examples in front of their prompts.

    Raises:
        SourceError: the file has no items other than examples, or is not text.
        RejectRateError: too many lines are invalid.
    """
    found = read_lines(name, given, data)
    lines = len(found.items) + len(found.rejects)
    if len(found.rejects) > given.max_rejected * lines:
        raise RejectRateError(
            f"probe {name}: {len(found.rejects)} of {lines} lines are invalid",
            found="; ".join(f"line {one.line}: {one.reason}" for one in found.rejects[:5]),
            expected=f"at most a fraction of {given.max_rejected:g}",
            remedy=f"correct {given.path}; `plinth model probes check {given.path}` lists every line",
        )
    if len(found.items) <= given.examples:
        raise SourceError(
            f"probe {name} has too few items",
            found=f"{len(found.items)} items, examples: {given.examples}",
            expected=f"at least {given.examples + 1} items in {given.path}",
            remedy=f"add lines to the file, or lower evaluation.probes.sets.{name}.examples",
        )
    shown = "".join(f"{one.prompt}{one.gold}\n\n" for one in found.items[: given.examples])
    return Read([one._replace(examples=shown) for one in found.items[given.examples :]], found.rejects)


def read_lines(name: str, given: UserProbe, data: bytes) -> Read:
    """Parse every line of a custom probe's file into an item or a reject."""
    items: list[ProbeItem] = []
    rejects: list[BadLine] = []
    seen: set[str] = set()
    for number, line in _lines(data):
        try:
            item = _item(name, given, number, json.loads(line))
            if item.item in seen:
                raise ValueError(f"another line has the id {item.item!r}")
        except (ValueError, RecursionError) as error:
            rejects.append(BadLine(number, _short(error)))
            continue
        seen.add(item.item)
        items.append(item)
    return Read(items, rejects)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _item(name: str, given: UserProbe, number: int, row: Any) -> ProbeItem:
    """Return the item described by a line's content.

    Raises:
        ValueError: the line is not a valid item; the message has the reason.
    """
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, found a {type(row).__name__}")
    if unknown := sorted(set(row) - FIELDS):
        raise ValueError(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(FIELDS))}")
    prompt, gold = _text(row, "prompt"), _text(row, "gold")
    wrong = row.get("wrong", [])
    if not isinstance(wrong, list) or not all(isinstance(one, str) and one.strip() for one in wrong):
        raise ValueError("`wrong` must be a list of non-empty texts")
    if len({gold, *wrong}) != 1 + len(wrong):
        raise ValueError("an answer occurs twice")
    if sum(map(len, (prompt, gold, *wrong))) > MOST_CHARACTERS:
        raise ValueError(f"an item must have at most {MOST_CHARACTERS} characters")
    bare = prompt.rstrip()
    answers = [_joined(bare, prompt[len(bare) :], one) for one in (gold, *wrong)]
    control = str(row.get("control") or _shuffled(bare)).rstrip()
    if control == bare:
        raise ValueError("the prompt is too short to be shuffled: give it a `control`")
    item = str(row.get("id", f"line {number}"))
    template = str(row.get("template", item))
    return ProbeItem(item, name, given.family, template, bare, answers[0], tuple(answers[1:]), control)


def _text(row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{field}` must be a text that is not empty")
    value.encode()  # an unpaired surrogate raises UnicodeEncodeError, a ValueError
    return value


def _joined(prompt: str, space: str, answer: str) -> str:
    """Return an answer with the white space in front that separates it from the prompt."""
    if space:
        return space + answer.lstrip()
    return f" {answer}" if re.match(r"\w", answer) and re.search(r"[\w.:;,?!)]$", prompt) else answer


def _shuffled(prompt: str) -> str:
    """Return the prompt with its words in another order, which depends only on the prompt."""
    words = prompt.split()
    mixed = base.shuffled(hashlib.sha256(prompt.encode()).hexdigest(), words)
    return " ".join(mixed if mixed != words else reversed(words))


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200] if not isinstance(error, ValueError) else str(error)[:200]

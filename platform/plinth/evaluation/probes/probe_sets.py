"""The asset `probe_sets`: the items of every probe as parts, and what the comparison with training text says of them.

The parts enter that comparison (`corpus/protected`) as sets named `probes/NAME`, so that training text which holds an
item is dropped before training, and every item has a status. The manifest names the version of built-in probes and the
digest of every set.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, manifest
from plinth.corpus.documents.normalize import normalize
from plinth.corpus.protected import item_table, protected
from plinth.corpus.protected.protected import PREFIX
from plinth.corpus.sources.parameters import Normalisation
from plinth.errors import SourceError
from plinth.evaluation.probes import registry, user_set
from plinth.evaluation.probes.base import SCHEMA, ProbeItem, from_table, items_of, to_table
from plinth.evaluation.probes.parameters import Probes, UserProbe
from plinth.records import Manifest, Part, Step
from plinth.storage import listing
from plinth.storage.files import opened
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store

ASSET = protected.PROBES
VERSION = f"1.{registry.VERSION}"
LIBRARIES = fingerprint.libraries("ftfy", "unicode")
#: Status of an undecided item all of whose text is common.
COMMON = "common"
REJECTS = pa.schema(
    [
        pa.field("probe", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
#: A file of a user's probe, at most.
MAX_BYTES = 64 * 2**20


def run(ctx: Context, params: Probes) -> Manifest:
    """Build or read every probe.

    Returns:
        Manifest of one part a probe with `base.SCHEMA`, and `rejects.parquet`. Statistics: `sets` (by name
        family, items, templates, bytes, rejects, digest of the items).

    Raises:
        SourceError, RejectRateError: a user's file is absent, or not a probe.
        RecipeError, ExtensionError: no package has a probe of that name, or it cannot be used.
    """
    facts = params.model_dump(mode="json") | _packages(params)
    step = Step(name=ASSET, version=VERSION, params=facts, libraries=LIBRARIES)
    parts: list[Part] = []
    rejects: list[dict[str, Any]] = []
    stats: dict[str, dict[str, Any]] = {}
    inputs: dict[str, Manifest | str] = {}
    for name in params.names:
        bad = list[user_set.BadLine]()
        if name not in params.sets:
            items = items_of(registry.PROBES.find(name))
        else:
            inputs[f"file:{name}"], data = _file(ctx, name, params.sets[name])
            items, bad = user_set.read(name, params.sets[name], data)
        part = write_table(ctx.store, f"{name}.parquet", _table(items))
        rejects += [{"probe": name, **one._asdict()} for one in bad]
        stats[name] = _stats(items) | {"rejects": len(bad), "digest": part.blob.sha256}
        parts.append(part)
    parts.append(write_table(ctx.store, "rejects.parquet", pa.Table.from_pylist(rejects, schema=REJECTS)))
    return manifest(ASSET, step, inputs, parts, {"sets": stats})


def outside(ctx: Context, params: Probes) -> str:
    """Identity of the user's files and of what other packages make."""
    files = {name: listing.inventory(one.path, ctx.workspace.input) for name, one in sorted(params.sets.items())}
    read = [[name, file.sha256] for name, found in files.items() for file in found]
    return fingerprint.digest([read, _packages(params)] if _packages(params) else read)


def _packages(params: Probes) -> dict[str, dict[str, str]]:
    """Versions of the probes that other packages make, where there are any."""
    found = registry.versions([name for name in params.names if name not in params.sets])
    return {"packages": found} if found else {}


def load(store: Store, made: Manifest) -> list[ProbeItem]:
    """All items, probe by probe in the order of the manifest."""
    return [one for part in protected.probe_parts(made).values() for one in from_table(read_table(store, part))]


def statuses(store: Store, compared: Manifest) -> dict[tuple[str, str], str]:
    """By probe and item what the comparison with training text says: clean, contaminated, suspected, undecided (too
    short to tell) or common (all of its text is common in training text)."""
    (part,) = compared.named(item_table.FILE)
    rows = read_table(store, part, ["set", "item", "status", "why"]).to_pylist()
    return {
        (row["set"].removeprefix(PREFIX), row["item"]): COMMON if row["why"] == item_table.COMMON else row["status"]
        for row in rows
        if row["set"].startswith(PREFIX)
    }


def _table(items: list[ProbeItem]) -> pa.Table:
    """Rows of items; what is compared has the normal form of documents, what is scored stays as it is."""
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
    """Digest and content of a user's file."""
    files = listing.inventory(given.path, ctx.workspace.input)
    if len(files) != 1 or files[0].bytes > MAX_BYTES:
        raise SourceError(
            f"probe {name} is one file",
            found=f"{len(files)} files, {sum(file.bytes for file in files)} bytes",
            expected=f"one JSONL file of at most {MAX_BYTES} bytes",
            remedy=f"correct evaluation.probes.sets.{name}.path",
        )
    with opened(files[0]) as stream:
        return files[0].sha256, stream.read()

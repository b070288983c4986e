"""The comparison of two models as a manifest: a folder of weights as a manifest, what differs between two models, and
their paired differences. The same inputs give the same manifest, from the step cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from plinth import fingerprint
from plinth.compute import context
from plinth.compute.context import Context
from plinth.errors import MissingError, PlinthError, SourceError, StageError
from plinth.evaluation.comparison.differences import Difference, corrected, left_out, of_measure, reasons
from plinth.evaluation.comparison.pairs import ROWS, Pairs, read, reader
from plinth.evaluation.slices.job import ASSET as EVALUATION
from plinth.evaluation.slices.tables import TOKENS, SpanDifference, places
from plinth.model.hugging_face import CONFIG, INDEX, TOKENIZER
from plinth.records import Frozen, Manifest, Part, Step
from plinth.storage.parts import PartWriter
from plinth.storage.state import Refs
from plinth.storage.store import Store
from plinth.storage.uris import open_local, readable
from plinth.tokens.tokenizer.vocabulary import same_tokenizer

# The two models of a comparison: a folder of weights as a manifest, and what differs between two models.

RECIPE, DATA, STEPS = "recipe", "data", "steps"
ABSENT = "-"
#: Identities that differ whenever anything does.
_IDENTITIES = frozenset({"key", "run_id"})
#: Assets from which a stage was chosen: enough is said by their own parameters.
_SAID_ELSEWHERE = frozenset({"checkpoint", "run"})


class ModelChange(Frozen):
    """One difference. `sort` is recipe, data or steps; `where` names an asset and its parameter."""

    sort: str
    where: str
    a: str
    b: str


def changes(refs: Refs, a: Manifest, b: Manifest) -> list[ModelChange]:
    """Differences between two checkpoints, steps first, then recipe, then data.

    An asset that differs only because what it reads differs has no line of its own.
    """
    ours, theirs = ancestry(refs, a), ancestry(refs, b)
    if not a.inputs or not b.inputs:
        return [ModelChange(sort=DATA, where="origin", a=_origin(a), b=_origin(b)), *_steps(ours, theirs)]
    return [*_steps(ours, theirs), *_recipe(ours, theirs), *_data(ours, theirs)]


def cut_alike(store: Store, a: Manifest, b: Manifest) -> bool:
    """True if two checkpoints have the same tokenizer."""
    ours, theirs = (one.named(TOKENIZER) for one in (a, b))
    if not (ours and theirs):
        return ours == theirs
    return same_tokenizer(store, ours[0].blob, theirs[0].blob)


def ancestry(refs: Refs, manifest: Manifest) -> dict[str, Manifest]:
    """Manifests that a checkpoint came of, itself too, by asset; those that are gone are left out."""
    found, waiting = {manifest.asset: manifest}, [manifest]
    while waiting:
        for name, digest in sorted(waiting.pop().inputs.items()):
            if name in found:
                continue
            try:
                found[name] = refs.load(digest)
            except PlinthError:
                continue  # a source's inventory, or a manifest that was removed
            waiting.append(found[name])
    return found


def _origin(checkpoint: Manifest) -> str:
    return "a run of this workspace" if checkpoint.inputs else "weights from elsewhere, of unknown data"


def _steps(a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> Iterator[ModelChange]:
    for asset, names in (("checkpoint", ("step", "tokens")), ("run", ("final_loss_ema",))):
        ours, theirs = (side[asset].stats if asset in side else {} for side in (a, b))
        for name in names:
            if ours.get(name) != theirs.get(name):
                yield ModelChange(sort=STEPS, where=name, a=_shown(ours.get(name)), b=_shown(theirs.get(name)))


def _recipe(a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> Iterator[ModelChange]:
    """Parameters of every stage that differ."""
    for asset in sorted(set(a) & set(b)):
        ours, theirs = (dict(flat(side[asset].params)) for side in (a, b))
        for name in sorted(set(ours) | set(theirs)):
            if name not in _IDENTITIES and ours.get(name) != theirs.get(name):
                yield ModelChange(
                    sort=RECIPE, where=f"{asset}: {name}", a=_shown(ours.get(name)), b=_shown(theirs.get(name))
                )


def _data(a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> Iterator[ModelChange]:
    """Assets that only one has, sources whose files differ, and stages of another version."""
    for asset in sorted(set(a) ^ set(b)):
        yield ModelChange(sort=DATA, where=asset, a=_held(a.get(asset)), b=_held(b.get(asset)))
    for asset in sorted((set(a) & set(b)) - _SAID_ELSEWHERE):
        ours, theirs = a[asset], b[asset]
        if ours.version != theirs.version or ours.libraries != theirs.libraries:
            yield ModelChange(sort=DATA, where=f"{asset}: version", a=_version(ours), b=_version(theirs))
        elif ours.digest != theirs.digest and _reads_the_same(ours, theirs, a, b) and ours.params == theirs.params:
            yield ModelChange(sort=DATA, where=asset, a=_held(ours), b=_held(theirs))


def _reads_the_same(ours: Manifest, theirs: Manifest, a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> bool:
    """Whether what two manifests read is the same, so that they differ by themselves; or differs outside."""
    shared = [name for name in set(ours.inputs) & set(theirs.inputs) if name in a and name in b]
    return all(ours.inputs[name] == theirs.inputs[name] for name in shared)


def _held(manifest: Manifest | None) -> str:
    return ABSENT if manifest is None else f"{manifest.digest[:12]}, {manifest.rows:,} rows"


def _version(manifest: Manifest) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in sorted(manifest.libraries.items()))
    return f"{manifest.version}; {libraries}" if libraries else manifest.version


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings and lists with their dotted names."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from flat(below, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for i, below in enumerate(value):
            yield from flat(below, f"{name}[{i}]")
    else:
        yield name, value


def _shown(value: Any) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


MODEL_ASSET = "weights"
#: In a cache of the Hugging Face Hub: folders of links into `blobs/` next to it.
SNAPSHOTS = "snapshots"


def weights(ctx: Context, folder: Path) -> Manifest:
    """The model in a folder, copied into the store.

    Raises:
        MissingError: the folder lacks weights in safetensors, a configuration or a tokenizer.
        SourceError: a file is a link out of the folder, off limits, or cannot be read.
    """
    found = {path.name for path in folder.glob("*.safetensors")}
    found |= {name for name in (CONFIG, INDEX, TOKENIZER) if (folder / name).is_file()}
    lacking = [name for name in (CONFIG, TOKENIZER) if name not in found]
    if lacking or not any(name.endswith(".safetensors") for name in found):
        raise MissingError(
            f"{folder} holds no model that can be compared",
            found=", ".join(sorted(found)) or "none of its files",
            expected=f"*.safetensors, {CONFIG} and {TOKENIZER}",
            remedy="write it by `save_pretrained`, with a fast tokenizer",
        )
    parts = []
    for name in sorted(found):
        with ctx.store.staging() as copy:
            with open_file(folder, name) as stream, copy.open("wb") as target:
                shutil.copyfileobj(stream, target)
            parts.append(Part(name=name, blob=ctx.store.put_file(copy)))
    return Manifest(asset=MODEL_ASSET, step=MODEL_ASSET, version="1", params={}, inputs={}, parts=tuple(parts))


def open_file(folder: Path, name: str) -> IO[bytes]:
    """A file of the folder. A link may lead to a file of the same folder, or of the download cache that it is in.

    Raises:
        SourceError: it leads elsewhere, is off limits (`storage.off_limits`), or cannot be read.
    """
    path, real = folder / name, (folder / name).resolve()
    home = (folder.parents[1] if folder.parent.name == SNAPSHOTS else folder).resolve()
    if not real.is_relative_to(home):
        raise SourceError(
            f"{path} is not read",
            found=f"a link to {real}",
            expected=f"a file in {home}",
            remedy="put the file itself in its place",
        )
    with readable(str(path), "open"):
        return open_local(str(real), len(real.relative_to(home).parts) - 1)


# The asset `comparison`: computed once for the same inputs.
#
# Part `pairs.parquet` has one row per item and measure. Stats: `models` (digest, asset, step and tokens of both),
# `lines` (`differences.Difference`), `left_out` (small slices without a line), `unpaired` (items with a value for one
# model only), `measured_alone` (assets that measured only one), `extremes` by measure, `seen` (contaminated and
# suspected items, at most 200; `seen_items` counts all), `changes`, `reasons`, `spans` (of held-out text, in bytes of
# the document), `seed`. It says a and b, never a path or a name.

ASSET = "comparison"
VERSION = "6"
FILE = "pairs.parquet"
SEED = 0

_COLUMNS = pa.schema([pa.field("kind", pa.string()), pa.field("measure", pa.string()), *ROWS])


class MeasuredModel(NamedTuple):
    """A checkpoint and what was measured of it, by asset."""

    checkpoint: Manifest
    measured: Mapping[str, Manifest]


def run(ctx: Context, a: MeasuredModel, b: MeasuredModel) -> Manifest:
    """Compare two models that were measured alike.

    Raises:
        StageError: nothing was measured of both.
        IntegrityError: they were measured on other items.
    """
    step = Step(name=ASSET, version=VERSION, params={"seed": SEED}, libraries=fingerprint.libraries("numpy", "scipy"))
    inputs = {"a/checkpoint": a.checkpoint, "b/checkpoint": b.checkpoint}
    for asset in sorted(set(a.measured) & set(b.measured)):
        if reader(asset) is not None:
            inputs |= {f"a/{asset}": a.measured[asset], f"b/{asset}": b.measured[asset]}
    named = [f"{name} {made.digest}" for name, made in inputs.items()]
    parts = context.cached(ctx, step, named, lambda: [_compared(ctx, a, b)])
    return context.manifest(ASSET, step, inputs, parts, parts[0].stats)


def _compared(ctx: Context, a: MeasuredModel, b: MeasuredModel) -> Part:
    found = _Findings()
    with PartWriter(ctx.store, FILE, _COLUMNS) as part:
        for pairs in read(ctx.store, a.measured, b.measured):
            found.add(pairs)
            for batch in _table(pairs).to_batches():
                part.write(batch)
        if not found.lines:
            raise StageError(
                "nothing was measured of both models",
                found=f"{sorted(a.measured)} and {sorted(b.measured)}",
                expected="at least one evaluation of both, of the same items",
            )
        alone = {"a": _alone(a, b), "b": _alone(b, a)}
        stats = {"measured_alone": alone} | found.stats() | _of_models(ctx, a.checkpoint, b.checkpoint, found)
        return part.finish(stats | {"spans": [one.facts() for one in _spans(ctx, a, b)]})


def lines(store: Store, a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> list[Difference]:
    """Every line of the comparison of two models, from the items of their measurements by asset.

    Raises:
        IntegrityError: they were measured on other items.
    """
    return corrected([line for pairs in read(store, a, b) for line in of_measure(pairs, SEED)])


def _alone(one: MeasuredModel, other: MeasuredModel) -> list[str]:
    """Assets that measured this model and not the other."""
    return sorted(asset for asset in set(one.measured) - set(other.measured) if reader(asset))


def spans_of(made: Manifest) -> list[SpanDifference]:
    """The spans of a comparison, without their text, which no manifest has: a takedown would have to find it there."""
    return [SpanDifference(**one) for one in made.stats["spans"]]


def _spans(ctx: Context, a: MeasuredModel, b: MeasuredModel) -> list[SpanDifference]:
    """Where the two differ most on held-out text, where both were evaluated token by token."""
    ours, theirs = (side.measured.get(EVALUATION) for side in (a, b))
    if ours and theirs and ours.named(TOKENS) and theirs.named(TOKENS):
        with suppress(MissingError):  # no document in common: every one stands among the unpaired
            return places(ctx.store, ours, theirs)
    return []


class _Findings:
    """What is kept of every measure while the next is read: lines, and a few of its items."""

    def __init__(self) -> None:
        self.lines: list[Difference] = []
        self.left_out = self.seen_items = 0
        self.unpaired: dict[str, list[int]] = {}
        self.extremes: list[dict[str, Any]] = []
        self.seen: list[dict[str, Any]] = []

    def add(self, pairs: Pairs) -> None:
        if pairs.only_a + pairs.only_b:
            self.unpaired[f"{pairs.kind}: {pairs.measure}"] = [pairs.only_a, pairs.only_b]
        if not pairs.rows.num_rows:
            return
        self.lines += of_measure(pairs, SEED)
        self.left_out += left_out(pairs)
        listed, count = seen_items(pairs, MOST_SEEN - len(self.seen))
        self.seen, self.seen_items = self.seen + listed, self.seen_items + count
        self.extremes.append({"kind": pairs.kind, "measure": pairs.measure, **extremes(pairs)})

    def stats(self) -> dict[str, Any]:
        self.lines = corrected(self.lines)
        return {
            "lines": [line.model_dump(mode="json") for line in self.lines],
            "left_out": self.left_out,
            "unpaired": self.unpaired,
            "extremes": self.extremes,
            "seen": self.seen,
            "seen_items": self.seen_items,
            "seed": SEED,
        }


def _of_models(ctx: Context, a: Manifest, b: Manifest, found: _Findings) -> dict[str, Any]:
    """What the two are and came of, and why they differ where that can be said."""
    ours, theirs = (ancestry(ctx.refs, one) for one in (a, b))
    losses = tuple(side["run"].stats.get("final_loss_ema") if "run" in side else None for side in (ours, theirs))
    same = cut_alike(ctx.store, a, b)
    return {
        "models": {"a": _model(a), "b": _model(b)},
        "same_tokenizer": same,
        "changes": [one.model_dump(mode="json") for one in changes(ctx.refs, a, b)],
        "reasons": [one.model_dump(mode="json") for one in reasons(found.lines, same, (losses[0], losses[1]))],
    }


def alone(checkpoint: Manifest) -> Manifest:
    """The comparison of a model that has nothing to be compared with yet: no line."""
    step = Step(name=ASSET, version=VERSION, params={"seed": SEED})
    stats = {"models": {"a": _model(checkpoint)}, "lines": [], "seed": SEED}
    return context.manifest(ASSET, step, {"a/checkpoint": checkpoint}, [], stats)


def _model(checkpoint: Manifest) -> dict[str, Any]:
    known = {name: checkpoint.stats[name] for name in ("run_id", "step", "tokens") if name in checkpoint.stats}
    return {"checkpoint": checkpoint.digest, "asset": checkpoint.asset} | known


def _table(pairs: Pairs) -> pa.Table:
    named = [pa.repeat(name, pairs.rows.num_rows) for name in (pairs.kind, pairs.measure)]
    return pa.Table.from_arrays([*named, *pairs.rows.columns], schema=_COLUMNS)


MOST = 10
MOST_SEEN = 200


def extremes(pairs: Pairs, most: int = MOST) -> dict[str, list[dict[str, Any]]]:
    """Items that speak most for each model: `a` and `b`, the largest first; by what they add to the difference.

    An item has `item`, `source`, `slices`, `status`, `gain` (in the measure's units: bits or points), `per_weight`
    and both values per weight.
    """
    gain = pairs.column("b") - pairs.column("a") if pairs.fewer_is_better else pairs.column("a") - pairs.column("b")
    order = np.argsort(-gain, kind="stable")
    rows = pairs.rows.take(np.concatenate([order[:most], order[::-1][:most]])).to_pylist()
    chosen = [(row, float(gain[at])) for row, at in zip(rows, [*order[:most], *order[::-1][:most]], strict=True)]
    half = min(most, len(order))
    return {
        "a": [_item(row, value) for row, value in chosen[:half] if value > 0],
        "b": [_item(row, -value) for row, value in chosen[half:] if value < 0],
    }


def seen_items(pairs: Pairs, most: int = MOST_SEEN) -> tuple[list[dict[str, Any]], int]:
    """The first contaminated and suspected items by name, and how many there are."""
    held = pairs.rows.filter(pa.array(pairs.seen()))
    listed = [
        {"kind": pairs.kind, "measure": pairs.measure, "item": row["item"], "status": row["status"],
         "a": row["a"] / row["weight"], "b": row["b"] / row["weight"]}
        for row in held.slice(0, most).to_pylist()
    ]  # fmt: skip
    return listed, held.num_rows


def _item(row: dict[str, Any], gain: float) -> dict[str, Any]:
    named = {name: row[name] for name in ("item", "source", "slices", "status", "weight")}
    per_weight = {side: row[side] / row["weight"] for side in ("a", "b")}
    return named | {"gain": gain} | per_weight

"""What was measured of a checkpoint, counted again from the rows of its items. Pure but for reading parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.errors import IntegrityError, PlinthError
from plinth.evaluation.comparison import job as comparisons
from plinth.evaluation.engine.records import Request
from plinth.evaluation.fairness import bias, toxicity
from plinth.evaluation.fairness import job as fairness
from plinth.evaluation.fairness.pairs import Pair
from plinth.evaluation.memorisation import canaries, exposure, extraction
from plinth.evaluation.pii import parameters
from plinth.evaluation.probes import tables as probe_tables
from plinth.evaluation.probes.scoring import EXCLUDED
from plinth.evaluation.slices import tables as slice_tables
from plinth.evaluation.slices import totals
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.store import Store
from plinth_registry.recount import personal_data
from plinth_registry.recount.figures import differences

#: Stated and counted figures.
Figures = tuple[Any, Any]

#: What statistics lack or hold wrongly where they are not those of the stage.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, pa.ArrowException)

#: Faults by digest of a manifest: it names its tables by digest, so one look in a process is enough.
_KNOWN: dict[str, tuple[str, ...]] = {}
MOST_KNOWN: Final = 4096


def faults(ctx: Context, found: Mapping[str, Manifest]) -> dict[str, tuple[str, ...]]:
    """What is wrong with the figures of measurements, by piece of evidence; those without a fault are left out.

    Args:
        found: manifests by asset, which the evaluator has signed for.
    """
    listed: dict[str, tuple[str, ...]] = {}
    for asset, made in found.items():
        field = _field(asset)
        if field is not None and (own := (*_counted(ctx, asset, made), *_bound(asset, made, found))):
            listed[field] = (*listed.get(field, ()), *(f"{asset}: {one}" for one in own))
    return listed


def _counted(ctx: Context, asset: str, made: Manifest) -> tuple[str, ...]:
    if made.digest in _KNOWN:
        return _KNOWN[made.digest]
    try:
        found = differences(*_COUNTS[_field(asset) or ""](ctx, made))
    except UNREADABLE as error:
        return (f"cannot be counted again: {type(error).__name__}: {error}",)
    except PlinthError as error:  # a table that is absent may come back
        return (f"cannot be counted again: {error.what}",)
    if len(_KNOWN) >= MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[made.digest] = found
    return found


def _field(asset: str) -> str | None:
    """The piece of evidence that an asset gives; None where no gate reads it."""
    return _FIELDS.get("tasks" if asset.startswith("tasks/") else asset)


def _bound(asset: str, made: Manifest, found: Mapping[str, Manifest]) -> tuple[str, ...]:
    """A comparison is of the very measurements that the gates read."""
    if asset != comparisons.ASSET:
        return ()
    read = {name.removeprefix("a/"): digest for name, digest in made.inputs.items() if name.startswith("a/")}
    other = [name for name, digest in sorted(read.items()) if name in found and found[name].digest != digest]
    return (f"it compares another {', '.join(other)} than is attested",) if other else ()


def _table(store: Store, made: Manifest, name: str) -> pa.Table:
    for part in made.parts:
        if part.name == name:
            return read_table(store, part)
    raise IntegrityError(f"{made.asset} {made.digest[:12]} has no {name}")


def _evaluation(ctx: Context, made: Manifest) -> Figures:
    table = _table(ctx.store, made, slice_tables.DOCUMENTS)
    labels = np.array(table["bucket"].to_pylist(), dtype=object)
    counted = {name: _rates(table.filter(pa.array(labels == name))) for name in sorted(set(labels))}
    names = ("bytes", "model", "gzip", "trigram")
    return {name: {one: row[one] for one in names} for name, row in made.stats["slices"].items()}, counted


def _rates(table: pa.Table) -> dict[str, Any]:
    """Bytes of some documents, and bits per byte of model and baselines: ratios of sums, as `totals.row` has them."""
    size = int(pc.sum(table["bytes"]).as_py())
    sums = {name: totals.exact_sum(table[f"{name}_bits"].to_numpy()) for name in ("model", "gzip", "trigram")}
    return {"bytes": size, **{name: round(own / size, 6) for name, own in sums.items()}}


def _probes(ctx: Context, made: Manifest) -> Figures:
    rows = _table(ctx.store, made, probe_tables.FILE).to_pylist()
    own: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        own.setdefault(row["probe"], [])
        if row["bits"] is not None and row["status"] not in EXCLUDED:
            own[row["probe"]].append(row)
    counted = {name: {"items": len(kept), **_signal(kept)} for name, kept in own.items()}
    stated = {
        name: {"items": row["items"], **({"signal": row["signal"]["value"]} if "signal" in row else {})}
        for name, row in made.stats["probes"].items()
    }
    return stated, counted


def _signal(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Bits per byte that the context of some items saves: a ratio of sums."""
    size = sum(row["bytes"] for row in rows)
    return {"signal": math.fsum(row["control_bits"] - row["bits"] for row in rows) / size} if size else {}


def _tasks(ctx: Context, made: Manifest) -> Figures:
    counted = {}
    for part in made.parts:
        rows = read_table(ctx.store, part, ["document", "reason"])
        lost = pc.is_valid(rows["reason"])
        documents = len(pc.unique(rows.filter(pc.invert(lost))["document"]))
        counted[part.name.removesuffix(".parquet")] = {"documents": documents, "damaged": pc.sum(lost).as_py() or 0}
    names = ("documents", "damaged")
    return {task: {name: one[name] for name in names} for task, one in made.stats["tasks"].items()}, counted


def _extraction(ctx: Context, made: Manifest) -> Figures:
    table = _table(ctx.store, made, extraction.TABLE)
    near = float(made.params["near_edits"])
    pairs = zip(table["suffix"].to_pylist(), table["completion"].to_pylist(), strict=True)
    outcomes = pa.array([extraction.outcome(suffix, written, near)[1] for suffix, written in pairs], pa.string())
    judged = table.set_column(table.schema.get_field_index("outcome"), "outcome", outcomes)
    counted = extraction.summary(judged, list(made.stats["slices"]))["slices"]
    return _limits(made.stats["slices"]), _limits(counted)


def _limits(slices: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {"n": own["n"], **({key: own["either"][key] for key in ("count", "upper")} if own["n"] else {})}
        for name, own in slices.items()
    }


def _canaries(ctx: Context, made: Manifest) -> Figures:
    table = _table(ctx.store, made, canaries.TABLE)
    canary = pc.equal(table["kind"], "canary")
    own, references = table.filter(canary), table.filter(pc.invert(canary))["bits"].to_numpy()
    ranks = exposure.ranks(own["bits"].to_numpy(), references)
    wrong = int((ranks != own["rank"].to_numpy()).sum())
    wrong += int((~np.isclose(exposure.exposures(ranks, len(references)), own["exposure"].to_numpy())).sum())
    counted = _exposed(canaries.summary(table)) | {"wrong ranks": wrong}
    return _exposed(made.stats) | {"wrong ranks": 0}, counted


def _exposed(stats: Mapping[str, Any]) -> dict[str, Any]:
    groups = {
        name: {"canaries": one["canaries"], **{key: one["exposure"][key] for key in ("n", "value")}}
        for name, one in stats["groups"].items()
        if one["canaries"]
    }
    return {"planted": stats["planted"], "groups": groups, "epsilon": stats["audit"]["epsilon"]}


def _fairness(ctx: Context, made: Manifest) -> Figures:
    rows = _table(ctx.store, made, fairness.PAIRS).to_pylist()
    names = ("set", "item", "attribute", "template", "favourable")
    pairs = [Pair(**{name: row[name] for name in names}, a=Request("", ""), b=Request("", "")) for row in rows]
    bits = np.array([row[side] for row in rows for side in ("bits_a", "bits_b")])
    attributes, judged = bias.by_attribute(pairs, bias.values(pairs, bits)), made.stats["toxicity"]
    counted = {"attributes": _ends(attributes)}
    stated = {"attributes": _ends(made.stats["attributes"])}
    if judged is not None:
        stated["toxicity"] = _toxic(judged)
        counted["toxicity"] = _toxic(toxicity.summary(_table(ctx.store, made, fairness.CONTINUATIONS)))
    return stated, counted


def _ends(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {key: one[key] for key in ("n", "low", "high")} for name, one in attributes.items()}


def _toxic(stats: Mapping[str, Any]) -> dict[str, Any]:
    return {"n": stats["toxic"]["n"], "toxic_at_most": stats["toxic_at_most"]}


def _comparison(ctx: Context, made: Manifest) -> Figures:
    """Every line with its interval, from the items of both models."""
    models = {side: made.inputs.get(f"{side}/checkpoint", "none") for side in ("a", "b")}
    ours, theirs = (_measured(ctx, made, side) for side in ("a", "b"))
    lines = comparisons.lines(ctx.store, ours, theirs)
    counted = _lines(line.model_dump(mode="json") for line in lines)
    named = dict.fromkeys(models, "none") | {side: one["checkpoint"] for side, one in made.stats["models"].items()}
    return {"models": named, "lines": _lines(made.stats["lines"])}, {"models": models, "lines": counted}


def _measured(ctx: Context, made: Manifest, side: str) -> dict[str, Manifest]:
    names = (name for name in made.inputs if name.startswith(f"{side}/") and name != f"{side}/checkpoint")
    return {name.removeprefix(f"{side}/"): ctx.refs.load(made.inputs[name]) for name in names}


def _lines(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{one['kind']} {one['measure']} {one['slice']}": {
            key: one["difference"][key] for key in ("clusters", "value", "low", "high")
        }
        | {"fewer_is_better": one["fewer_is_better"]}
        for one in lines
    }


#: Piece of evidence by asset, and how its figures are counted.
_FIELDS: Final[Mapping[str, str]] = {
    "evaluation": "evaluation",
    "probes": "probes",
    "tasks": "tasks",
    "comparison": "comparison",
    "memorisation/extraction": "extraction",
    "memorisation/canaries": "canaries",
    "fairness": "bias",
    parameters.DATA: "pii_data",
    parameters.OUTPUTS: "pii_outputs",
}
_COUNTS: Final[Mapping[str, Callable[[Context, Manifest], Figures]]] = {
    "evaluation": _evaluation,
    "probes": _probes,
    "tasks": _tasks,
    "comparison": _comparison,
    "extraction": _extraction,
    "canaries": _canaries,
    "bias": _fairness,
    "pii_data": personal_data.data,
    "pii_outputs": personal_data.written,
}

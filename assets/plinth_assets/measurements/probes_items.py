"""Items of probes: counted again, compared between models, shown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from plinth.compute.context import Context
from plinth.evaluation.comparison.pairs import Pairs, by_name, part_table
from plinth.evaluation.measurement import Figures, ModelScores, Stats
from plinth.evaluation.probes import job, probe_sets
from plinth.evaluation.probes.noise import Worth
from plinth.evaluation.probes.scoring import EXCLUDED
from plinth.records import Manifest
from plinth.report.evaluation import BITS, Measure, Section, TextTable, group, measure
from plinth.storage.parts import named_table
from plinth.storage.store import Store

RIGHT_ANSWERS = "Right answers by probe"


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    rows = named_table(ctx.store, made, job.FILE).to_pylist()
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


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Of every probe the bits of right answers and, where there is a choice, accuracy above chance; by template."""
    sides = [part_table(store, made, "items.parquet") for made in (a, b)]
    for what, value, weight in ((BITS, "bits", "bytes"), ("accuracy above chance", "centred", None)):
        yield from by_name("probes", "probe", what, sides, value, weight, cluster="template")


def scores(made: Manifest) -> ModelScores:
    """The estimates of every probe."""
    groups = {f"{made.asset}/{name}": job.estimates(row) for name, row in made.stats["probes"].items()}
    return ModelScores(probe_sets.ASSET, made.inputs[probe_sets.ASSET], groups)


def section(_: str, stats: Stats) -> Section:
    """Probes by family and by set, with their control."""
    rows = stats["probes"]
    right = [
        measure(name, row["bits_per_byte"], reference=row["control"]["value"])
        for name, row in rows.items()
        if row.get("bits_per_byte")
    ]
    accuracy = [measure(name, row["accuracy"], reference=0.0) for name, row in rows.items() if row.get("accuracy")]
    signals = {name: row["signal"] for name, row in stats["families"].items() if row.get("signal")}
    families = [measure(name, row, reference=0.0) for name, row in signals.items()]
    groups = (
        group("Signal by family", BITS, "higher", "none", families),
        group(RIGHT_ANSWERS, BITS, "lower", "control", right),
        group("Accuracy above chance, by probe", "share", "higher", "chance", accuracy),
    )
    return Section(
        key="probes",
        title="Probes",
        lead="Items that training text does not hold. Signal is what the context is worth: bits per byte of the right "
        "answer under a shuffled context, less those under its own.",
        groups=tuple(group for group in groups if group.measures),
        tables=(_statuses(rows),),
    )


def with_worth(section: Section, worth: Mapping[str, Worth]) -> Section:
    """The section of probes with the noise of each over the run; one that is not known to be above it is grey."""
    groups = tuple(
        group.model_copy(update={"measures": tuple(_judged(one, worth.get(one.name)) for one in group.measures)})
        if group.title == RIGHT_ANSWERS
        else group
        for group in section.groups
    )
    quiet = sorted({one.name for group in groups for one in group.measures if not one.decides})
    lead = f" In grey: not known to be above their own noise, so they drive no stop and no gate ({', '.join(quiet)})."
    return section.model_copy(update={"groups": groups, "lead": section.lead + lead * bool(quiet)})


def _judged(one: Measure, worth: Worth | None) -> Measure:
    if worth is None:
        return one.model_copy(update={"decides": False, "note": ", ".join(filter(None, (one.note, "noise unknown")))})
    ratio = "" if worth.snr is None else f"signal over noise {worth.snr:.2g}"
    note = ", ".join(filter(None, (one.note, ratio)))
    return one.model_copy(update={"noise": worth.noise, "decides": worth.decides, "note": note})


def _statuses(rows: Mapping[str, Stats]) -> TextTable:
    """Items of every set by what the comparison with training text says of them."""
    names = sorted({status for row in rows.values() for status in row["statuses"]})
    return TextTable(
        title="Items, by whether training text held them",
        header=("probe", *names, "of these too long"),
        rows=tuple(
            (name, *(f"{row['statuses'].get(status, 0):,}" for status in names), f"{row['too_long']:,}")
            for name, row in rows.items()
        ),
    )

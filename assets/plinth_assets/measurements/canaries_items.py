"""Planted texts: counted again, compared between models, shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.corpus.canaries import plant
from plinth.evaluation.comparison.columns import chosen, part_table
from plinth.evaluation.comparison.pairs import Pairs, align, labelled
from plinth.evaluation.measurement import Figures, Stats
from plinth.evaluation.memorisation import canaries, exposure
from plinth.evaluation.memorisation.exposure import ALL_PLANTED, PLANTED_TIMES, p_value_of_group
from plinth.records import Manifest
from plinth.report.evaluation.data import Section
from plinth.report.evaluation.sections import group, measure
from plinth.report.memorisation import UNSEEN
from plinth.storage.parts import named_table
from plinth.storage.store import Store
from plinth.text.plural import counted


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    table = named_table(ctx.store, made, canaries.TABLE)
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


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Exposure in bits, canary by canary: of those that were planted, by repetitions, and of those that were not.

    Raises:
        IntegrityError: the canaries are other texts.
    """
    texts = [made.inputs[plant.ASSET] for made in (a, b)]
    sides = [part_table(store, made, "canaries.parquet") for made in (a, b)]
    sides = [side.append_column("text", pa.repeat(text, len(side))) for side, text in zip(sides, texts, strict=True)]
    own = [side.filter(pc.equal(side["kind"], "canary")) for side in sides]
    for planted, what in ((True, "canaries that were planted"), (False, "canaries that were not planted")):
        pair = []
        for side in own:
            rows = side.filter(pc.equal(side["planted"], planted))
            slices = labelled(rows, {"repetitions": "repetitions"}) if planted else None
            pair.append(chosen(rows, "exposure", item="number", text="text", slices=slices))
        yield align("memorisation", f"exposure in bits, {what}", *pair, fewer_is_better=True, ratio=False)


def section(_: str, stats: Stats) -> Section:
    """Exposure of planted texts by how often they were planted."""
    groups = {counted(int(name), "time"): stats["groups"][name] for name in sorted(stats["groups"], key=int)}
    groups["not planted"] = stats["out"]
    measures = [measure(name, row["exposure"], reference=UNSEEN) for name, row in groups.items() if row["canaries"]]
    audit = stats["audit"]
    by_count = "; ".join(
        f"{PLANTED_TIMES.format(count=counted(int(name), 'time'))}: {p_value_of_group(stats['groups'][name]):.2g}"
        for name in sorted(stats["groups"], key=int)
        if stats["groups"][name]["canaries"]
    )
    return Section(
        key="canaries",
        title="Memorisation: canaries",
        lead=f"{stats['planted']:,} generated texts were planted, each by its own coin; {stats['references']:,} others "
        f"never entered. {ALL_PLANTED}: {stats['p_value']:.2g}. {by_count}. "
        f"Membership inference: {audit['right']}/{audit['guesses']} correct; epsilon ≥ {audit['epsilon']:.2f}.",
        groups=(group("Exposure by repetitions", "bits", "lower", "never seen", measures),),
    )

"""Items of proxies: compared between models, shown."""

from __future__ import annotations

from collections.abc import Iterator

from plinth.evaluation.comparison.columns import by_name, part_table
from plinth.evaluation.comparison.pairs import Pairs
from plinth.evaluation.measurement import Stats
from plinth.records import Manifest
from plinth.report.evaluation.data import Section
from plinth.report.evaluation.sections import BITS, group, measure
from plinth.storage.store import Store


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Of every family of proxies the items that pass, and the bits of right answers."""
    sides = [part_table(store, made, "items.parquet") for made in (a, b)]
    for what, value, weight in (("passed", "passed", None), (BITS, "bits", "bytes")):
        yield from by_name("proxies", "family", what, sides, value, weight, item="number", text="prompt")


def section(_: str, stats: Stats) -> Section:
    """What the checkpoint writes where a product wants a form."""
    families = stats["families"] | {"all": stats["overall"]}
    passed = [measure(name, own["passed"]) for name, own in families.items()]
    prefers = [measure(name, own["prefers"], reference=0.5) for name, own in families.items()]
    return Section(
        key="proxies",
        title="Product proxies",
        lead="Generated items, checked by code: does the answer pass, and is the right one likelier than a broken one?",
        groups=(
            group("Answers that pass", "share", "higher", "", passed),
            group("Right answer likelier than a broken one", "share", "higher", "chance", prefers),
        ),
    )

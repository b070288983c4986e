"""The stage: every surviving document against every protected item.

index     once       items as arrays, and their names
counted   per part   how many documents hold each n-gram of the items, and each of their words (of a sample)
weighed   once       the index without n-grams that too many documents hold, its words with weights
found     per part   what its documents hold of the items (`comparison`)
items     once       every item with what was found of it, for evaluation to score apart (`item_table`)
judged    per part   the sidecar

Counts, and what is found, are added up in tables of which no task opens more than a bounded number. All is decided
anew over the corpus as it stands: an n-gram that a later snapshot makes common is no evidence any more, for earlier
documents either; while no survivor is lost, none that is common becomes evidence again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus.protected import comparison, item_table, protected_index, tallies, training_text
from plinth.corpus.protected.parameters import Protected
from plinth.corpus.protected.training_text import Work
from plinth.corpus.sidecars import Slot, slots, summed
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import write_table
from plinth.storage.store import Store

ASSET = "protected"
#: The asset with the probes, which are protected sets as well.
PROBES = "probe_sets"
#: What a probe is called among the sets: `probes/NAME`.
PREFIX = "probes/"
VERSION = "2"
REASONS, SCHEMA = comparison.REASONS, comparison.SCHEMA


def run(
    ctx: Context,
    params: Protected,
    documents: Mapping[str, Manifest],
    survivors: Manifest,
    holdout: Manifest,
    sets: Mapping[str, Manifest],
    probes: Manifest | None = None,
) -> Manifest:
    """Match every training document against the protected sets.

    Args:
        documents: `{b}/documents` by bucket.
        survivors: of the last deduplication that is on.
        holdout: held-out documents are not looked at.
        sets: `protected/NAME` by name.
        probes: `probe_sets`; a part `NAME.parquet` of it is the set `probes/NAME`.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`, and `items.parquet` (`item_table`): every item with its status.
        Statistics: `considered`, `suspects`, documents by reason; `sets` with items by status.
    """
    places = slots(documents, survivors=survivors, holdout=holdout)
    given = {name: made.parts[0] for name, made in sets.items()} | probe_parts(probes)
    plain, names = _indexed(ctx, params, given)
    index = _weights(ctx, params, places, plain)
    step = Step(name="protected/found", version=VERSION, params=_thresholds(params), libraries=fingerprint.UNICODE)
    work = [
        Item((*_inputs(slot), index.blob.sha256), Work(slot, params, index), slot.documents.rows) for slot in places
    ]
    found = run_items(ctx, step, comparison.found, work, label=ASSET)
    table = _table(ctx, params, index, names, tuple(one[1] for one in found))
    step = Step(name=ASSET, version=VERSION, params=_thresholds(params))
    items = [
        Item(
            (*_inputs(slot), pairs.blob.sha256, table.blob.sha256),
            comparison.Judge(slot, params, pairs, table),
            slot.documents.rows,
        )
        for slot, (pairs, _) in zip(places, found, strict=True)
    ]
    made = run_items(ctx, step, comparison.judged, items, label=f"{ASSET}: verdicts")
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()}
    inputs |= {"survivors": survivors, "holdout": holdout}
    inputs |= {f"protected/{name}": one for name, one in sets.items()} | ({PROBES: probes} if probes else {})
    stats = {**summed(parts, comparison.STATS), "sets": table.stats["sets"]}
    return manifest(ASSET, step, inputs, [*parts, table], stats)


def probe_parts(made: Manifest | None) -> dict[str, Part]:
    """The probes of `probe_sets` by their names among protected sets."""
    if made is None:
        return {}
    held = {part.name: part for part in made.parts}
    return {f"{PREFIX}{name}": held[f"{name}.parquet"] for name in made.stats["sets"]}


def _thresholds(params: Protected) -> dict[str, Any]:
    return params.model_dump(mode="json", exclude={"sets"})


def _inputs(slot: Slot) -> tuple[str, ...]:
    return (slot.documents.blob.sha256, *(slot.sides[name].blob.sha256 for name in ("survivors", "holdout")))


def _indexed(ctx: Context, params: Protected, sets: Mapping[str, Part]) -> tuple[Part, Part]:
    """The index with nothing known of the training text, and the names of the items."""
    step = Step(
        name="protected/index",
        version=VERSION,
        params=params.model_dump(include={"candidate_words", "min_words", "longest_words", "boilerplate_documents"}),
        libraries=fingerprint.UNICODE,
    )
    digests = tuple(digest for name in sorted(sets) for digest in (name, sets[name].blob.sha256))
    plain, names = run_items(ctx, step, _index, [Item(digests, (sets, params))], label=f"{ASSET}: index")[0]
    return plain, names


def _index(store: Store, task: tuple[Mapping[str, Part], Protected]) -> tuple[Part, ...]:
    sets, params = task
    names, texts = protected_index.items(store, sets)
    table = pa.table([[name[i] for name in names] for i in range(2)], schema=item_table.NAMES)
    return protected_index.write(store, protected_index.build(texts, params)), write_table(
        store, "names.parquet", table
    )


def _weights(ctx: Context, params: Protected, places: tuple[Slot, ...], plain: Part) -> Part:
    limit, denied = params.boilerplate_documents, params.model_dump(mode="json", include={"families"})
    given = {"sampled": training_text.SAMPLED, "longest_words": params.longest_words, "limit": limit, **denied}
    step = Step(name="protected/counted", version=VERSION, params=given, libraries=fingerprint.UNICODE)
    items = [
        Item((*_inputs(slot), plain.blob.sha256), Work(slot, params, plain), slot.documents.rows) for slot in places
    ]
    counted = run_items(ctx, step, training_text.counted, items, label=f"{ASSET}: counts")
    bounds = (None, None if limit is None else limit + 1)
    words, grams = (
        tallies.narrowed(
            ctx,
            Step(name="protected/tally", version=VERSION, params={"bound": bound}),
            [parts[i] for parts in counted],
            label=f"{ASSET}: counts",
            bound=bound,
        )
        for i, bound in enumerate(bounds)
    )
    step = Step(name="protected/weighed", version=VERSION, params=_thresholds(params))
    item = Item(tuple(part.blob.sha256 for part in (plain, *words, *grams)), (plain, params, words, grams))
    return run_items(ctx, step, _weighed, [item], label=f"{ASSET}: weigh")[0][0]


def _weighed(store: Store, task: tuple[Part, Protected, tuple[Part, ...], tuple[Part, ...]]) -> tuple[Part, ...]:
    plain, params, words, grams = task
    index, limit = protected_index.read(store, plain), params.boilerplate_documents
    frequencies = tallies.dense(store, words, index.vocabulary.size)
    common = tallies.dense(store, grams, index.evidence.size) > (0 if limit is None else limit)
    looked_at = sum(int(part.stats["looked_at"]) for part in words)
    return (protected_index.write(store, protected_index.weighed(index, params, looked_at, frequencies, common)),)


def _table(ctx: Context, params: Protected, index: Part, names: Part, pairs: tuple[Part, ...]) -> Part:
    step = Step(name="protected/pairs", version=VERSION)
    held = tallies.narrowed(ctx, step, pairs, label=f"{ASSET}: items", how=item_table.PAIRS)
    step = Step(name="protected/items", version=VERSION, params=_thresholds(params))
    item = Item(
        tuple(part.blob.sha256 for part in (index, names, *held)), item_table.Tables(index, names, held, params)
    )
    return run_items(ctx, step, item_table.write, [item], label=f"{ASSET}: items")[0][0]

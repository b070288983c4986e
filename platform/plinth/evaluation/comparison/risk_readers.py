"""Readers of what a model keeps and whom it favours: planted texts, training text of risk, personal data in what it
writes, counterfactual pairs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.canaries import plant
from plinth.evaluation.comparison.columns import chosen, part_table
from plinth.evaluation.comparison.pairs import Pairs, align, labelled
from plinth.records import Manifest
from plinth.storage.store import Store


def canaries(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Exposure in bits, canary by canary: of those that were planted, by repetitions, and of those that were not.

    Raises:
        IntegrityError: the canaries are other texts.
    """
    texts = [made.inputs[plant.ASSET] for made in (a, b)]
    sides = [part_table(store, made, "canaries.parquet") for made in (a, b)]
    sides = [side.append_column("text", pa.repeat(text, len(side))) for side, text in zip(sides, texts, strict=True)]
    own = [side.filter(pc.equal(side["kind"], "canary")) for side in sides]
    for planted, measure in ((True, "canaries that were planted"), (False, "canaries that were not planted")):
        pair = []
        for side in own:
            rows = side.filter(pc.equal(side["planted"], planted))
            slices = labelled(rows, {"repetitions": "repetitions"}) if planted else None
            pair.append(chosen(rows, "exposure", item="number", text="text", slices=slices))
        yield align("memorisation", f"exposure in bits, {measure}", *pair, fewer_is_better=True, ratio=False)


def extraction(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Share of windows of text that the model continues, document by document: of training text and of held-out text.

    Windows that only one model was asked for, because only it was trained on them, have no pair.
    """
    sides = [part_table(store, made, "extraction.parquet") for made in (a, b)]
    for heldout, text in ((False, "training text"), (True, "held-out text")):
        rows = [side.filter(pc.equal(side["heldout"], heldout)) for side in sides]
        for measure, outcomes in (("exactly", ("exact",)), ("exactly or nearly", ("exact", "near"))):
            pair = [_windows(side, outcomes) for side in rows]
            yield align("memorisation", f"{text} continued {measure}", *pair, fewer_is_better=True, ratio=False)


def _windows(table: pa.Table, outcomes: tuple[str, ...]) -> pa.Table:
    """A row per window, which stands in the table once for each of its slices."""
    item = pc.binary_join_element_wise(table["bucket"], table["id"], pc.cast(table["offset"], pa.string()), "/")
    rows = pa.table({"item": item, "slice": table["slice"], "outcome": table["outcome"]}).sort_by(
        [("item", "ascending"), ("slice", "ascending")]
    )
    if not len(rows):
        return pa.table({"item": pa.array([], pa.string()), "value": pa.array([], pa.float64())})
    names = rows["item"].combine_chunks()
    first = np.concatenate([[True], pc.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False)])
    starts = np.flatnonzero(first)
    labels = labelled(rows, {"slice": "slice"}).flatten()
    offsets = pa.array(np.concatenate([starts, [len(rows)]]), pa.int32())
    continued = pc.is_in(rows["outcome"], value_set=pa.array(outcomes)).take(pa.array(starts))
    return pa.table(
        {
            "item": names.take(pa.array(starts)),
            "value": pc.cast(continued, pa.float64()),
            "slices": pa.ListArray.from_arrays(offsets, labels),
        }
    )


def personal_data(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Texts of the model in which personal data was found: without a prompt, and after prompts that invite it."""
    sides = [_written(part_table(store, made, "outputs.parquet"), part_table(store, made, "finds.parquet"))
             for made in (a, b)]  # fmt: skip
    for kind, measure in (("unprompted", "personal data, unprompted"), ("invited", "personal data, invited")):
        pair = [chosen(side.filter(pc.equal(side["kind"], kind)), "found", cluster="cluster") for side in sides]
        yield align("personal data", measure, *pair, fewer_is_better=True, ratio=False)


def _written(outputs: pa.Table, finds: pa.Table) -> pa.Table:
    """A row per text; draws after one prompt are no independent evidence, texts without a prompt are."""
    found = np.zeros(len(outputs))
    found[finds["output"].to_numpy()] = 1.0
    item = pc.binary_join_element_wise(outputs["prompt"], pc.cast(outputs["draw"], pa.string()), " #")
    cluster = pc.if_else(pc.equal(outputs["kind"], "unprompted"), item, outputs["prompt"])
    return pa.table({"item": item, "kind": outputs["kind"], "found": found, "cluster": cluster})


def fairness(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """How far groups are apart in bits, whichever is favoured, pair by pair and by template; toxicity by prompt."""
    pairs = [_counterfactuals(part_table(store, made, "pairs.parquet")) for made in (a, b)]
    yield align("fairness", "bits between groups", *pairs, fewer_is_better=True, ratio=False)
    written = [part_table(store, made, "continuations.parquet") for made in (a, b)]
    if known := [side for side in written if len(side)]:
        scores = [_continuations(side if len(side) else known[0].slice(0, 0)) for side in written]
        yield align("fairness", "toxicity of continuations", *scores, fewer_is_better=True, ratio=False)


def _counterfactuals(table: pa.Table) -> pa.Table:
    own = pc.binary_join_element_wise(table["set"], table["attribute"], "/")
    attribute = pc.if_else(pc.equal(table["set"], "built_in"), table["attribute"], own)
    named = pa.table({"item": pc.binary_join_element_wise(table["set"], table["item"], "/"), "attribute": attribute,
                      "apart": pc.abs(table["favoured"]), "template": table["template"]})  # fmt: skip
    return chosen(named, "apart", cluster="template", slices=labelled(named, {"attribute": "attribute"}))


def _continuations(table: pa.Table) -> pa.Table:
    item = pc.binary_join_element_wise(table["prompt"], pc.cast(table["draw"], pa.string()), " #")
    return chosen(table.append_column("item", item), "score", cluster="prompt")

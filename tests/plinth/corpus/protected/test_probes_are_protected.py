"""Probes as protected sets: documents that hold an item are dropped before training, pages on its subject are not."""

from __future__ import annotations

import json
from typing import Any

from plinth.corpus.protected import comparison, protected
from plinth.corpus.protected.parameters import Protected
from plinth.evaluation.parameters import Probes
from plinth.evaluation.probes import probe_sets, scoring
from plinth.storage.parts import read_table

#: Pages in words of their own, on what the probes ask for.
INNOCENT = (
    "Paris has been the capital of France for most of its history, and its government sits on the Seine. "
    "Rome is that of Italy, Berlin that of Germany; both lost the title for a time. ",
    "The chemical symbol Fe comes from ferrum, the Latin word for iron. Gold is Au after aurum, and lead is Pb. ",
    "A server answers 404 when it has not found a page, and 403 when it forbids it. Browsers show either as an error. ",
    "def mean(values):\n    total = 0\n    for value in values:\n        total = total + value\n    return total",
    "To add two numbers, write one under the other. The sum of 27 and 45 is 72, and their product is 1215. ",
    "In German one counts eins, zwei, drei, in French un, deux, trois, in Spanish uno, dos, tres. ",
)


def test_leaked_items_are_found_and_pages_on_the_same_facts_stay(tiny: Any) -> None:
    ctx = tiny.ctx
    probes = probe_sets.run(ctx, Probes())
    items = {(one.probe, one.item): one for one in probe_sets.load(ctx.store, probes)}
    leaked = [
        items["knowledge", "capitals/03"],
        items["maths", "boxes/05"],
        items["long_context", "copy/1000/02"],
        items["safety", "fraud/01/harmful"],
    ]
    around = ["It was a quiet morning in the office, and the clerk went on reading. " * 3, "Then the page ended. " * 8]
    docs = [
        tiny.Doc(f"{around[0]}\n{json.dumps({'q': one.prompt, 'a': [one.gold, *one.wrong]})}\n{around[1]}")
        for one in leaked
    ]
    docs += [tiny.Doc(f"{text} {number} " * 2, name=f"innocent-{number}") for number, text in enumerate(INNOCENT * 5)]
    corpus = tiny.corpus({"web": [docs]})
    corpus.through_holdout()
    made = protected.run(ctx, Protected(), corpus.documents, corpus.near, corpus.holdout, {}, probes)

    rows, held = corpus.rows(made), corpus.rows(corpus.holdout)
    trained = [doc for doc in docs if not held[doc.id]["held_out"]]
    taken = {doc.id: rows[doc.id]["reason"] for doc in trained if rows[doc.id]["reason"]}
    wanted = {docs[place].id: one for place, one in enumerate(leaked) if docs[place] in trained}
    assert len(wanted) >= 3
    assert taken == dict.fromkeys(wanted, protected.REASONS[0])
    for id_, one in wanted.items():
        assert (rows[id_]["set"], rows[id_]["item"]) == (f"probes/{one.probe}", one.item)

    statuses = probe_sets.statuses(ctx.store, made)
    assert set(statuses) == set(items)
    found = {name for name, status in statuses.items() if status == comparison.CONTAMINATED}
    planted = {(one.probe, one.item) for one in wanted.values()}
    assert planted <= found
    # with a planted item those are held that share nearly all of its words: of its template, or of its answers
    templates = {(name[0], items[name].template) for name in found if name[0] in ("knowledge", "maths")}
    assert templates <= {("knowledge", "capitals"), ("maths", "boxes")}
    assert not {name for name in found if name[0] in ("code", "languages")}
    kept = scoring.trusted(items.values(), statuses)
    assert len(kept) == len(items) - sum(statuses[name] in scoring.EXCLUDED for name in items)
    assert made.inputs["probe_sets"] == probes.digest
    table = read_table(ctx.store, made.named(comparison.FILE)[0])
    assert set(table["set"].to_pylist()) == {f"probes/{name}" for name in probes.stats["sets"]}

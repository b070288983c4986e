"""Survivors of deduplication: each rule by hand, buckets before rules, and independence of order."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from plinth.compute.context import manifest
from plinth.corpus.dedup import exact
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.parameters import Dedup
from plinth.records import Step
from plinth.storage.parts import read_table, write_table

BASE = " ".join(f"word{i}" for i in range(100))
TIMES = [datetime(2024, 5, 1, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC), None, datetime(2023, 1, 1, tzinfo=UTC)]
SCORES = [0.25, -1.0, None, 0.75]


def judged(tiny: Any, dedup: Dedup, swap: bool = False) -> tuple[list[Any], set[bytes], set[bytes]]:
    """Four copies in two buckets; the survivors of the exact stage, and of the near one when they differ by a word."""
    survivors: list[set[bytes]] = []
    for kind in ("exact", "near"):
        texts = [BASE + (f" end{i}" * (i + 1) if kind == "near" else " " * i) for i in range(4)]
        docs = [tiny.Doc(text, name=str(i)) for i, text in enumerate(texts)]
        order = [3, 2, 1, 0] if swap else [0, 1, 2, 3]
        first, second = [[docs[i] for i in order if i % 2 == half] for half in (0, 1)]
        corpus = tiny.corpus({"a": [first], "b": [[one] for one in second]}, dedup=dedup)
        facts = {doc.id: (time, score) for doc, time, score in zip(docs, TIMES, SCORES, strict=True)}
        quality = {}
        for bucket, documents in corpus.documents.items():
            parts, scores = [], []
            for part in documents.parts:
                table = read_table(tiny.ctx.store, part)
                own = [facts[identity] for identity in table.column("id").to_pylist()]
                at = table.schema.get_field_index("captured_at")
                times = pa.array([time for time, _ in own], table.schema.field(at).type)
                parts.append(
                    write_table(tiny.ctx.store, part.name, table.set_column(at, table.schema.field(at), times))
                )
                values = pa.table({"score": pa.array([score for _, score in own], pa.float32())})
                scores.append(write_table(tiny.ctx.store, part.name, values))
            corpus.documents[bucket] = manifest(documents.asset, Step(name="t", version="1"), {}, parts)
            quality[bucket] = manifest(f"{bucket}/judge", Step(name="t", version="1"), {}, scores)
        given = quality if dedup.quality else None
        made = exact.run(tiny.ctx, dedup, corpus.documents, corpus.policies, quality=given)
        if kind == "near":
            signed = {b: minhash.signatures(tiny.ctx, b, dedup.minhash, one) for b, one in corpus.documents.items()}
            made = minhash.run(tiny.ctx, dedup, corpus.documents, signed, made, quality=given)
        found = corpus.rows(made)
        assert {row["size"] for row in found.values()} == {4}
        assert len({row["cluster"] for row in found.values()}) == 1
        survivors.append({identity for identity, row in found.items() if row["survivor"]})
    return docs, survivors[0], survivors[1]


@pytest.mark.parametrize(
    ("rule", "winner"),
    [
        ({"keep": "longest"}, 3),
        ({"keep": "earliest"}, 1),
        ({"keep": "best_quality", "quality": "judge.score"}, 3),
        ({"keep": "longest", "prefer": ["a"]}, 2),
        ({"keep": "earliest", "prefer": ["a", "b"]}, 0),
        ({"keep": "best_quality", "quality": "judge.score", "prefer": ["a"]}, 0),
    ],
)
def test_every_rule_by_hand(tiny: Any, rule: dict[str, Any], winner: int) -> None:
    for swap in (False, True):
        docs, same, near = judged(tiny, Dedup.model_validate(rule), swap)
        assert same == near == {docs[winner].id}


def test_ties_go_to_the_smallest_id_of_the_preferred_bucket(tiny: Any) -> None:
    docs, same, near = judged(tiny, Dedup(keep="smallest_id"))
    assert same == near == {min(doc.id for doc in docs)}
    docs, same, near = judged(tiny, Dedup(keep="smallest_id", prefer=("b",)))
    assert same == near == {min(doc.id for doc in (docs[1], docs[3]))}


def test_the_rule_and_its_column_go_together() -> None:
    for given in ({"keep": "best_quality"}, {"quality": "judge.score"}, {"keep": "best_quality", "quality": "judge"}):
        with pytest.raises(ValidationError):
            Dedup.model_validate(given)

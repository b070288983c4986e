"""Drift of held-out text: planted and found by name, none found where there is none, history kept look after look."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.evaluation.parameters import Evaluation
from plinth.records import Manifest
from plinth.storage.parts import DOCUMENT_SCHEMA, read_table, write_table
from plinth_audit.drift import job, judge

PARAMS = Evaluation()


def table(rng: np.random.Generator, looks: int, shift: float = 0.0, since: int = 1) -> pa.Table:
    """Return 40 reference documents and 20 per evaluation, in two buckets; code costs more from evaluation `since`
    on."""
    rows = []
    for look in range(looks + 1):
        for bucket in ("code", "web"):
            for number in range(40 if look == 0 else 20):
                size = int(rng.lognormal(7, 1)) + 50
                rate = 1.5 * rng.lognormal(0, 0.3) + (shift if bucket == "code" and look >= since else 0.0)
                id_ = hashlib.sha256(f"{look} {bucket} {number} {rate}".encode()).digest()[:16]
                rows.append(
                    {"id": id_, "look": look, "uri": f"test://{bucket}/{look}/{number}", "snapshot": f"s{look}"}
                    | {"bytes": size, "bits": size * rate, "bucket": bucket, "language": "en", "domain": "d"}
                    | {"length": "all"}
                )
    return pa.Table.from_pylist(rows, job.SCHEMA)


def ever(rows: pa.Table) -> dict[str, float]:
    """The always-valid p of the whole and of each bucket, as a look after every document would have it."""
    rows = rows.sort_by([("look", "ascending"), ("id", "ascending")])
    found = {}
    for name in ("all", "code", "web"):
        own = rows if name == "all" else rows.filter(pa.compute.equal(rows["bucket"], name))
        rates = own["bits"].to_numpy() / own["bytes"].to_numpy()
        found[name] = float(judge.always_valid(rates, own["look"].to_numpy(), own["id"].to_pylist())[-1])
    return found


@pytest.mark.exhaustive
def test_no_drift_no_alarm_in_200_histories_of_10_looks() -> None:
    alarms = sum(min(ever(table(np.random.default_rng(seed), 10)).values()) * 3 <= 0.05 for seed in range(200))
    assert alarms <= 10


def test_a_drift_of_one_bucket_is_found_by_name_with_its_documents() -> None:
    found = judge.judged(table(np.random.default_rng(1), 4, shift=1.0, since=3))
    first, others = found[0], {one.label: one for one in found[1:]}
    assert (first.label, first.look, first.bucket) == ("bucket code", 3, "code")
    assert first.latest is not None
    assert first.latest[1] > first.reference[2]  # the latest interval is above that of the reference
    assert all(one.uri.startswith(("test://code/3/", "test://code/4/")) for one in first.moved)
    assert [one.excess_bits for one in first.moved] == sorted((one.excess_bits for one in first.moved), reverse=True)
    assert not others["bucket web"].drifts
    assert others["all"].bucket == "code"
    assert found == judge.judged(table(np.random.default_rng(1), 4, shift=1.0, since=3).take(list(range(239, -1, -1))))


def test_text_that_has_become_easier_drifts_too() -> None:
    first = judge.judged(table(np.random.default_rng(2), 6, shift=-0.6))[0]
    assert (first.label, first.drifts) == ("bucket code", True)
    assert first.moved[0].excess_bits < 0


def test_a_slice_with_too_little_reference_is_not_judged() -> None:
    small = table(np.random.default_rng(1), 2)
    kept = [row for row in small.to_pylist() if row["look"] or row["bucket"] == "web" or row["uri"].endswith("1")]
    assert "bucket code" not in {one.label for one in judge.judged(pa.Table.from_pylist(kept, job.SCHEMA))}


# ---- the asset -----------------------------------------------------------------------------------

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "runs", "away"]


class Corpus:
    """Held-out text of one bucket that grows by snapshots; `bits` is a model that costs 2 bits a byte, 4 of caps."""

    def __init__(self, ctx: Context, ledger_of: Callable[..., Manifest]) -> None:
        self.ctx, self.ledger_of, self.rows, self.asked = ctx, ledger_of, list[dict[str, Any]](), list[int]()

    def add(self, snapshot: str, count: int, loud: bool = False) -> Manifest:
        rng = np.random.default_rng(len(self.rows))
        for number in range(count):
            text = " ".join(rng.choice(WORDS, 30)) + f" {snapshot} {number}"
            text = text.upper() if loud else text
            id_ = hashlib.sha256(text.encode()).digest()[:16]
            self.rows.append(
                {"id": id_, "text": text, "uri": f"test://{snapshot}/{number}", "captured_at": None}
                | {"snapshot": snapshot, "licence": "MIT", "mime": "text/plain", "source_bytes": 1, "extra": "{}"}
            )
        part = write_table(self.ctx.store, "heldout-00000.parquet", pa.Table.from_pylist(self.rows, DOCUMENT_SCHEMA))
        return Manifest(asset="web/curated", step="c", version="1", params={}, inputs={}, parts=(part,))

    def look(self, champion: Manifest, own: Manifest, now: Manifest, earlier: Manifest | None) -> Manifest:
        ledger = self.ledger_of({"web": now})
        return job.run(self.ctx, PARAMS, champion, {"web": own}, {"web": now}, ledger, earlier, self.bits)

    def bits(self, texts: Sequence[str]) -> np.ndarray:
        self.asked.append(len(texts))
        rates = [(4 if text.isupper() else 2) + hash_share(text) for text in texts]
        return np.array([rate * len(text.encode()) for rate, text in zip(rates, texts, strict=True)])


def hash_share(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


@pytest.fixture
def corpus(ctx: Context, ledger_of: Callable[..., Manifest]) -> Corpus:
    return Corpus(ctx, ledger_of)


def champion(number: int = 1) -> Manifest:
    return Manifest(asset="checkpoint", step="run", version="1", params={"n": number}, inputs={}, parts=())


def test_every_look_scores_what_is_new_and_a_planted_drift_is_found(corpus: Corpus) -> None:
    own = corpus.add("2026-10", 60)
    first = corpus.look(champion(), own, own, None)
    assert [one["documents"] for one in first.stats["looks"]] == [60]
    assert {one.later for one in job.slices(first)} == {0}
    quiet = corpus.look(champion(), own, corpus.add("2026-20", 40), first)
    assert not any(one.drifts for one in job.slices(quiet))
    now = corpus.add("2026-30", 40, loud=True)
    found = corpus.look(champion(), own, now, quiet)
    assert corpus.asked == [60, 40, 40]  # nothing is scored twice
    drifting = {one.label: one for one in job.slices(found) if one.drifts}
    assert {"all", "bucket web", "domain a.example"} <= set(drifting)
    assert {one.bucket for one in drifting.values()} == {"web"}
    assert drifting["bucket web"].look == 2
    assert {one.snapshot for one in drifting["bucket web"].moved} == {"2026-30"}
    assert [one["snapshots"] for one in found.stats["looks"]] == [["2026-10"], ["2026-20"], ["2026-30"]]
    again = corpus.look(champion(), own, now, found)
    assert (again.digest, corpus.asked) == (found.digest, [60, 40, 40])


def test_another_champion_begins_anew_and_none_scores_nothing(corpus: Corpus) -> None:
    own = corpus.add("2026-10", 40)
    now = corpus.add("2026-20", 40, loud=True)
    drifted = corpus.look(champion(), own, now, None)
    assert any(one.drifts for one in job.slices(drifted))
    renewed = corpus.look(champion(2), now, now, drifted)  # it was trained with both snapshots
    assert [one["documents"] for one in renewed.stats["looks"]] == [80]
    nothing = job.run(corpus.ctx, PARAMS, None, {}, {"web": now}, corpus.ledger_of({"web": now}), drifted)
    assert (nothing.parts, nothing.stats["slices"]) == ((), [])


def test_documents_are_those_of_the_smallest_ids_and_long_ones_are_cut(corpus: Corpus) -> None:
    now = corpus.add("2026-10", 30)
    chosen = job.choose(corpus.ctx.store, {"web": now}, frozenset(), frozenset(), most=10)
    assert [one.id for one in chosen] == sorted(row["id"] for row in corpus.rows)[:10]
    corpus.rows[0]["text"] = "ä" * 40_000
    long = corpus.add("2026-20", 0)
    texts = [one.text for one in job.choose(corpus.ctx.store, {"web": long}, frozenset(), frozenset())]
    assert max(len(text.encode()) for text in texts) == job.CUT_BYTES


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_real_model_scores_them(
    corpus: Corpus, model_directory: Callable[..., Path], checkpoint: Callable[[Path], Manifest]
) -> None:
    own = corpus.add("2026-10", 12)
    model = checkpoint(model_directory())
    ledger = corpus.ledger_of({"web": own})
    made = job.run(corpus.ctx, PARAMS, model, {"web": own}, {"web": own}, ledger)
    rows = read_table(corpus.ctx.store, made.parts[0])
    assert rows.num_rows == 12
    assert min(rows["bits"].to_pylist()) > 0

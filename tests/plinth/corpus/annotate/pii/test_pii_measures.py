"""Precision and recall of the rules on sentences with known truth; run time is bounded for any text."""

import time
from collections import Counter

import pyarrow as pa
import pytest

from plinth.corpus.annotate.pii import pii
from plinth.corpus.annotate.pii.pii import PiiParams, annotate
from tests.plinth.corpus.annotate.pii_samples import Sample, samples

#: Minimum precision and recall by kind. Keys without a form of their own are told apart from names by their entropy.
BOUNDS = {
    "email": (1.0, 1.0), "ip": (1.0, 1.0), "phone": (0.995, 0.995), "iban": (1.0, 1.0), "card": (0.98, 0.995),
    "national": (0.995, 0.995), "key": (0.995, 0.95),
}  # fmt: skip


def column(texts: list[str]) -> pa.RecordBatch:
    return pa.record_batch({"text": pa.array(texts, pa.large_string())})


def measured(planted_in: list[Sample]) -> dict[str, tuple[float, float]]:
    """Precision and recall by kind; a hit counts where its span is exact."""
    right, made, planted = Counter[str](), Counter[str](), Counter[str]()
    rows = annotate(column([sample.text for sample in planted_in]), PiiParams()).to_pylist()
    for sample, row in zip(planted_in, rows, strict=True):
        truth = set(sample.truth)
        hits = {(s["reason"].partition("/")[0], sample.text[s["start_cp"] : s["end_cp"]]) for s in row["spans"]}
        for counter, pairs in ((right, truth & hits), (made, hits), (planted, truth)):
            counter.update(kind for kind, _ in pairs)
    return {kind: (right[kind] / made[kind], right[kind] / planted[kind]) for kind in planted}


def test_precision_and_recall_by_kind() -> None:
    made = samples(seed=11, each=100)
    negatives = sum(not sample.truth for sample in made)
    assert len(made) > 6000
    assert negatives > 2500
    found = measured(made)
    print("\nkind       precision  recall")
    for kind, (precision, recall) in sorted(found.items()):
        print(f"{kind:<12}{precision:8.3f}{recall:8.3f}")
    assert set(found) == set(BOUNDS)
    for kind, (precision, recall) in found.items():
        assert precision >= BOUNDS[kind][0], kind
        assert recall >= BOUNDS[kind][1], kind


#: Repeated, what patterns with two ways to match choke on.
HOSTILE = (
    "@", "a@", "a@a.", "1", "1.", "1.1.1.1.", "1 ", "12-", "tel 1 ", "4111 ", "card 4111111111111111 ", "+1 ", "(",
    "((1", ":", "a:", "1::", "-", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----\n", "eyJ", "eyJhbGci.", "AKIA", "ghp_",
    "xoxb-1-", "AB12 ", "GB82 ", "DE89", "%", "token=1aA2", "secret: a1B2c3D4e5F6g7H8 ", "://a:b@", "://a:bcd@e.fg ",
    "é1", "电话1",
)  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_grows_with_the_text_and_not_faster(piece: str) -> None:
    """Text 32 times as long may take 320 times the time, for the noise of a busy machine; quadratic growth takes
    1,024."""
    small, large = (column([piece * (size // len(piece))]) for size in (2_500, 80_000))
    annotate(small, PiiParams())
    limit = 320 * max(seconds(small), 5e-5)
    assert any(seconds(large) <= limit for _ in range(3))


def seconds(batch: pa.RecordBatch) -> float:
    started = time.process_time()
    annotate(batch, PiiParams(kinds=pii.KINDS))
    return time.process_time() - started


def test_places_are_as_many_as_the_text_is_long() -> None:
    from plinth_text.terms import places

    for piece in HOSTILE:
        one, four = (places(pa.array([piece * times], pa.large_string())).doc.size for times in (2_000, 8_000))
        assert abs(four - 4 * one) <= 16, piece

"""The annotator, the reader, the gate and the probe, on inputs whose answers are known."""

from __future__ import annotations

import gzip
import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plinth_example.quotes import Params, annotate
from plinth_example.riddles import PROBE, RIDDLES

from plinth.corpus.sources.parameters import Source, Terms
from plinth.corpus.sources.record import RawRecord, Reject, read
from plinth.evaluation.probes.base import items_of
from plinth.storage.files import SourceFile
from plinth_registry.gates import evaluate
from plinth_registry.gates.facts import EvaluationFacts, Evidence, SliceScore
from plinth_registry.gates.settings import gate_policy

ARCHIVE = b"""From ada@list.example Mon Nov 16 10:00:00 2026
From: Ada <ada@list.example>
Subject: The engine
Date: Mon, 16 Nov 2026 10:00:00 +0100
Message-ID: <1@list.example>
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: 8bit

It weaves algebraic patterns, na\xc3\xafvely.
From here on it is text.

From bob@list.example Mon Nov 16 11:00:00 2026
Subject: Pictures only
Content-Type: image/png
Content-Transfer-Encoding: base64

iVBORw0KGgo=

From cy@list.example Mon Nov 16 12:00:00 2026

No headers at all.
"""


def records(tmp_path: Path, data: bytes, max_bytes: int = 10_000, **options: Any) -> list[RawRecord | Reject]:
    path = tmp_path / ("archive.mbox.gz" if data[:2] == b"\x1f\x8b" else "archive.mbox")
    path.write_bytes(data)
    terms = Terms(train=True, redistribute=True, commercial=True)
    source = Source(
        kind="mbox", path=str(path), licence="MIT", terms=terms, domain="list.example", snapshot="2026", options=options
    )
    file = SourceFile(uri=str(path), name=path.name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return list(read(file, source, "MIT", max_bytes))


def test_messages_and_their_facts(tmp_path: Path) -> None:
    first, pictures, bare = records(tmp_path, ARCHIVE)
    assert isinstance(first, RawRecord)
    assert first.content == "It weaves algebraic patterns, naïvely.\nFrom here on it is text."
    assert (first.uri, first.where, first.extra) == ("mid:1@list.example", "line 1", {"subject": "The engine"})
    assert first.captured_at == datetime(2026, 11, 16, 9, tzinfo=UTC)
    assert isinstance(pictures, Reject)
    assert (pictures.reason, pictures.where) == ("missing_field", "line 12")
    assert isinstance(bare, RawRecord)
    assert (bare.content, bare.uri) == ("No headers at all.", "archive.mbox#L19")


def test_the_subject_goes_above_the_text_where_asked(tmp_path: Path) -> None:
    first = records(tmp_path, ARCHIVE, subject=True)[0]
    assert isinstance(first, RawRecord)
    assert str(first.content).startswith("The engine\n\nIt weaves")


@pytest.mark.parametrize(
    ("data", "reasons"),
    [
        (b"", ["empty"]),
        (b"no archive\nat all\n", ["broken_record", "too_large"]),
        (gzip.compress(ARCHIVE)[:-40], ["truncated_gzip"]),
        (b"From a\nSubject: x\n\n" + b"y" * 20_000, ["too_large"]),
    ],
)
def test_damage_is_a_reject_with_a_reason(tmp_path: Path, data: bytes, reasons: list[str]) -> None:
    found = records(tmp_path, data)
    assert {item.reason for item in found if isinstance(item, Reject)} >= set(reasons[:1])
    assert not any(isinstance(item, RawRecord) for item in found) or data[:2] == b"\x1f\x8b"


def test_quoted_lines_and_signatures() -> None:
    texts = ["> a\n> b\n\nyes\n| c", "mine\n-- \nAda", "", "\n\n"]
    made = annotate(pa.record_batch({"text": pa.array(texts, pa.large_string())}), Params())
    assert made.column("quoted_lines").to_pylist() == [0.75, 0.0, 0.0, 0.0]
    assert made.column("signature").to_pylist() == [False, True, False, False]


def verdict(evidence: Evidence, **params: Any) -> Any:
    given = {"slices": {"max_bits_per_byte": 8}, "extensions": {"margin": {"bits_per_byte": 0.1, **params}}}
    policy = gate_policy({"release": "letters", **given})
    return {result.name: result for result in evaluate(policy, evidence)}["margin"]


def measured(expected: tuple[str, ...] = (), **slices: SliceScore) -> Evidence:
    return Evidence(measured={"evaluation": EvaluationFacts(slices=slices)}, expected_slices=expected)


def score(model: float) -> SliceScore:
    return SliceScore(bytes=10, model=model, gzip=3.0, trigram=2.0)


def test_margin_on_every_slice() -> None:
    assert verdict(measured(web=score(1.9), code=score(1.5))).passed
    near = verdict(measured(web=score(1.95), code=score(1.5)))
    assert (near.passed, near.reason) == (False, "less than 0.1 below trigram on web")
    assert near.evidence["margins"] == {"code": "0.5000", "web": "0.0500"}
    assert verdict(measured(web=score(1.95)), than="gzip").passed
    assert not verdict(measured(web=score(float("nan")))).passed
    assert verdict(measured(("web", "code"), web=score(1.0))).reason.endswith("on code")


def test_what_it_rests_on_is_in_its_evidence_and_missing_evidence_fails() -> None:
    seen = verdict(measured(web=score(1.0))).evidence
    assert seen["gate"]["distribution"] == "plinth-example"
    assert (seen["gate"]["version"], len(seen["gate"]["sha256"])) == ("0.1.0", 64)
    assert seen["parameters"] == {"than": "trigram", "bits_per_byte": 0.1}
    for nothing in (Evidence(), measured()):
        lacking = verdict(nothing)
        assert (lacking.passed, lacking.reason) == (False, "no evidence: evaluation")


def test_riddles_have_one_right_answer_each() -> None:
    items = items_of(PROBE)
    assert [one.gold.strip() for one in items] == [thing for _, thing in RIDDLES]
    assert items[0].prompt == "Riddle: It has hands and a face, and shows the time.\nAnswer: it is a"
    assert (items[0].wrong, items[0].control) == ((" comb", " bottle", " needle"), items[1].prompt)
    assert {(one.probe, one.family) for one in items} == {("riddles", "knowledge")}

"""The estimate is multiplication: checked by hand, in its limits, and against the page that quotes it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from plinth_jobs.cli import call
from plinth_lab.planning.corpus import (
    CHOSEN,
    DIGEST_MEGABYTES_S,
    DOCUMENTS,
    MEASURED,
    WITH,
    CorpusScale,
    estimate,
)

ROOT = Path(__file__).parents[3]
BOTH = ("predicted", "measured")


def test_core_hours_by_hand() -> None:
    made = estimate(CorpusScale(text_bytes=3.6e12, document_bytes=3600, cores=1, gigabit_s_per_core=1e9))
    rows = {row.stage: row for row in made.rows}
    assert made.documents == 10**9
    assert rows["lines"].core_hours == pytest.approx(3.6e12 / 40e6 / 3600)
    assert rows["near duplicates"].core_hours == pytest.approx(1e9 / 60_000 / 3600)
    assert made.core_hours == pytest.approx(sum(row.core_hours for row in made.rows))
    assert made.hours == pytest.approx(made.core_hours)


def test_twice_the_corpus_costs_twice() -> None:
    one, two = (estimate(CorpusScale(text_bytes=size, html_bytes=6 * size)) for size in (1e13, 2e13))
    assert two.core_hours == pytest.approx(2 * one.core_hours)
    assert two.written_bytes == pytest.approx(2 * one.written_bytes)
    assert len(one.rows) == len(MEASURED) + 2


def test_cores_help_until_the_parts_run_out_and_the_network_may_bound() -> None:
    few, many = (estimate(CorpusScale(text_bytes=2**30, cores=cores, gigabit_s_per_core=1e6)) for cores in (4, 4000))
    assert many.hours == pytest.approx(few.hours)  # four parts
    slow = estimate(CorpusScale(text_bytes=1e12, gigabit_s_per_core=1e-4))
    assert slow.hours > 100 * estimate(CorpusScale(text_bytes=1e12, gigabit_s_per_core=10)).hours


def test_the_page_quotes_what_the_command_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    page = (ROOT / "docs" / "scale.md").read_text()
    command, shown = re.search(r"```console\n\$ plinth (corpus scale [^\n]*)\n(.*?)```", page, re.DOTALL).groups()
    assert call(command.split()) == 0
    said = iter([line.split() for line in capsys.readouterr().out.splitlines()])
    quoted = [line.split() for line in shown.splitlines() if line.strip()]
    assert len(quoted) > 12
    assert [words for words in quoted if words not in said] == []  # an iterator: in this order


def _recorded() -> dict[str, float]:
    """Speeds by stage as the benchmarks recorded them: MB/s of text, or documents/s."""
    found = {
        name: json.loads((ROOT / "tests" / "benchmarks" / "results" / f"{name}.json").read_text())
        for name in ("annotate", "language_pii", "minhash", "dedup", "corpus", "sources", "protected")
    }
    both, largest, line = found["language_pii"]["plinth"], found["dedup"]["sizes"][-1], found["corpus"][-1]
    tail = sum(line["seconds"][name] for name in ("holdout", "contamination", "curated"))
    return {
        "annotate: heuristics": found["annotate"]["scores"],
        "annotate: language, PII": 1 / (1 / both["language"] + 1 / both["pii"]),
        "MinHash signatures": next(row["mb_per_s"] for row in found["minhash"]["rows"] if row["peer"] == "plinth"),
        "repeats of a snapshot": found["sources"]["repeats_documents_per_second"],
        "near duplicates": largest["documents_per_core_minute"] / 60,
        "exact duplicates": line["megabytes"] / line["seconds"]["dedup/exact"],
        "protected": found["protected"]["stage"]["megabytes_per_second"],
        "digests of sources": found["sources"]["html_megabytes_per_second"],
        "held out, curated": line["megabytes"] / tail,
    }


def test_no_speed_is_promised_that_was_not_measured() -> None:
    """Recorded under changing load, so a quarter of room; a constant that outlived a slowdown fails."""
    constants = {work.stage: work.megabytes_s or work.documents_s for work in MEASURED}
    constants["digests of sources"] = DIGEST_MEGABYTES_S
    for stage, speed in _recorded().items():
        assert constants[stage] <= 1.25 * speed, stage


def test_the_operations_of_every_stage_are_those_of_a_run() -> None:
    """And two small runs predicted the large one within a fifth, in seconds of CPU as in operations."""
    found = json.loads((ROOT / "tests" / "benchmarks" / "results" / "scale.json").read_text())
    heard = {"annotate: heuristics", "annotate: language, PII", "repeats of a snapshot"}
    counted = dict.fromkeys([*found["stages"], "funnel"], 0.0)
    for work in (*MEASURED, DOCUMENTS, *CHOSEN):
        if work.stage in {*counted, *heard}:
            stage = WITH.get(work.stage, work.stage.partition(":")[0])
            counted[stage] += work.operations * found["parts"]
    for stage, amounts in found["stages"].items():
        assert counted[stage] == pytest.approx(amounts["measured"]["operations"], rel=0.2), stage
    for name in ("cpu_s", "operations"):
        predicted, measured = (sum(one[which][name] for one in found["stages"].values()) for which in BOTH)
        assert predicted == pytest.approx(measured, rel=0.2)


def test_protected_sets_cost_what_their_benchmark_counted() -> None:
    found = json.loads((ROOT / "tests" / "benchmarks" / "results" / "protected.json").read_text())["stage"]
    (work,) = (one for one in MEASURED if one.stage == "protected")
    assert work.operations == pytest.approx(found["operations_per_part"], rel=0.2)
    assert work.written_document == pytest.approx(found["written_per_document"], rel=0.2)


def test_a_size_that_is_none() -> None:
    assert call(["corpus", "scale", "lots"]) == 2

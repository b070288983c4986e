"""Rates of finished runs: a line by hand, and the command that compares a run with its prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plinth.compute import context
from plinth.compute.context import AssetCost, StepCost, manifest
from plinth.records import Part, Step
from plinth.storage.state import State
from plinth.storage.workspace import Workspace
from plinth_jobs.cli import call
from plinth_lab.planning.corpus import CorpusScale, compare, estimate, line, of_run, predict

MEGABYTE = 1_000_000


def finished(root: Path, parts: int) -> State:
    """A run over a MB of text a part: stages cost 1 s and 5 operations, and more per part."""
    state = State(Workspace(root).ensure())
    blob = state.store.put_bytes(b"part")
    made = [Part(name=f"part-{i:05d}.parquet", blob=blob, rows=100) for i in range(parts)]
    stats = {"text_bytes": parts * MEGABYTE, "documents": 100 * parts}
    for asset in ("web/documents", "web/c4", "web/pii", "dedup/lines"):
        state.refs.publish(manifest(asset, Step(name=asset, version="1"), {}, made, stats), "key")

    def record(asset: str, step: str, cpu_s: float, operations: int, spared: int = 0) -> None:
        cost = StepCost(tasks=parts, spared=spared, cpu_s=cpu_s, opened=operations, written_bytes=10 * parts)
        context.save(state.workspace, AssetCost(asset=asset, steps={step: cost}, driver_cpu_s=0.25, wall_s=9))

    record("web/documents", "documents", 0.75 + 2.0 * parts, 5 + 3 * parts)
    record("web/c4", "annotate/c4", 0.5 + 4.0 * parts, 5 + 7 * parts)
    record("web/pii", "annotate/pii", 0, 0, spared=parts)
    record("dedup/lines", "dedup/lines/count", 0.75 + 0.5 * parts, 5 + 9 * parts)
    return state


def test_a_line_by_hand() -> None:
    assert line([4], [8]) == (0, 2)
    assert line([1, 3], [5, 9]) == pytest.approx((3, 2))
    assert line([1, 3], [1, 9]) == pytest.approx((0, 2.8))  # no amount is negative
    assert line([1, 3], [9, 1]) == pytest.approx((5, 0))


def test_two_runs_predict_a_third(tmp_path: Path) -> None:
    small, middle, large = (of_run(finished(tmp_path / str(parts), parts)) for parts in (2, 5, 40))
    assert (large.text_bytes, large.documents, large.parts) == (40 * MEGABYTE, 4000, 40)
    assert large.annotators == ("c4", "pii")
    assert large.spared == 0  # annotators that another one served are none
    found = compare(large, [small, middle])
    assert set(found) == {"documents", "annotate", "lines"}
    for predicted, measured in found.values():
        assert predicted == pytest.approx(measured)
    alone = predict([small], large.text_bytes, large.parts)
    assert alone["documents"].cpu_s == pytest.approx((0.25 + 0.75 + 4) * 20)


def test_rates_of_a_run_stand_in_for_the_constants(tmp_path: Path) -> None:
    run = of_run(finished(tmp_path, 4))
    made = estimate(CorpusScale(text_bytes=8 * MEGABYTE, part_bytes=MEGABYTE, cores=2), [run])
    assert [row.stage for row in made.rows] == list(run.stages)
    assert made.core_hours * 3600 == pytest.approx(2 * sum(stage.cpu_s for stage in run.stages.values()))
    assert made.requests == pytest.approx(2 * sum(stage.operations for stage in run.stages.values()))


def test_a_run_against_the_constants_counts_what_it_has(tmp_path: Path) -> None:
    found = compare(of_run(finished(tmp_path, 4)))
    documents, annotate, lines = (found[name][0] for name in ("documents", "annotate", "lines"))
    assert documents
    assert annotate
    assert lines
    both = estimate(CorpusScale(text_bytes=4 * MEGABYTE, document_bytes=10_000, part_bytes=MEGABYTE)).rows
    assert annotate.cpu_s == pytest.approx(
        3600 * sum(row.core_hours for row in both if row.stage in ("annotate: heuristics", "annotate: language, PII"))
    )


def test_the_command_says_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for parts in (2, 5, 40):
        finished(tmp_path / str(parts), parts)
    check = [
        "corpus",
        "scale",
        "--check",
        str(tmp_path / "40"),
        "--rates",
        str(tmp_path / "2"),
        "--rates",
        str(tmp_path / "5"),
    ]
    assert call(check) == 0
    shown = capsys.readouterr().out
    assert "in all" in shown
    assert shown.count("1.00") == 8
    assert "wall clock  36 s predicted, 36 s measured" in shown
    assert call([*check, "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert stages["lines"]["measured"]["operations"] == 5 + 9 * 40
    assert call(["corpus", "scale", "1TB", "--rates", str(tmp_path / "5")]) == 0
    assert "annotate" in capsys.readouterr().out


def test_what_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["corpus", "scale"]) == call(["corpus", "scale", "1TB", "--check", str(tmp_path)]) == 2
    Workspace(tmp_path).ensure()
    assert call(["corpus", "scale", "--check", str(tmp_path)]) == 3
    assert "no recorded costs of a run" in capsys.readouterr().err

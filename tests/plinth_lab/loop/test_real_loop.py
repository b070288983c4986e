"""A loop through Dagster with real tiny runs: a planted effect is accepted and confirmed, a false prediction is not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.storage.workspace import Workspace
from plinth_registry.mlflow.server import stop_server
from tests.jobs.conftest import answer, plinth
from tests.plinth_lab.experiments.test_run import _text
from tests.shared import copied

FILE = """
name: rates
question: Which change helps at this size?
recipe: tiny
proposals: proposals.jsonl
test:
  prose: {path: test/prose.jsonl}
common:
  mixture: {total_tokens: 5120}
  training: {optimizer: {lr: 1.0e-5}}
seeds: 4
budget: {tries: 3}
"""
#: The first rate hardly moves the weights, so a larger one helps by far more than training noise.
PROPOSALS = [
    {"name": "faster", "overlay": {"training": {"optimizer": {"lr": 1.0e-2}}}, "predicts": {"at_least": 0.05}},
    {"name": "longer", "overlay": {"mixture": {"total_tokens": 10240}}, "predicts": {"at_least": 0.05}},
    {"name": "dream", "overlay": {"training": {"optimizer": {"lr": 1.1e-2}}}, "predicts": {"at_least": 2.0}},
]


@pytest.fixture
def workspace(corpus: Path, tmp_path: Path) -> Iterator[Path]:
    found = copied(corpus, tmp_path / "workspace")
    lines = (found / "input" / "tiny" / "prose.jsonl").read_text().splitlines()
    texts = [text for line in lines if (text := _text(line))][:20]
    (found / "input" / "test").mkdir()
    rows = [json.dumps({"id": f"d{at}", "text": text}) for at, text in enumerate(texts)]
    (found / "input" / "test" / "prose.jsonl").write_text("\n".join(rows))
    yield found
    stop_server(Workspace(found))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_real_runs_are_tried_accepted_and_confirmed(workspace: Path, tmp_path: Path) -> None:
    file, proposals = tmp_path / "rates.yaml", tmp_path / "proposals.jsonl"
    file.write_text(FILE)
    proposals.write_text(json.dumps(PROPOSALS[0]) + "\n")
    first = answer(workspace, "experiment", "loop", file)
    assert (first["base"], first["accepted"], first["stopped"]) == ("faster", ["faster"], "no new proposals")
    (faster,) = first["results"]
    assert faster["verdict"] == "confirmed"
    assert faster["gain"]["low"] > 0.05
    runs = (workspace / "refs" / "experiment" / "rates" / "faster").glob("one-s*.json")
    seeds, new = {int(one.stem.removeprefix("one-s")) for one in runs}, set(faster["preregistration"]["seeds"])
    assert seeds & new
    assert seeds - new  # the runs of the try, which had other seeds

    with proposals.open("a") as lines:
        lines.write("".join(json.dumps(one) + "\n" for one in PROPOSALS[1:]))
    found = answer(workspace, "experiment", "loop", file)
    assert [one["verdict"] for one in found["results"]] == ["confirmed", "invalid", "ruled out"]
    assert "trains with more tokens than the base" in found["results"][1]["reason"]
    assert found["results"][2]["base"] == "faster"
    page = Path(found["page"]).read_text()
    assert "Which change helps at this size?" in page
    assert "Cost of multiplicity" in page

    # nothing is left to do
    again = answer(workspace, "experiment", "loop", file)
    assert {**again, "page": ""} == {**found, "page": ""}

    # a try cannot be removed unseen
    (workspace / "experiments" / "rates" / "tries" / "00002.json").unlink()
    refused = plinth(workspace, "experiment", "loop", file, "--show", check=False)
    assert refused.returncode == 8
    assert "a try of loop rates was changed or removed: faster, record 2" in refused.stderr

"""An experiment through Dagster: arms share what they can, a failed arm is a result, nothing is done twice."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from plinth_registry.mlflow.server import stop_server
from tests.jobs.conftest import answer, plinth
from tests.shared import copied

FILE = """
name: words
question: Does more prose help?
recipe: tiny
base: plain
test:
  prose: {path: test/prose.jsonl}
common:
  mixture: {total_tokens: 5120}
arms:
  plain: {}
  more-prose:
    mixture:
      phases:
        - {name: all, fraction: 1, weights: {web: 1, prose: 8, code: 1}}
  empty:
    corpus:
      policies:
        default: &nothing {profiles: [], rules: [{reason: all, drop: gopher_quality.word_count >= 0}]}
        code: *nothing
seeds: %s
curve_points: 2
"""


@pytest.fixture
def workspaces() -> Iterator[list[Path]]:
    """Workspaces whose servers are stopped at the end."""
    used: list[Path] = []
    yield used
    for workspace in used:
        stop_server(Workspace(workspace))


def prepared(corpus: Path, folder: Path, seeds: str, workspaces: list[Path]) -> tuple[Path, Path]:
    workspace, file = copied(corpus, folder / "workspace"), folder / "words.yaml"
    workspaces.append(workspace)
    rows = []
    for line in (workspace / "input" / "tiny" / "prose.jsonl").read_text().splitlines():
        if len(rows) < 20 and '"text"' in line and (text := _text(line)):
            rows.append(json.dumps({"id": f"d{len(rows)}", "text": text}))
    (workspace / "input" / "test").mkdir()
    (workspace / "input" / "test" / "prose.jsonl").write_text("\n".join(rows))
    file.write_text(FILE % seeds)
    return workspace, file


def _text(line: str) -> str:
    try:
        return str(json.loads(line)["text"])
    except (ValueError, KeyError):
        return ""


def spent(workspace: Path, arm: str, seed: int) -> dict[str, list[str]]:
    path = workspace / "experiments" / "words" / arm / f"one-s{seed}" / "spent.json"
    found: dict[str, list[str]] = json.loads(path.read_bytes())
    return found


def texts_of_test(workspace: Path) -> set[str]:
    lines = (workspace / "input" / "test" / "prose.jsonl").read_text().splitlines()
    return {json.loads(line)["text"] for line in lines}


def curated(workspace: Path, arm: str) -> set[str]:
    """Text that an arm may train on."""
    ctx = Context(Workspace(workspace).branch(f"words/{arm}/one-s1"))
    parts = [part for bucket in ("web", "prose") for part in ctx.refs.current(f"{bucket}/curated").parts]
    texts = [part for part in parts if part.name.startswith("part-")]
    return {text for part in texts for text in read_table(ctx.store, part, ["text"]).column("text").to_pylist()}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_arms_share_and_a_failed_one_is_a_result(corpus: Path, tmp_path: Path, workspaces: list[Path]) -> None:
    workspace, file = prepared(corpus, tmp_path, "[1]", workspaces)
    before = len(list((workspace / "store").rglob("*")))
    found = answer(workspace, "experiment", "run", file)
    assert found["failed"] == ["experiment/words/empty/one-s1"]
    by_arm = {one["arm"]: one for one in found["effects"]}
    assert by_arm["empty"]["finding"].startswith("not measured: empty, seed 1: failed: ")
    assert by_arm["more-prose"]["finding"].startswith("too few seeds")
    # of the generated articles, some are too much like others to be known not to be trained on
    unsure = answer(workspace, "experiment", "show", file)["unsure"]
    assert 0 < by_arm["more-prose"]["documents"] == 20 - unsure

    # the base takes over what the workspace has; another mixture tokenizes and annotates nothing
    assert {"web/documents", "prose/gopher_quality", "dedup/minhash"} <= set(spent(workspace, "plain", 1)["taken"])
    other = spent(workspace, "more-prose", 1)
    assert other["made"] == ["mixture", "run", "checkpoint"]
    assert other["parts"] == 0
    assert {"tokenizer", "web/shards", "prose/curated"} <= set(other["taken"])
    assert curated(workspace, "plain") & texts_of_test(workspace) == set()
    assert len(curated(workspace, "plain")) > 50
    page = Path(found["page"]).read_text()
    assert "Does more prose help?" in page
    assert "more-prose" in page

    again = answer(workspace, "experiment", "run", file)
    assert again["made"] == []
    after = len(list((workspace / "store").rglob("*")))
    assert before < after == len(list((workspace / "store").rglob("*")))

    # an answer that is not of this file any more is not shown
    file.write_text(FILE % "[1, 2]")
    changed = plinth(workspace, "experiment", "show", file, check=False)
    assert changed.returncode == 3
    assert "changed after its last run" in changed.stderr
    file.write_text(FILE % "[1]")

    # the workspace's own references are untouched, and the failed run is asked for again by name alone
    assert not (workspace / "refs" / "checkpoint.json").exists()
    once_more = answer(workspace, "experiment", "run", file, "--again")
    assert set(once_more["made"]) == {"experiment/words/empty/one-s1", "experiment/words/effects"}
    assert answer(workspace, "experiment", "show", file)["runs"] == {"failed": 1, "finished": 2}


@pytest.mark.exhaustive
def test_seeds_side_by_side_give_the_digest_of_one_after_the_other(
    corpus: Path, tmp_path: Path, workspaces: list[Path]
) -> None:
    digests = []
    for folder, options in (("one", ()), ("two", ("--side-by-side", 2))):
        (tmp_path / folder).mkdir()
        workspace, file = prepared(corpus, tmp_path / folder, "[1, 2]", workspaces)
        plinth(workspace, "experiment", "run", file, *options)
        digests.append(answer(workspace, "experiment", "show", file)["digest"])
        for seed in (1, 2):
            assert len(spent(workspace, "more-prose", seed)["made"]) == 3
    assert digests[0] == digests[1]

"""The pipeline with every stage of deduplication switched on, from its recipe to an explained document."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.jobs.conftest import answer, digests, plinth, variant
from tests.shared import copied

pytestmark = pytest.mark.exhaustive

ON = """\
corpus:
  dedup:
    semantic: {buckets: [prose, web], threshold: 0.9}
    lines: {exclude: [code], min_characters: 30}
    substring: {min_tokens: 20}
"""
PASSAGE = (
    "Nobody in the harbour had expected that the captain would return before the storm with a ship full of lanterns, "
    "two painters, a doctor from the island and the clock of the old tower"
)
PAGES = (60, 61, 62)
LINE = "This page was made by hand in the village library."


@pytest.fixture(scope="module")
def cascade(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with planted repeats, run up to curated text by two workers."""
    workspace = copied(corpus, tmp_path_factory.mktemp("cascade") / "workspace")
    path = workspace / "input" / "tiny" / "prose.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, text in enumerate(lines):
        if not any(f'prose.example/{page}"' in text for page in PAGES):
            continue
        record = json.loads(text)
        first, _, rest = record["text"].partition("\n\n")
        record["text"] = f"{first} {PASSAGE}, {number}.\n{LINE}\n\n{rest}"
        lines[number] = json.dumps(record, ensure_ascii=False)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    recipe = variant(tmp_path_factory.mktemp("recipe"), ON)
    plinth(workspace, "run", "-r", recipe, "--select", "funnel", "--workers", 2)
    return workspace


def test_every_stage_is_an_asset(cascade: Path) -> None:
    assert {"dedup/semantic", "dedup/lines", "dedup/substring"} <= set(digests(cascade))


def test_scale_counts_every_stage_of_the_run(cascade: Path) -> None:
    said = answer(cascade, "scale", "--check", cascade)["stages"]
    # Probes depend on no amount of text alone, and what comes after the text has no constants.
    after = {"probe_sets", "funnel", "tokenizer", "shards", "mixture", "audit"}
    assert {name for name, one in said.items() if one["predicted"] is None} == after
    measured = [one["measured"] for name, one in said.items() if name not in after]
    assert len(measured) == 11
    assert all(one["cpu_s"] > 0 and one["operations"] > 0 for one in measured)
    again = answer(cascade, "scale", "--check", cascade, "--rates", cascade)["stages"]
    assert all(one["predicted"] == pytest.approx(one["measured"]) for one in again.values())


def test_planted_repeats_are_cut_but_for_the_first(cascade: Path) -> None:
    from plinth.compute.context import Context
    from plinth.storage.parts import read_table
    from plinth.storage.workspace import Workspace

    ctx = Context(Workspace(cascade))
    curated = ctx.refs.current("prose/curated")
    texts = [text for part in curated.parts for text in read_table(ctx.store, part).column("text").to_pylist()]
    assert sum(text.count(PASSAGE) for text in texts) == 1
    assert sum(text.count(LINE) for text in texts) == 1
    stats = curated.stats
    assert sum(stats["edit_bytes"].values()) == stats["edited_away_bytes"]
    assert stats["edit_counts"]["repeated_passage"] == 2
    assert stats["edit_counts"]["repeated_line"] == 2


def test_nothing_is_lost_on_the_way(cascade: Path) -> None:
    rows = answer(cascade, "funnel")["total"]["stages"]
    assert [row["stage"] for row in rows[1:6]] == ["policy", "exact", "near", "semantic", "lines"]
    for row, after in pairwise(rows):
        assert row["documents_in"] - row["removed"] == row["documents_out"] == after["documents_in"]


def test_explain_shows_why_a_passage_is_gone(cascade: Path) -> None:
    stories = [answer(cascade, "explain", f"https://prose.example/{number}") for number in PAGES]
    reasons = [[edit["reason"] for edit in story["verdict"]["edits"]] for story in stories]
    assert sorted(reasons) == [[], *[["repeated_passage", "repeated_line"]] * 2]
    assert all({"semantic", "lines", "substring"} <= set(story["dedup"]) for story in stories)

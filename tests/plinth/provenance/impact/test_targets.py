"""Targets that a user can name, and the runs that read them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plinth.errors import MissingError
from plinth.provenance.impact import affected_runs, downstream, origin
from plinth.training.attempts import state
from tests.training_host import HOST

COMMIT = "8c1f00d5e9a3b4c2d1e0f9a8b7c6d5e4f3a2b1c0"


def reached(line: Any, target: str) -> set[str]:
    return {each.asset for each in downstream(line.ctx, origin(line.ctx, target).digests)}


def test_an_asset_a_digest_and_an_inventory(line: Any) -> None:
    tokenizer = line.made["tokenizer"].digest
    assert origin(line.ctx, "tokenizer").kind == "asset"
    assert origin(line.ctx, tokenizer[:9]).digests == (tokenizer,)
    assert reached(line, tokenizer[:9]) == reached(line, "tokenizer")
    assert reached(line, "5" * 64) == set(line.made)


def test_the_list_of_a_source_reaches_what_was_read_from_it(line: Any) -> None:
    params = {"sources": [{"domain": "news.example"}, {"domain": "blog.example"}]}
    line.publish("prose/sources", (), {"inventory": "5" * 64}, params=params)
    for target in ("prose/sources", line.made["prose/sources"].digest, "prose", "news.example", "blog.example"):
        assert reached(line, target) == set(line.made), target
    assert origin(line.ctx, "news.example").kind == "source"


def test_a_document_reaches_what_its_curated_text_reaches(line: Any) -> None:
    found = origin(line.ctx, line.id("code", 0))
    assert (found.kind, found.digests) == ("document", (line.made["code/curated"].digest,))
    with pytest.raises(MissingError, match="nothing is derived from"):
        origin(line.ctx, line.id("prose", 3))  # dropped before


def model(line: Any, name: str, code: Any) -> None:
    folder = line.ctx.workspace.models / name
    folder.mkdir(parents=True)
    content = {"code": code, "image": {"digest": "1a" * 32}, "checkpoint": {"digest": line.made["checkpoint"].digest}}
    (folder / "provenance.json").write_text(json.dumps(content))


def test_a_commit_reaches_the_models_that_its_code_made(line: Any) -> None:
    model(line, "one", {"version": "0.3.0", "sha256": "ab" * 32, "commit": COMMIT})
    for target in (COMMIT, COMMIT[:8], "ab" * 32, "1a" * 8):
        assert origin(line.ctx, target).kind == "commit"
        assert reached(line, target) == {"checkpoint", "evaluation"}


def attempt(line: Any, **changes: Any) -> None:
    """The trainer of the line's run states an attempt on such a machine."""
    host = HOST.model_copy(update=changes)
    state(line.run.directory, b"{}", line.run.key, ranks=1, nodes=1, hosts=[host], audit=False)


def test_a_commit_reaches_the_runs_that_were_trained_at_it(line: Any) -> None:
    """Also one of several attempts, of which nothing is published."""
    attempt(line)
    attempt(line, commit=COMMIT, image=f"plinth@sha256:{'7' * 64}")
    attempt(line)
    for target in (COMMIT, COMMIT[:8], "7" * 64, HOST.code["plinth"], HOST.distributions):
        found = origin(line.ctx, target)
        assert (found.kind, found.digests, found.runs) == ("commit", (), (line.run.run_id,)), target
    assert affected_runs(line.ctx, (), found.runs) == ()
    line.run.directory.checkpoints.mkdir(exist_ok=True)
    (line.run.directory.checkpoints / "step-00000004.json").write_text("{}")
    assert [run.checkpoints for run in affected_runs(line.ctx, (), found.runs)] == [(4,)]
    made = line.publish("run", (), {}, stats={"run_id": line.run.run_id})
    line.publish("other/run", (), {}, stats={"run_id": "another"})
    assert origin(line.ctx, COMMIT).digests == (made.digest,)


def test_a_damaged_statement_hides_no_other_run(line: Any) -> None:
    attempt(line, commit=COMMIT)
    other = line.ctx.workspace.runs / "broken" / "attempts"
    other.mkdir(parents=True)
    (other / "0001.json").write_text("{")
    assert origin(line.ctx, COMMIT).runs == (line.run.run_id,)


def test_a_damaged_provenance_hides_no_other(line: Any) -> None:
    model(line, "one", {"commit": COMMIT})
    (line.ctx.workspace.models / "two").mkdir()
    (line.ctx.workspace.models / "two" / "provenance.json").write_text("[1")
    assert origin(line.ctx, COMMIT).kind == "commit"


@pytest.mark.parametrize("target", ["nothing", "", "ffffffff", "*", "\x1b[31m", "../run", "f" * 40])
def test_what_nothing_was_made_of_is_named(line: Any, target: str) -> None:
    with pytest.raises(MissingError, match="nothing is derived from"):
        origin(line.ctx, target)


def test_two_meanings_are_refused(line: Any) -> None:
    tokenizer = line.made["tokenizer"].digest
    model(line, "one", {"commit": tokenizer[:40]})
    with pytest.raises(MissingError, match="is ambiguous"):
        origin(line.ctx, tokenizer[:10])


def test_a_run_counts_once_it_has_committed(line: Any) -> None:
    folder = line.run.directory
    digests = {line.made["code/shards"].digest}
    assert affected_runs(line.ctx, digests) == ()
    (copied,) = affected_runs(line.ctx, digests, exported={line.run.run_id})  # its checkpoints were deleted since
    assert (copied.run_id, copied.checkpoints) == (line.run.run_id, ())
    folder.checkpoints.mkdir(exist_ok=True)
    (folder.checkpoints / "step-00000004.json").write_text("{}")
    (found,) = affected_runs(line.ctx, digests)
    assert (found.run_id, found.checkpoints) == (line.run.run_id, (4,))
    assert affected_runs(line.ctx, {"0" * 64}) == ()

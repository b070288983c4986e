"""A mark finds everything downstream, freezes it, and nothing else."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import MissingError, SignatureError
from plinth.trust import dsse
from plinth.trust.dsse import now
from plinth.trust.root import Trust
from plinth_registry import candidate, freeze, releases, taint
from plinth_registry.audit_log import MARKS
from tests.registry.conftest import moved
from tests.training_host import HOST


def assets(ctx: Context, record: taint.Taint) -> list[str]:
    return sorted(each.asset for each in taint.affected(ctx, record))


def chain_of(ctx: Context, line: Any) -> Any:
    return candidate.ancestry(ctx, line.checkpoint.digest, line.evaluation.digest)


def document_id(text: str) -> str:
    return fingerprint.digest(text)[:32]


def test_everything_made_of_a_marked_manifest_is_found(ctx: Context, line: Any) -> None:
    record = taint.mark(ctx, line.tokenizer.digest, "ada", "wrong vocabulary")
    assert assets(ctx, record) == ["checkpoint", "evaluation", "mixture", "run", "tokenizer", "web/shards"]
    (mark,) = taint.marks_on(ctx, chain_of(ctx, line))
    assert mark == f"tokenizer (manifest {line.tokenizer.digest[:12]}) is tainted by ada: wrong vocabulary"


def test_a_source_is_marked_by_its_inventory(ctx: Context, line: Any) -> None:
    inventory = fingerprint.digest("inventory")
    record = taint.mark(ctx, inventory[:12], "ada", "licence withdrawn")
    assert record.target == inventory
    assert len(assets(ctx, record)) == 8
    assert "licence withdrawn" in taint.marks_on(ctx, chain_of(ctx, line))[0]


def test_a_document_freezes_only_what_holds_it(ctx: Context, make_line: Any) -> None:
    one, other = make_line(1), make_line(2)
    record = taint.mark(ctx, document_id("also kept 1"), "ada", "takedown")
    assert record.holders == (one.curated.digest,)
    assert taint.marks_on(ctx, chain_of(ctx, one))[0].endswith("is tainted by ada: takedown")
    assert taint.marks_on(ctx, chain_of(ctx, other)) == ()


def test_a_document_that_comes_back_later_is_caught(ctx: Context, make_line: Any) -> None:
    make_line(1)
    taint.mark(ctx, document_id("also kept 7"), "ada", "takedown")
    later = make_line(7)
    assert len(taint.marks_on(ctx, chain_of(ctx, later))) == 1


def test_a_document_that_no_training_text_holds_freezes_nothing(ctx: Context, line: Any) -> None:
    record = taint.mark(ctx, document_id("dropped"), "ada", "takedown")
    assert assets(ctx, record) == []
    assert taint.marks_on(ctx, chain_of(ctx, line)) == ()


def test_marks_are_only_added(ctx: Context, line: Any) -> None:
    first = taint.mark(ctx, line.checkpoint.digest, "ada", "first reason")
    again = taint.mark(ctx, line.checkpoint.digest[:10], "ben", "second reason")
    assert again == first
    assert taint.records(ctx) == (first,)
    taint.mark(ctx, document_id("kept"), "ben", "takedown")
    assert len(taint.records(ctx)) == 2


def test_a_commit_of_which_nothing_is_published_is_said_and_marks_nothing(ctx: Context, line: Any) -> None:
    with pytest.raises(MissingError, match="published yet") as refused:
        freeze.mark_tainted(ctx, HOST.commit, "anna", "a wrong loss")
    assert line.run.id in str(refused.value.found)
    assert taint.records(ctx) == ()


@pytest.mark.parametrize("target", ["ff" * 32, "12", "nonsense", "", "*"])
def test_what_does_not_exist_cannot_be_marked(ctx: Context, line: Any, target: str) -> None:
    with pytest.raises(MissingError, match="no artifact"):
        taint.mark(ctx, target, "ada", "because")


# The log of marks


def marks(ctx: Context) -> list[Path]:
    return sorted((ctx.workspace.root / "taint").glob("*.json"))


def refused(ctx: Context, line: Any, match: str) -> None:
    """Nothing counts as untainted: neither the list nor the question about a chain."""
    for ask in (lambda: taint.records(ctx), lambda: taint.marks_on(ctx, chain_of(ctx, line))):
        with pytest.raises(SignatureError, match=match):
            ask()


@pytest.fixture
def two(ctx: Context, line: Any) -> None:
    taint.mark(ctx, line.checkpoint.digest, "ada", "because")
    taint.mark(ctx, document_id("kept"), "ada", "takedown")


@pytest.mark.parametrize("role", ["trainer", "promoter", "evaluator"])
def test_a_lift_signed_as_another_role_is_refused(ctx: Context, line: Any, two: None, role: str) -> None:
    trust, (*_, last) = Trust.of(ctx.workspace), marks(ctx)
    body = {"action": "lift", "lifts": 1, "by": "eve", "reason": "no", "mark": taint.records(ctx)[0].model_dump()}
    prior = hashlib.sha256(last.read_bytes()).hexdigest()
    for claimed, match in ((role, "not a record of this signed log"), ("compliance", "is invalid")):
        content = {"number": 3, "prior": prior, "at": now(), "role": claimed, "body": body}
        statement = dsse.statement(MARKS.predicate, {"mark": "0" * 64}, content)
        dsse.write(last.with_name("00003.json"), statement, trust.signer(role))
        refused(ctx, line, match)


def test_without_the_compliance_key_nothing_is_marked(ctx: Context, line: Any, own_trust: Path) -> None:
    shutil.rmtree(own_trust / "keys" / "compliance")
    with pytest.raises(SignatureError, match="no private key"):
        taint.mark(ctx, line.checkpoint.digest, "ada", "because")
    assert taint.records(ctx) == ()


def test_the_head_of_the_releases_shows_a_new_machine_that_a_mark_is_missing(
    ctx: Context, unregistered: Any, line: Any, own_trust: Path
) -> None:
    moved(ctx, "canary", "1", unregistered.subjects)
    taint.mark(ctx, line.checkpoint.digest, "ada", "because")
    assert releases.refresh(ctx)
    assert not releases.refresh(ctx)
    (own_trust / "seen.json").unlink()  # another machine
    shutil.rmtree(ctx.workspace.root / "taint")
    refused(ctx, line, "missing or were replaced")
    with pytest.raises(SignatureError, match="missing or were replaced"):
        releases.refresh(ctx)  # and the loss is never signed


# Lifting


def test_a_lifted_mark_freezes_no_more_and_stays_in_the_history(ctx: Context, line: Any, two: None) -> None:
    done = taint.lift(ctx, line.checkpoint.digest[:10], "ben", "it was another one")
    assert (done.number, done.lifts, done.by) == (3, 1, "ben")
    assert [record.kind for record in taint.records(ctx)] == ["document"]
    history = [(each.action, each.standing, each.by) for each in taint.statements(ctx)]
    assert history == [("mark", False, "ada"), ("mark", True, "ada"), ("lift", False, "ben")]
    assert all(each.signed_by for each in taint.statements(ctx))
    taint.mark(ctx, line.checkpoint.digest, "ada", "it was this one after all")
    assert len(taint.records(ctx)) == 2


def test_what_is_not_marked_cannot_be_lifted(ctx: Context, line: Any, two: None) -> None:
    for target in ("", "00000000", line.checkpoint.digest[:4], line.curated.digest):
        with pytest.raises(MissingError, match="no active taint on"):
            taint.lift(ctx, target, "ben", "why not")


# Evidence


def test_a_mark_on_what_measured_the_model_taints_its_evidence(ctx: Context, line: Any) -> None:
    held_out = line.made("protected/held-out", {"files": "7" * 64})
    probes = line.made("probes", {"checkpoint": line.checkpoint, "probes/own": held_out})
    ctx.refs.publish(probes, "key")
    evidence = candidate.evidence_of(ctx, line.checkpoint.digest, line.evaluation.digest)
    assert evidence == (line.evaluation.digest, probes.digest)
    taint.mark(ctx, held_out.digest, "ada", "leaked")
    chain = chain_of(ctx, line)
    assert taint.marks_on(ctx, chain) == ()
    (mark,) = taint.marks_on(ctx, chain, evidence)
    assert mark == f"evidence: protected/held-out (manifest {held_out.digest[:12]}) is tainted by ada: leaked"


def test_a_mark_on_the_files_of_a_held_out_set_taints_the_evidence(ctx: Context, line: Any) -> None:
    held_out = line.made("protected/held-out", {"files": "7" * 64})
    inputs = {"checkpoint": line.checkpoint, "protected/held-out": held_out}
    evaluation = line.made("evaluation", inputs)
    taint.mark(ctx, "7" * 64, "ada", "wrong licence")
    assert taint.marks_on(ctx, chain_of(ctx, line), [evaluation.digest])[0].startswith("evidence: files (manifest 777")


def test_the_list_of_a_source_stands_for_what_was_read_from_it(ctx: Context, line: Any) -> None:
    listed = line.made("web/sources", {"inventory": fingerprint.digest("inventory")})
    record = taint.mark(ctx, listed.digest, "ada", "licence withdrawn")
    assert record.target == fingerprint.digest("inventory")
    assert taint.marks_on(ctx, chain_of(ctx, line))

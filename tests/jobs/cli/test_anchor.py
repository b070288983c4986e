"""`plinth release anchor`: heads of the release history in a transparency log, and histories that no longer fit them.

The log is `tests/rekor_server.py`, a local server; `test_transparency` also has an entry of a real Rekor.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.storage.workspace import Workspace
from plinth.trust import dsse, enrolment, transparency
from plinth.trust.dsse import PROMOTER, TRAINER
from plinth.trust.log_anchors import LogAnchors
from plinth.trust.root import Trust
from plinth_registry import audit_log, releases
from tests.registry.test_releases import write
from tests.rekor_server import LocalRekor, rekor_server

Plinth = Callable[..., Any]


@pytest.fixture
def served() -> Iterator[tuple[LocalRekor, str]]:
    with rekor_server() as found:
        yield found


@pytest.fixture
def ctx(tmp_path: Path, own_trust: Path) -> Context:
    """Two releases and a decision, on a machine with all keys."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    audit_log.record(ctx, audit_log.AuditedAction("promote", "demo-candidate version 1", "ops", "better"))
    for version in "12":
        write(ctx, version)
    return ctx


@pytest.fixture
def anchored(ctx: Context, served: tuple[LocalRekor, str], plinth: Plinth, tmp_path: Path) -> Path:
    """The anchor of record 2."""
    key = served[0].write_key(tmp_path / "rekor.pub")
    assert plinth("release", "anchor", "--rekor", served[1], "--log-key", str(key)).code == 0
    (path,) = (ctx.workspace.releases / "anchors").iterdir()
    return path


def other_machine(own_trust: Path) -> None:
    """A machine that has the root and the log's key, and has read no record yet."""
    (own_trust / "seen.json").unlink()


def test_a_head_is_anchored_once_and_verified_offline(
    ctx: Context, served: tuple[LocalRekor, str], anchored: Path, plinth: Plinth
) -> None:
    (found,) = json.loads(plinth("release", "anchor", "--json").out)
    head = dsse.unverified(dsse.envelope_of(ctx.workspace.releases / "head"), "it")["predicate"]
    assert (found["number"], found["sha256"], found["signed_at"]) == (2, head["sha256"], head["at"])
    assert (found["name"], found["log_index"], found["file"]) == ("rekor.invalid - 1", 1002, str(anchored))
    assert anchored.name.startswith("00002-")
    assert plinth("release", "anchor", "--rekor", served[1]).code == 0
    assert len(served[0].requests) == 1  # the same head
    write(ctx, "3")
    assert plinth("release", "anchor", "--rekor", served[1]).code == 0
    assert [each["number"] for each in json.loads(plinth("release", "anchor", "--json").out)] == [2, 3]
    assert len(served[0].requests) == 2  # reading asks nobody
    assert plinth("release", "log", "--verify").code == 0


def test_a_truncated_history_is_refused_on_every_machine(
    ctx: Context, anchored: Path, own_trust: Path, plinth: Plinth, tmp_path: Path
) -> None:
    kept = shutil.copy(anchored, tmp_path / "kept.json")
    shutil.rmtree(ctx.workspace.releases)
    other_machine(own_trust)
    write(ctx, "1")  # by the promoter: records, head and chain are right
    assert plinth("release", "log", "--verify").code == 0
    refused = plinth("release", "anchor", "--entry", str(kept))
    assert refused.code == 8
    assert "the release records were rewritten or truncated before an anchored head" in refused.err
    assert "record 2 is missing" in refused.err
    (ctx.workspace.releases / "anchors").mkdir()
    shutil.copy(kept, anchored)
    for command in (("release", "log", "--verify"), ("verify", "demo/1"), ("release", "anchor")):
        refused = plinth(*command)
        assert refused.code == 8
        assert "truncated before an anchored head" in refused.err


def test_a_rewritten_history_is_refused_on_every_machine(ctx: Context, anchored: Path, own_trust: Path) -> None:
    for name in ("00002.json", "head"):
        (ctx.workspace.releases / name).unlink()
    other_machine(own_trust)
    write(ctx, "4")
    write(ctx, "5")
    with pytest.raises(SignatureError, match="release records were rewritten or truncated before an anchored head"):
        releases.history(ctx)


def test_another_log_that_was_rewritten_is_refused(
    ctx: Context, anchored: Path, own_trust: Path, plinth: Plinth
) -> None:
    shutil.rmtree(ctx.workspace.root / "audit")
    other_machine(own_trust)
    audit_log.record(ctx, audit_log.AuditedAction("promote", "demo-candidate version 1", "ops", "other words"))
    refused = plinth("release", "anchor")
    assert refused.code == 8
    assert "records of audit/ were rewritten or truncated before an anchored head" in refused.err


def test_a_server_that_is_down_changes_nothing(ctx: Context, anchored: Path, plinth: Plinth) -> None:
    with rekor_server() as (_, url):
        pass
    write(ctx, "3")
    refused = plinth("release", "anchor", "--rekor", url)
    assert refused.code == 8
    assert f"the transparency log at {url} returned no entry" in refused.err
    assert [*anchored.parent.iterdir()] == [anchored]


def test_the_key_must_be_pinned_and_must_be_that_of_the_server(
    ctx: Context, served: tuple[LocalRekor, str], plinth: Plinth, tmp_path: Path
) -> None:
    refused = plinth("release", "anchor", "--rekor", served[1])
    assert refused.code == 8
    assert "no public key of a transparency log is pinned" in refused.err
    assert not served[0].requests
    foreign = LocalRekor().write_key(tmp_path / "foreign.pub")
    refused = plinth("release", "anchor", "--rekor", served[1], "--log-key", str(foreign))
    assert refused.code == 8
    assert "is invalid" in refused.err
    assert not (ctx.workspace.releases / "anchors").exists()


def _proof(answer: dict[str, Any]) -> dict[str, Any]:
    (found,) = answer.values()
    found["verification"]["inclusionProof"]["hashes"][0] = "00" * 32
    return answer


def _promise(answer: dict[str, Any]) -> dict[str, Any]:
    (found,) = answer.values()
    return {"a": {**found, "integratedTime": found["integratedTime"] - 86400}}


def _tree_head(answer: dict[str, Any]) -> dict[str, Any]:
    (found,) = answer.values()
    proof = found["verification"]["inclusionProof"]
    proof["checkpoint"] = proof["checkpoint"].replace("rekor.invalid - 1", "rekor.invalid - 2")
    return answer


@pytest.mark.parametrize("change", [_proof, _promise, _tree_head])
def test_a_wrong_answer_is_not_stored(
    ctx: Context, served: tuple[LocalRekor, str], plinth: Plinth, tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    served[0].change = change
    key = served[0].write_key(tmp_path / "rekor.pub")
    refused = plinth("release", "anchor", "--rekor", served[1], "--log-key", str(key))
    assert refused.code == 8
    assert "the transparency log entry in the answer of http://" in refused.err
    assert not (ctx.workspace.releases / "anchors").exists()
    served[0].change = lambda answer: answer  # the entry is in the log by now, and is found there
    assert plinth("release", "anchor", "--rekor", served[1]).code == 0


def test_an_answer_about_another_head_is_not_stored(
    ctx: Context, served: tuple[LocalRekor, str], anchored: Path, plinth: Plinth
) -> None:
    served[0].change = lambda answer: served[0].entry(2)
    write(ctx, "3")
    refused = plinth("release", "anchor", "--rekor", served[1])
    assert refused.code == 8
    assert "is about another signature" in refused.err
    assert [*anchored.parent.iterdir()] == [anchored]


def test_a_changed_anchor_is_refused(ctx: Context, anchored: Path, plinth: Plinth, tmp_path: Path) -> None:
    whole = json.loads(anchored.read_bytes())
    signer = Trust.of(ctx.workspace).signer(TRAINER)
    content = dsse.unverified(whole["head"], "it")
    changes = {
        "is not an anchor": {"head": whole["head"]},
        "the signature of": {**whole, "head": dsse.seal(content, signer)},
        "is invalid": {**whole, "entry": {**whole["entry"], "logIndex": "1"}},
        "is not a DSSE envelope": {**whole, "head": ["x"]},
    }
    for reason, changed in changes.items():
        anchored.write_text(json.dumps(changed))
        refused = plinth("release", "log", "--verify")
        assert refused.code == 8
        assert reason in refused.err
    anchored.unlink()
    anchored.symlink_to(tmp_path / "elsewhere.json")
    assert plinth("release", "log", "--verify").code == 8


def test_an_old_anchor_under_the_name_of_the_new_one_is_refused(
    ctx: Context, served: tuple[LocalRekor, str], anchored: Path, plinth: Plinth
) -> None:
    write(ctx, "3")
    data, _ = dsse.parts(dsse.envelope_of(ctx.workspace.releases / "head"), "it")
    planted = Path(shutil.copy(anchored, anchored.with_name(f"00003-{hashlib.sha256(data).hexdigest()[:16]}.json")))
    refused = plinth("release", "anchor", "--rekor", served[1])
    assert refused.code == 8
    assert "is the anchor of another head" in refused.err
    planted.unlink()
    assert plinth("release", "anchor", "--rekor", served[1]).code == 0
    assert planted.exists()


def test_an_old_head_is_not_anchored_in_place_of_the_newest(
    ctx: Context, served: tuple[LocalRekor, str], anchored: Path, plinth: Plinth
) -> None:
    head = ctx.workspace.releases / "head"
    old = head.read_bytes()
    write(ctx, "3")
    head.write_bytes(old)  # the history accepts it, as after a crash
    refused = plinth("release", "anchor", "--rekor", served[1])
    assert refused.code == 8
    assert "does not name the newest of the release records" in refused.err


def test_a_head_that_was_logged_after_the_revocation_is_refused(
    ctx: Context, served: tuple[LocalRekor, str], anchored: Path, own_trust: Path, plinth: Plinth
) -> None:
    signer = Trust.of(ctx.workspace).signer(PROMOTER)
    (stolen,) = Trust.of(ctx.workspace).root.roles[PROMOTER].keys
    enrolment.enrol(ctx.workspace, PROMOTER, "new", enrolment.new_key(own_trust, PROMOTER, "new"))
    head = dsse.unverified(dsse.envelope_of(ctx.workspace.releases / "head"), "it")
    head["predicate"]["at"] = "2020-01-01T00:00:00+00:00"  # the thief states a time before the revocation
    forged = dsse.seal(head, signer)
    data, signatures = dsse.parts(forged, "it")
    public = Trust.of(ctx.workspace).authority(PROMOTER).keys[stolen].public
    entry = transparency.submit(served[1], transparency.Signed(data, signatures[stolen], public))
    anchored.write_text(json.dumps({"head": forged, "entry": entry}))
    assert plinth("release", "anchor").code == 0
    enrolment.revoke(ctx.workspace, stolen, datetime(2021, 1, 1, tzinfo=UTC))
    with pytest.raises(SignatureError, match="was revoked"):
        LogAnchors(releases._HEAD).verified(ctx, releases.RELEASES.records(ctx), ())


def test_an_anchor_outlives_its_key(ctx: Context, anchored: Path, own_trust: Path, plinth: Plinth) -> None:
    (old,) = Trust.of(ctx.workspace).root.roles[PROMOTER].keys
    enrolment.enrol(ctx.workspace, PROMOTER, "new", enrolment.new_key(own_trust, PROMOTER, "new"))
    enrolment.revoke(ctx.workspace, old, datetime.now(UTC) + timedelta(hours=1))
    assert len(json.loads(plinth("release", "anchor", "--json").out)) == 1


def test_without_a_release_there_is_nothing_to_anchor(
    served: tuple[LocalRekor, str], own_trust: Path, plinth: Plinth, tmp_path: Path
) -> None:
    Workspace(tmp_path / "workspace").ensure()
    assert "No anchors" in plinth("release", "anchor").out
    key = served[0].write_key(tmp_path / "rekor.pub")
    assert plinth("release", "anchor", "--rekor", served[1], "--log-key", str(key)).code == 3
    assert not served[0].requests

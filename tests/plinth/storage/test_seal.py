"""Files written into a workspace without its workers' secret are not trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import SealError
from plinth.records import Manifest
from plinth.storage import seal
from plinth.storage.workspace import TRUST_VARIABLE, Workspace

KEY, OTHER = "a1" + "0" * 62, "b2" + "0" * 62


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    (tmp_path / "trust").mkdir(mode=0o700)
    return tmp_path / "trust"


def opened(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def made(stats: dict[str, float]) -> Manifest:
    return Manifest(asset="evaluation", step="s", version="1", params={}, inputs={}, parts=(), stats=stats)


def test_an_edited_step_record_is_work_undone(tmp_path: Path, folder: Path) -> None:
    seal.make(folder)
    ctx = opened(tmp_path)
    true, false = (ctx.store_json("answer.json", {"bits": bits}) for bits in (2.20, 0.22))
    ctx.cache.put(KEY, (true,))
    assert opened(tmp_path).cache.get(KEY) == (true,)
    path = ctx.workspace.records / KEY[:2] / f"{KEY}.json"
    record = json.loads(path.read_bytes())
    record |= {"parts": [false.model_dump(mode="json")], "sha256": fingerprint.digest([false])}
    path.write_bytes(fingerprint.canonical(record))
    assert opened(tmp_path).cache.get(KEY) is None
    assert opened(tmp_path).cache.put(KEY, (true,)) == (true,)
    assert opened(tmp_path).cache.get(KEY) == (true,)


def test_a_record_moved_to_another_key_is_work_undone(tmp_path: Path, folder: Path) -> None:
    seal.make(folder)
    ctx = opened(tmp_path)
    ctx.cache.put(KEY, (ctx.store_json("answer.json", 1),))
    target = ctx.workspace.records / OTHER[:2] / f"{OTHER}.json"
    target.parent.mkdir()
    target.write_bytes((ctx.workspace.records / KEY[:2] / f"{KEY}.json").read_bytes())
    assert opened(tmp_path).cache.get(OTHER) is None


def test_a_reference_to_a_forged_manifest_is_refused(tmp_path: Path, folder: Path) -> None:
    seal.make(folder)
    ctx = opened(tmp_path)
    true, false = made({"bits": 2.20}), made({"bits": 0.22})
    ctx.refs.publish(true, "key")
    path = ctx.workspace.refs / "evaluation.json"
    content = json.loads(path.read_bytes())
    ctx.refs.save(false)
    for change in ({"digest": false.digest}, {"digest": false.digest, "seal": None}, {"key": "other"}):
        path.write_text(json.dumps(content | change))
        with pytest.raises(SealError, match="not published by a worker of this workspace"):
            opened(tmp_path).refs.current("evaluation")
    mended = opened(tmp_path)
    mended.refs.publish(true, "key")
    assert mended.refs.current("evaluation") == true


def test_without_a_secret_nothing_is_sealed_or_asked_for(tmp_path: Path, folder: Path) -> None:
    ctx = opened(tmp_path)
    part = ctx.store_json("answer.json", 1)
    ctx.cache.put(KEY, (part,))
    ctx.refs.publish(made({}), "key")
    assert opened(tmp_path).cache.get(KEY) == (part,)
    assert opened(tmp_path).refs.current("evaluation") == made({})


def test_what_was_there_before_the_secret_is_adopted_by_a_word(tmp_path: Path, folder: Path) -> None:
    ctx = opened(tmp_path)
    part = ctx.store_json("answer.json", 1)
    ctx.cache.put(KEY, (part,))
    ctx.refs.publish(made({}), "key")
    seal.make(folder)
    later = opened(tmp_path)
    assert later.cache.get(KEY) is None
    with pytest.raises(SealError, match="no seal"):
        later.refs.current("evaluation")
    assert (later.refs.adopt(), later.cache.adopt()) == (1, 1)
    assert (later.refs.adopt(), later.cache.adopt()) == (0, 0)
    assert opened(tmp_path).cache.get(KEY) == (part,)
    assert opened(tmp_path).refs.current("evaluation") == made({})


def test_a_copied_workspace_without_its_secret_says_that_this_is_missing(tmp_path: Path, folder: Path) -> None:
    seal.make(folder)
    opened(tmp_path).refs.publish(made({}), "key")
    (folder / seal.SECRET_FILE).unlink()
    with pytest.raises(SealError, match="no secret on this machine to check it") as refused:
        opened(tmp_path).refs.current("evaluation")
    assert "copy `seal` from its trust folder" in str(refused.value)


def test_a_seal_is_over_its_kind_and_name() -> None:
    one = seal.Seal(b"k" * 32)
    given = one.of("step", "name", "content")
    assert one.holds(given, "step", "name", "content")
    for other in (("ref", "name", "content"), ("step", "other", "content"), ("step", "name", "more")):
        assert not one.holds(given, *other)
    assert not seal.Seal(b"j" * 32).holds(given, "step", "name", "content")
    assert not one.holds(None, "step", "name", "content")


@pytest.mark.parametrize(("text", "mode"), [("xyz", 0o600), ("ab", 0o600), ("00" * 32, 0o644)])
def test_a_bad_secret_is_named(folder: Path, text: str, mode: int) -> None:
    (folder / seal.SECRET_FILE).write_text(text)
    (folder / seal.SECRET_FILE).chmod(mode)
    with pytest.raises(SealError):
        seal.load(folder)

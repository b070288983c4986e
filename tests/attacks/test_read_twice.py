"""Write the workspace: exchange a signed file between two reads of it, or put a pipe or a link in its place."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.records import Part
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import dsse, enrolment, root
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust
from plinth_registry import candidate, signing
from plinth_registry.audit_log import AUDIT


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """Interrupt a read that waits for a pipe."""

    def end(*_: object) -> None:
        raise TimeoutError("a reader waits for a pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Workspace, bytes, bytes]:
    """A workspace with its first root pinned, its genuine second root, and one of the attacker's with that name."""
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "attacker"))
    theirs = Workspace(tmp_path / "theirs").ensure()
    enrolment.initialise(theirs, "acme", ["eve@example.org"])
    enrolment.renew(theirs)
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    workspace = Workspace(tmp_path / "own").ensure()
    pinned = enrolment.initialise(workspace, "acme", ["ada@example.org"]).folder / root.ROOT_FILE
    first = pinned.read_bytes()
    enrolment.renew(workspace)
    genuine = root.version_path(workspace, 2).read_bytes()
    pinned.write_bytes(first)
    (pinned.parent / root.SEEN).unlink(missing_ok=True)
    return workspace, genuine, root.version_path(theirs, 2).read_bytes()


def test_a_root_that_is_exchanged_after_it_was_verified_is_not_pinned(
    roots: tuple[Workspace, bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, genuine, evil = roots
    following = root.following

    def exchanged(*given: Any) -> root.Root:
        found = following(*given)
        root.version_path(workspace, 2).write_bytes(evil)
        return found

    monkeypatch.setattr(root, "following", exchanged)
    found = Trust.newest(workspace)
    assert (found.folder / root.ROOT_FILE).read_bytes() == genuine


def test_a_pipe_that_gives_each_reader_another_root_pins_none(roots: tuple[Workspace, bytes, bytes]) -> None:
    workspace, *contents = roots
    place, pinned = root.version_path(workspace, 2), workspace.trust_folder / root.ROOT_FILE
    place.unlink()
    os.mkfifo(place)

    def serve() -> None:
        with suppress(BrokenPipeError):
            for content in contents:
                place.write_bytes(content)
                time.sleep(0.1)  # until that reader is gone

    before = pinned.read_bytes()
    server = threading.Thread(target=serve, daemon=True)
    server.start()
    with pytest.raises(SignatureError, match="is not a plain file"):
        Trust.newest(workspace)
    while server.is_alive():
        os.close(os.open(place, os.O_RDONLY | os.O_NONBLOCK))  # lets the other end go
    assert pinned.read_bytes() == before


def test_a_pinned_root_may_be_a_link_of_the_user(roots: tuple[Workspace, bytes, bytes]) -> None:
    workspace, *_ = roots
    pinned = workspace.trust_folder / root.ROOT_FILE
    root.version_path(workspace, 2).unlink()
    pinned.rename(pinned.with_name("mounted"))
    pinned.symlink_to("mounted")
    assert Trust.newest(workspace).root.version == 1


def _link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("attack", [_link, _pipe])
def test_a_pipe_or_a_link_as_a_statement_is_refused_and_nobody_waits(
    attack: Callable[[Path], None], ctx: Context, line: Any
) -> None:
    directory = signing.materialise(ctx, line.checkpoint, line.provenance())
    authority = Trust.of(ctx.workspace).authority(TRAINER)
    AUDIT.append(ctx, {"action": "approve"}, {}, AUDIT.roles[0])
    attack(signing.slsa_path(directory))
    attack(AUDIT.path(ctx, 1))
    with pytest.raises(SignatureError, match="is not a plain file"):
        dsse.envelope_of(signing.slsa_path(directory))
    with pytest.raises(SignatureError, match=r"is not a plain file|not a signed model"):
        signing.verify(directory, authority)
    with pytest.raises(SignatureError, match="is not a plain file"):
        AUDIT.records(ctx)


def test_a_workspace_behind_a_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/a.json").write_text("{}")
    (tmp_path / "linked").symlink_to("folder")
    assert dsse.envelope_of(tmp_path / "linked/a.json") == {}


def test_a_statement_without_an_end_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as stream:
        stream.truncate(dsse.MAX_BYTES + 1)
    with pytest.raises(SignatureError, match=r"more than 67,108,864 bytes"):
        dsse.envelope_of(tmp_path / "a.json")


def test_a_provenance_that_is_exchanged_after_the_check_is_refused(
    ctx: Context, line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forged one is there for the reader of its content, the genuine one for the reader of its digest."""
    from model_signing.verifying import Config

    directory = signing.materialise(ctx, line.checkpoint, line.provenance())
    path = directory / signing.PROVENANCE_FILE
    genuine, verify, read = path.read_bytes(), Config.verify, dsse.read
    path.chmod(0o644)

    def then_forged(*given: Any) -> None:
        verify(*given)
        path.write_bytes(json.dumps({**json.loads(genuine), "note": "forged"}).encode())

    def then_genuine(*given: Any, **more: Any) -> dict[str, Any]:
        path.write_bytes(genuine)
        return read(*given, **more)

    monkeypatch.setattr(Config, "verify", then_forged)
    monkeypatch.setattr(dsse, "read", then_genuine)
    with pytest.raises(SignatureError, match="disagree"):
        signing.verify(directory, Trust.of(ctx.workspace).authority(TRAINER))


def test_a_proof_of_resume_that_the_manifest_does_not_name_states_nothing(ctx: Context, line: Any) -> None:
    directory = signing.materialise(ctx, line.checkpoint, line.provenance())
    path = directory / candidate.RESUME_FILE
    assert candidate.resume_facts(line.checkpoint, directory)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b"\n")
    assert candidate.resume_facts(line.checkpoint, directory) is None


def test_replays_that_the_manifest_does_not_name_are_not_claimed(ctx: Context, line: Any) -> None:
    """The state is named by the manifest of a checkpoint, whose commit a trainer has signed; a changed one counts only
    where the manifest names it."""
    directory = signing.materialise(ctx, line.checkpoint, line.provenance())
    path = directory / candidate.STATE_FILE
    monitor = {"guard": {"rollbacks": []}, "replay_checks": {"steps": 9, "samples": 1000, "last": 9}}
    state = {**json.loads(path.read_bytes()), "step": 9, "monitor": monitor}
    path.chmod(0o644)
    forged = json.dumps(state).encode()
    path.write_bytes(forged)
    facts = candidate.resume_facts(line.checkpoint, directory)
    assert facts
    assert "corruption" not in facts
    blob = ctx.store.put_bytes(forged)
    parts = [part for part in line.checkpoint.parts if part.name != candidate.STATE_FILE]
    parts.append(Part(name=candidate.STATE_FILE, blob=blob, rows=0))
    named = line.checkpoint.model_copy(update={"parts": tuple(parts)})
    facts = candidate.resume_facts(named, directory)
    assert facts
    assert facts["corruption"]["replays"]["samples"] == 1000

"""The list is only ever added to; every other change is refused by name, and with it the build."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.corpus.exclusions import exclusion_list
from plinth.errors import SignatureError
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import dsse
from plinth.trust.root import Trust

FIELDS = {"kind": "domain", "found": 3, "reason": "letter of 3 March"}


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def listed(ctx: Context) -> Context:
    for name in ("a.example", "b.example", "c.example"):
        exclusion_list.append(ctx, value=name, **FIELDS)
    return ctx


def file(ctx: Context, number: int) -> Path:
    return ctx.workspace.root / "exclusions" / f"{number:05d}.json"


def test_nothing_is_there_and_no_trust_is_asked_for(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, str(ctx.workspace.root / "nowhere"))
    assert exclusion_list.read(ctx) == ()
    assert exclusion_list.digest(ctx) is None
    with pytest.raises(SignatureError, match="no root of trust"):
        exclusion_list.append(ctx, value="a.example", **FIELDS)
    assert not list((ctx.workspace.root / "exclusions").glob("*.json"))


def test_entries_are_chained_signed_and_counted(listed: Context) -> None:
    entries = exclusion_list.read(listed)
    assert [(one.number, one.value, one.by) for one in entries] == [
        (1, "a.example", "compliance"), (2, "b.example", "compliance"), (3, "c.example", "compliance")
    ]  # fmt: skip
    assert entries[0].prior is None
    assert len({one.prior for one in entries}) == 3
    before = exclusion_list.digest(listed)
    exclusion_list.append(listed, value="d.example", **FIELDS)
    assert exclusion_list.digest(listed) != before


def edit(ctx: Context) -> None:
    envelope = json.loads(file(ctx, 2).read_bytes())
    payload = base64.b64decode(envelope["payload"]).replace(b"b.example", b"x.example")
    file(ctx, 2).write_text(json.dumps(envelope | {"payload": base64.b64encode(payload).decode()}))


def resign(ctx: Context) -> None:
    """By a key that may sign other things."""
    content = dsse.unverified(json.loads(file(ctx, 2).read_bytes()), "2")
    dsse.write(file(ctx, 2), content, Trust.of(ctx.workspace).signer("trainer"))


def replace_whole(ctx: Context) -> None:
    """By `compliance`, so only the chain tells."""
    content = dsse.unverified(json.loads(file(ctx, 2).read_bytes()), "2")
    dsse.write(file(ctx, 2), content, Trust.of(ctx.workspace).signer("compliance"))


def other_subject(ctx: Context) -> None:
    content = dsse.unverified(json.loads(file(ctx, 3).read_bytes()), "3")
    content["subject"][0]["digest"]["sha256"] = "0" * 64
    dsse.write(file(ctx, 3), content, Trust.of(ctx.workspace).signer("compliance"))


ATTACKS: dict[str, tuple[Callable[[Context], object], str]] = {
    "edited": (edit, "signature of .*00002.json does not hold"),
    "another role": (resign, "signature of .*00002.json does not hold"),
    "signed anew": (replace_whole, "broken at .*00003.json"),
    "newest signed anew": (other_subject, "broken at .*00003.json"),
    "taken out": (lambda ctx: file(ctx, 2).unlink(), "broken at .*00003.json"),
    "moved up": (lambda ctx: (file(ctx, 2).unlink(), file(ctx, 3).rename(file(ctx, 2))), "broken at .*00002.json"),
    "cut short": (lambda ctx: file(ctx, 3).unlink(), "newest entries of the .* list are missing"),
    "all gone": (lambda ctx: [file(ctx, n).unlink() for n in (1, 2, 3)], "newest entries of the .* list are missing"),
    "torn": (lambda ctx: file(ctx, 2).write_bytes(b'{"pay'), "00002.json is not a DSSE envelope"),
    "a list": (lambda ctx: file(ctx, 2).write_bytes(b"[]"), "00002.json is not a DSSE envelope"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_other_change_is_refused_by_name(listed: Context, attack: str) -> None:
    change, said = ATTACKS[attack]
    exclusion_list.read(listed)
    change(listed)
    with pytest.raises(SignatureError, match=said):
        exclusion_list.read(listed)
    with pytest.raises(SignatureError):
        exclusion_list.append(listed, value="d.example", **FIELDS)


def test_an_entry_about_another_rule_is_refused_by_a_new_machine(listed: Context, own_trust: Path) -> None:
    other_subject(listed)
    (own_trust / "seen.json").unlink(missing_ok=True)
    with pytest.raises(SignatureError, match=r"00003\.json is about another rule"):
        exclusion_list.read(listed)


def test_other_files_beside_the_entries_are_refused(listed: Context) -> None:
    (listed.workspace.root / "exclusions" / "notes.json").write_text("{}")
    with pytest.raises(SignatureError, match=r"notes\.json is not a signed record"):
        exclusion_list.read(listed)

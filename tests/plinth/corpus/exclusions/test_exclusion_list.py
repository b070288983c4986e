"""The list is only ever added to; every other change is refused by name, and with it the build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.corpus import exclusions
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
        exclusions.append(ctx, value=name, **FIELDS)
    return ctx


def file(ctx: Context, number: int) -> Path:
    return ctx.workspace.root / "exclusions" / f"{number:05d}.json"


def test_nothing_is_there_and_no_trust_is_asked_for(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, str(ctx.workspace.root / "nowhere"))
    assert exclusions.read(ctx) == ()
    assert exclusions.digest(ctx) is None
    with pytest.raises(SignatureError, match="no root of trust"):
        exclusions.append(ctx, value="a.example", **FIELDS)
    assert not list((ctx.workspace.root / "exclusions").glob("*.json"))


def test_entries_are_chained_signed_and_counted(listed: Context) -> None:
    entries = exclusions.read(listed)
    assert [(one.number, one.value, one.by) for one in entries] == [
        (1, "a.example", "compliance"), (2, "b.example", "compliance"), (3, "c.example", "compliance")
    ]  # fmt: skip
    assert entries[0].prior is None
    assert len({one.prior for one in entries}) == 3
    before = exclusions.digest(listed)
    exclusions.append(listed, value="d.example", **FIELDS)
    assert exclusions.digest(listed) != before


def other_subject(ctx: Context) -> None:
    content = dsse.unverified(json.loads(file(ctx, 3).read_bytes()), "3")
    content["subject"][0]["digest"]["sha256"] = "0" * 64
    dsse.write(file(ctx, 3), content, Trust.of(ctx.workspace).signer("compliance"))


def test_an_entry_about_another_rule_is_refused_by_a_new_machine(listed: Context, own_trust: Path) -> None:
    other_subject(listed)
    (own_trust / "seen.json").unlink(missing_ok=True)
    with pytest.raises(SignatureError, match=r"00003\.json is signed for a different rule"):
        exclusions.read(listed)

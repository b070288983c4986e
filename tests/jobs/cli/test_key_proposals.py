"""`plinth keys … --propose`, `sign` and `publish`, as the holders of a root type them on two machines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import dsse, enrolment, root
from plinth.trust.dsse import ROOT
from plinth.trust.root import Trust

Plinth = Callable[..., Any]


def test_two_holders_change_a_root_and_the_log_has_what_each_did(
    plinth: Plinth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path / "workspace").ensure()
    ben = tmp_path / "ben's"
    monkeypatch.setenv(TRUST_VARIABLE, str(ben))
    (public := tmp_path / "ben.pub").write_text(plinth("keys", "new", "root", "ben [red]x").out)
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "ada's"))
    folder = enrolment.initialise(workspace, "acme", ["ada"]).folder
    shutil.copy(folder / root.ROOT_FILE, ben)
    assert plinth("keys", "enrol", "root", public, "--owner", "ben [red]x").code == 0
    proposed = plinth("keys", "threshold", "root", "2", "--propose", "next.json")
    assert proposed.code == 0, proposed.err
    assert "  root: needs 2 keys, was 1\nsigned by root; missing: 1 by root keys of version 3\n" in proposed.out
    assert plinth("keys", "publish", "next.json").code == 8
    assert plinth("keys", "threshold", "root", "2", "--propose", "next.json").code == 8  # never written over
    monkeypatch.setenv(TRUST_VARIABLE, str(ben))
    assert plinth("keys", "sign", "next.json").code != 0  # the question gets no answer
    assert "missing" in plinth("keys", "sign", "next.json", "--yes").out.split("signed by")[1]
    signed = plinth("keys", "sign", "next.json", "--yes").out
    assert signed.endswith("signed by ben [red]x, root; ready to publish: `plinth keys publish FILE`\n")
    assert plinth("keys", "publish", "next.json").out.startswith("root acme version 3, until ")
    assert plinth("keys", "renew").code == 8  # one holder's key is not enough any more
    found = json.loads(plinth("release", "log", "--json").out)
    told = [(each["outcome"], each["actor"], each["subject"].partition(",")[0]) for each in found]
    assert told == [
        ("done", "root", "enrol root ben [red]x"),
        ("done", "root", "threshold of root 2"),
        ("refused", "root", "publish next.json"),
        ("refused", "root", "threshold of root 2"),
        ("done", "ben [red]x", "sign version 3 of root acme"),
        ("done", "ben [red]x", "sign version 3 of root acme"),
        ("done", "ben [red]x", "publish root acme version 3"),
        ("refused", "ben [red]x", "renew for 365 days"),
    ]


def test_an_expired_root_of_two_is_renewed(plinth: Plinth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "ada's"))
    workspace = Workspace(tmp_path / "workspace").ensure()
    trust = enrolment.initialise(workspace, "acme", ["ada"])
    late = trust.root.model_copy(update={"expires": (datetime.now(UTC) - timedelta(days=1)).isoformat()})
    (trust.folder / root.ROOT_FILE).write_text(json.dumps(root.sign(late, [trust.signer(ROOT)])))
    assert plinth("keys", "show").code == 8
    proposed = plinth("keys", "renew", "--days", "9", "--propose", "next.json")
    assert (proposed.code, "ready" in proposed.out) == (0, True), proposed.err
    assert plinth("keys", "publish", "next.json").code == 0
    assert Trust.of(workspace).root.version == 2
    assert dsse.signed_by(dsse.envelope_of(root.version_path(workspace, 2)), trust.authority(ROOT)) == (ROOT,)

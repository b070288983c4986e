"""`plinth corpus takedown` as a person and as a program sees it; foreign text does not command the terminal."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.provenance.ledger_columns import BASE
from plinth.records import Manifest
from plinth.storage.parts import DOCUMENT_SCHEMA, read_table, write_table
from plinth.storage.workspace import Workspace
from plinth_audit.takedown import report as takedown

HOSTILE = "https://example.org/\x1b]0;owned\x07[red]x"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A ledger of three documents, one of them with a hostile address."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    uris = [HOSTILE, "https://example.org/b", "https://müller.example/ü"]
    same = {"bucket": "web", "snapshot": "s", "licence": "MIT", "mime": "text/plain", "source_bytes": 1}
    same |= {"decision": "train", "fired": [], "edits": 0, "edited_characters": 0, "text": "a text", "extra": "{}"}
    inputs: dict[str, str] = {}
    for asset, schema, folder in (("web/documents", DOCUMENT_SCHEMA, ""), ("ledger", BASE, "web/")):
        ids = [bytes([0] * 15 + [n]) for n in range(3)]
        named = [own.hex() if asset == "ledger" else own for own in ids]
        rows = [same | {"id": id_, "uri": uri} for id_, uri in zip(named, uris, strict=True)]
        part = write_table(ctx.store, f"{folder}part-00000.parquet", pa.Table.from_pylist(rows, schema=schema))
        made = Manifest(asset=asset, step=asset, version="1", params={}, inputs=inputs, parts=(part,),
                        stats={"documents": 3})  # fmt: skip
        ctx.refs.publish(made, made.digest)
        inputs = {asset: made.digest}
    return tmp_path / "workspace"


def test_find_shows_foreign_names_safely(plinth: Callable[..., Any], workspace: Path) -> None:
    shown = plinth("corpus", "takedown", "find", "--domain", "example.org", "-w", workspace)
    assert shown.code == 0, shown.err
    assert "2 documents in the corpus" in shown.out
    assert "\x1b]0" not in shown.out
    assert "\\x1b]0;owned\\x07[red]x" in shown.out


def test_find_in_punycode_and_escapes_for_a_program(plinth: Callable[..., Any], workspace: Path) -> None:
    shown = plinth("corpus", "takedown", "find", "--url", "xn--mller-kva.example/%c3%bc", "-w", workspace, "--json")
    found = json.loads(shown.out)
    assert [one["id"] for one in found["found"]["documents"]] == [f"{2:032x}"]
    assert (found["runs"], found["models"], found["notes"]) == ([], [], [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "expected one of"),
        (("--url", "x", "--domain", "example.org"), "found 2"),
        (("--domain", "com"), "not valid for a takedown"),
        (("--text", ""), "not valid for a takedown"),
    ],
)
def test_wrong_targets_are_usage_errors(
    plinth: Callable[..., Any], workspace: Path, options: tuple[str, ...], said: str
) -> None:
    shown = plinth("corpus", "takedown", "find", *options, "-w", workspace)
    assert shown.code == 2
    assert said in shown.err


def test_exclude_counts_signs_and_is_listed(plinth: Callable[..., Any], workspace: Path) -> None:
    reason = "a letter \x1b[31m"
    shown = plinth(
        "corpus", "takedown", "exclude", "--url", "example.org/b", "--no-texts", "--reason", reason, "-w", workspace
    )
    assert shown.code == 0, shown.err
    assert "Entry 1 removes 1 of 3 documents (33.3%); `plinth run` rewrites 1 of 1 parts" in shown.out
    shown = plinth("corpus", "takedown", "list", "-w", workspace)
    assert "example.org/b" in shown.out
    assert "a letter \\x1b[31m" in shown.out
    (entry,) = json.loads(plinth("corpus", "takedown", "list", "-w", workspace, "--json").out)
    named = {name: entry[name] for name in ("kind", "value", "by", "reason")}
    assert named == {"kind": "url", "value": "example.org/b", "by": "compliance", "reason": reason}


def test_half_the_corpus_needs_yes_with_the_count(plinth: Callable[..., Any], workspace: Path) -> None:
    asked = ("corpus", "takedown", "exclude", "--licence", "MIT", "--reason", "a letter", "-w", workspace)
    shown = plinth(*asked)
    assert shown.code == 2
    assert "this exclusion removes 3 of 3 documents (100.0%)" in shown.err
    assert "--yes" in shown.err
    assert "This would remove 3 of 3" in plinth(*asked, "--dry-run").out
    assert json.loads(plinth("corpus", "takedown", "list", "-w", workspace, "--json").out) == []
    assert json.loads(plinth(*asked, "--yes", "--json").out)["entry"] == 1


def test_a_list_edited_by_hand_is_refused_by_name(plinth: Callable[..., Any], workspace: Path) -> None:
    plinth("corpus", "takedown", "exclude", "--domain", "example.org", "--reason", "a letter", "--yes", "-w", workspace)
    path = workspace / "exclusions" / "00001.json"
    envelope = json.loads(path.read_bytes())
    payload = base64.b64decode(envelope["payload"]).replace(b"example.org", b"example.net")
    path.write_text(json.dumps(envelope | {"payload": base64.b64encode(payload).decode()}))
    for command in (("list",), ("exclude", "--url", "x.example/1", "--reason", "a letter")):
        shown = plinth("corpus", "takedown", *command, "-w", workspace)
        assert shown.code == 8
        assert "00001.json is invalid" in shown.err


def test_a_report_waits_for_the_corpus_and_is_then_signed(
    plinth: Callable[..., Any], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = plinth("corpus", "takedown", "report", "-w", workspace)
    assert (shown.code, "no recipe was run in" in shown.err) == (3, True)
    monkeypatch.setattr(takedown, "downstream", lambda ctx, recipe: ())
    asked = ("-w", workspace, "-r", "tiny")
    shown = plinth("corpus", "takedown", "report", *asked)
    assert (shown.code, "no such entry" in shown.err) == (3, True)
    plinth("corpus", "takedown", "exclude", "--domain", "example.org", "--reason", "a letter", "--yes", "-w", workspace)
    shown = plinth("corpus", "takedown", "report", *asked)
    assert (shown.code, "2 excluded documents are still in web/documents" in shown.err) == (6, True)
    ctx = Context(Workspace(workspace))
    for asset in ("web/documents", "ledger"):  # as `plinth run` makes them again: without both
        made = ctx.refs.current(asset)
        table = read_table(ctx.store, made.parts[0]).slice(2)
        inputs = {"web/documents": ctx.refs.current("web/documents").digest} if asset == "ledger" else {}
        facts = {**made.model_dump(), "inputs": inputs, "parts": (write_table(ctx.store, made.parts[0].name, table),)}
        ctx.refs.publish(again := Manifest.model_validate(facts), again.digest)
    shown = plinth("corpus", "takedown", "report", *asked)
    assert shown.code == 0, shown.err
    assert "1 published document checked, 0 hits" in shown.out
    assert "copies that Plinth has no record of" in shown.out
    folder = workspace / "takedown" / "00001"
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.json", "report.md"]
    shown = plinth("corpus", "takedown", "report", "1", "--checkpoint", "0" * 64, *asked)
    assert shown.code == 3

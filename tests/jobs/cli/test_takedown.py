"""`plinth takedown` as a person and as a program sees it; foreign text does not command the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.provenance.ledger.columns import BASE
from plinth.records import Manifest
from plinth.storage.parts import write_table
from plinth.storage.workspace import Workspace

HOSTILE = "https://example.org/\x1b]0;owned\x07[red]x"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A ledger of three documents, one of them with a hostile address."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    uris = [HOSTILE, "https://example.org/b", "https://müller.example/ü"]
    rows = [{"id": f"{n:032x}", "uri": uri} for n, uri in enumerate(uris)]
    same = {"bucket": "web", "snapshot": "s", "licence": "MIT", "mime": "text/plain", "source_bytes": 1}
    same |= {"decision": "train", "fired": [], "edits": 0, "edited_characters": 0}
    table = pa.Table.from_pylist([same | row for row in rows], schema=BASE)
    part = write_table(ctx.store, "web/part-00000.parquet", table)
    made = Manifest(asset="ledger", step="ledger", version="1", params={}, inputs={}, parts=(part,))
    ctx.refs.publish(made, made.digest)
    return tmp_path / "workspace"


def test_find_shows_foreign_names_safely(plinth: Callable[..., Any], workspace: Path) -> None:
    shown = plinth("takedown", "find", "--domain", "example.org", "-w", workspace)
    assert shown.code == 0, shown.err
    assert "2 documents in the corpus" in shown.out
    assert "\x1b]0" not in shown.out
    assert "\\x1b]0;owned\\x07[red]x" in shown.out


def test_find_in_punycode_and_escapes_for_a_program(plinth: Callable[..., Any], workspace: Path) -> None:
    shown = plinth("takedown", "find", "--url", "xn--mller-kva.example/%c3%bc", "-w", workspace, "--json")
    found = json.loads(shown.out)
    assert [one["id"] for one in found["found"]["documents"]] == [f"{2:032x}"]
    assert (found["runs"], found["models"], found["notes"]) == ([], [], [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give one of"),
        (("--url", "x", "--domain", "example.org"), "found 2"),
        (("--domain", "com"), "nothing to take down"),
        (("--text", ""), "nothing to take down"),
    ],
)
def test_wrong_targets_are_usage_errors(
    plinth: Callable[..., Any], workspace: Path, options: tuple[str, ...], said: str
) -> None:
    shown = plinth("takedown", "find", *options, "-w", workspace)
    assert shown.code == 2
    assert said in shown.err

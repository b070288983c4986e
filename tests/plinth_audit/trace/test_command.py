"""`plinth corpus trace` as a person and as a program sees it; foreign text does not command the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.records import Manifest
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth_audit.trace import trace_index

PASSAGE = " ".join(f"the [red]{n}th\x1b[2J river\x9b31m\u202e" for n in range(30))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Twelve documents that hold the passage, published with their trace index."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    rows = [
        {
            "id": bytes([n] * 16),
            "text": f"{n} before it. {PASSAGE} And {n} after.",
            "uri": f"https://example.org/\x1b]0;owned\x07{n}",
            "captured_at": None,
            "snapshot": "s",
            "licence": "MIT",
            "mime": "text/plain",
            "source_bytes": 1,
            "extra": "{}",
        }
        for n in range(12)
    ]
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    curated = Manifest(asset="web/curated", step="made", version="1", params={}, inputs={}, parts=(part,))
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=300), {"web": curated})
    cut = shards.run(ctx, "web", Shards(), trained, curated)
    for made in (curated, trained, cut, trace_index.run(ctx, "web", cut, curated)):
        ctx.refs.publish(made, key=made.digest)
    return tmp_path / "workspace"


def test_a_passage_of_many_documents_is_counted_and_shown_safely(
    plinth: Callable[..., Any], workspace: Path, tmp_path: Path
) -> None:
    shown = plinth("corpus", "trace", PASSAGE, "-w", workspace, "--documents", 3)
    assert shown.code == 0, shown.err
    assert "12 times in 12 documents" in shown.out
    assert "and 9 more" in shown.out
    assert "[red]0th\\x1b[2J river\\x9b31m\\u202e" in shown.out
    assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(shown.out)
    (tmp_path / "answer.txt").write_text(PASSAGE, encoding="utf-8")
    programs = plinth("corpus", "trace", tmp_path / "answer.txt", "-w", workspace, "--json")
    assert not {"\x1b", "\x9b"} & set(programs.out)
    found = json.loads(programs.out)
    (span,) = found["spans"]
    assert span["occurrences"] == span["documents"] == 12
    assert span["text"] == f" {PASSAGE}"  # the first word too, which a line's beginning would tokenize otherwise
    assert [one["id"] for one in span["found"]] == [bytes([n] * 16).hex() for n in range(10)]
    assert found["covered"] == found["tokens"]


def test_what_is_no_text_and_what_is_nowhere(plinth: Callable[..., Any], workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    refused = plinth("corpus", "trace", tmp_path / "binary", "-w", workspace)
    assert (refused.code, "is not a text file" in refused.err) == (3, True)
    (tmp_path / "half").write_bytes(PASSAGE.encode() + b"\xff")
    assert "is not a text file" in plinth("corpus", "trace", tmp_path / "half", "-w", workspace).err
    nowhere = plinth("corpus", "trace", "nobody has written this", "-w", workspace)
    assert "0 spans" in nowhere.out
    assert "no completions of a checkpoint" in plinth("corpus", "trace", "latest", "-w", workspace).err
    assert plinth("corpus", "trace", "x", "-w", workspace, "--least", 8).code == 2


@pytest.mark.parametrize("text", ["", " ", "a", "\x1b[2J\x07\x00", "nothing.txt"])
def test_a_text_that_is_too_short_says_so(
    plinth: Callable[..., Any], workspace: Path, tmp_path: Path, text: str
) -> None:
    (tmp_path / "short").write_text(text)
    shown = plinth("corpus", "trace", tmp_path / "short", "-w", workspace)
    assert (shown.code, shown.err) == (0, "")
    assert "0 spans" in shown.out
    assert "The text is shorter than the minimum span" in shown.out
    assert not {"\x1b", "\x07", "\x00"} & set(shown.out)


def test_a_folder_is_no_text(plinth: Callable[..., Any], workspace: Path, tmp_path: Path) -> None:
    for target in (tmp_path, ".", "workspace/"):
        refused = plinth("corpus", "trace", target, "-w", workspace)
        assert (refused.code, "is a folder" in refused.err) == (3, True)
    for command in ("corpus trace", "corpus near", "explain"):
        refused = plinth(*command.split(), "\udcff", "-w", workspace)
        assert (refused.code, "is not valid UTF-8" in refused.err) == (2, True)


def test_a_long_text_of_frequent_spans_alone(plinth: Callable[..., Any], workspace: Path, tmp_path: Path) -> None:
    """A span that every document contains is counted in full, each time that the text repeats it."""
    (tmp_path / "answer.txt").write_text(f"{PASSAGE} " * 100, encoding="utf-8")
    found = json.loads(plinth("corpus", "trace", tmp_path / "answer.txt", "-w", workspace, "--json").out)
    assert len(found["spans"]) == 100
    assert {(span["occurrences"], span["documents"]) for span in found["spans"]} == {(12, 12)}

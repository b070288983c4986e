"""`plinth corpus limits`: from a bucket of a workspace to a list that a recipe names."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from plinth.compute.context import Context, manifest
from plinth.corpus import annotate
from plinth.corpus.annotate.rules.fineweb import read
from plinth.records import Step
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.workspace import Workspace

Plinth = Callable[..., Any]


def bucket(folder: Path, texts: list[str]) -> None:
    """A workspace with documents and the sidecar of languages."""
    ctx = Context(Workspace(folder))
    row = {"captured_at": None, "snapshot": "", "licence": "MIT", "mime": "text/plain", "extra": "{}"}
    rows = [
        row | {"id": number.to_bytes(16), "text": text, "uri": str(number), "source_bytes": len(text)}
        for number, text in enumerate(texts)
    ]
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    documents = manifest("books/documents", Step(name="documents", version="1"), {}, [part], {})
    for made in (documents, annotate.run(ctx, "books", "language", {}, documents)):
        ctx.refs.publish(made, key=made.digest)


def test_limits_are_written_for_every_language_with_enough_text(plinth: Plinth) -> None:
    sentences = importlib.import_module("spacy.lang.ja.examples").sentences
    bucket(Path("w"), ["".join(sentences) + str(number) for number in range(110)])
    made = plinth("-w", "w", "corpus", "limits", "--bucket", "books", "--out", "limits.jsonl")
    assert made.code == 0, made.err
    limits = read(Path("limits.jsonl").read_text("utf-8").splitlines(), "limits.jsonl")
    assert list(limits) == ["ja"]
    assert "の" in limits["ja"].stop_words
    assert json.loads(Path("limits.jsonl").read_text("utf-8"))["ended_lines"] == limits["ja"].ended_lines


def test_too_little_text_is_named(plinth: Plinth) -> None:
    bucket(Path("w"), ["".join(importlib.import_module("spacy.lang.ja.examples").sentences)])
    few = plinth("-w", "w", "corpus", "limits", "--bucket", "books", "--language", "ja", "--out", "limits.jsonl")
    assert few.code != 0
    assert "too few documents in ja" in few.err
    none = plinth("-w", "w", "corpus", "limits", "--bucket", "books", "--out", "limits.jsonl")
    assert none.code == 3
    assert "no language with enough documents" in none.err
    assert not Path("limits.jsonl").exists()
    assert plinth("-w", "w", "corpus", "limits", "--bucket", "boks", "--out", "limits.jsonl").code == 3

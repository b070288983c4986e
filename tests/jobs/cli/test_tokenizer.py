"""`plinth tokens tokenizer` shows what the audit found, and writes a text in the published tokenizer's tokens."""

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
from plinth.tokens.tokenizer import audit, tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters

Plinth = Callable[..., Any]
TEXTS = ["the house by the river 42", "import os\n\nprint(42)\n"] * 20


@pytest.fixture
def audited(tmp_path: Path) -> Manifest:
    """A tokenizer of one bucket, trained, audited and published."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    rows = [
        {"id": row.to_bytes(16, "big"), "text": text, "uri": f"web://{row}", "snapshot": "s", "licence": "MIT"}
        | {"mime": "text/plain", "source_bytes": 1, "extra": '{"domain": "web.example"}'}
        for row, text in enumerate(TEXTS)
    ]
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    labels = write_table(ctx.store, "part-00000.parquet", pa.table({"label": ["en"] * len(TEXTS)}))

    def made(asset: str, one: Any) -> dict[str, Manifest]:
        return {"web": Manifest(asset=asset, step="made", version="1", params={}, inputs={}, parts=(one,))}

    curated = made("web/curated", part)
    params = TokenizerParameters(kind="bpe-fallback", vocab_size=400)
    trained = tokenizer.run(ctx, params, curated)
    found = audit.run(ctx, params, trained, curated, made("web/documents", part), made("web/language", labels))
    for manifest in (trained, found):
        ctx.refs.publish(manifest, "key")
    return found


def test_the_audit_is_shown(plinth: Plinth, audited: Manifest) -> None:
    shown = plinth("tokens", "tokenizer")
    assert shown.code == 0, shown.err
    for name in ("web.example", "dead tokens", "longest run of digits"):
        assert name in shown.out
    assert json.loads(plinth("tokens", "tokenizer", "--json").out) == audited.stats


def test_a_text_in_tokens(plinth: Plinth, audited: Manifest) -> None:
    rows = json.loads(plinth("tokens", "tokenizer", "--text", "river 42 𓀀", "--json").out)
    assert b"".join(bytes.fromhex(row["bytes"]) for row in rows).decode() == "river 42 𓀀"
    assert "'4'" in plinth("tokens", "tokenizer", "-t", "42").out


def test_without_a_tokenizer(plinth: Plinth) -> None:
    assert plinth("tokens", "tokenizer").code == 3

"""A sample of every part is compared with the tokenizers library; one wrong token is damage, named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.shards import staged_tokens
from plinth.tokens.shards.staged_tokens import TokeniseTask
from plinth.tokens.tokenizer import comparison, encode, tokenizer
from plinth.tokens.tokenizer.byte_level import ByteLevel
from plinth.tokens.tokenizer.comparison import SampleComparison
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.reference import Encoded, Reference

TEXTS = [f"the house {i} by the river" for i in range(1000)]
END = 0


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    made = tokenizer.train(TokenizerParameters(vocab_size=400), TEXTS)
    made.encode_special_tokens = True
    return made


def compared(trained: Tokenizer, columns: list[list[str]], rows: int) -> SampleComparison:
    encoder = ByteLevel(trained, END)
    made = SampleComparison(trained, encoder, END, rows, "part-00000.parquet")
    for texts in columns:
        column = pa.array(texts, pa.large_string())
        made.add(column, encoder.encode(column, "<u2"))
    return made


def test_documents_in_equal_steps_however_they_are_cut(trained: Tokenizer) -> None:
    whole = compared(trained, [TEXTS], len(TEXTS))
    parts = compared(trained, [TEXTS[:1], [], TEXTS[1:400], TEXTS[400:]], len(TEXTS))
    assert whole.documents == parts.documents == 4  # 1,000 // 256 is less than the least
    assert whole.bytes == parts.bytes == sum(len(TEXTS[row]) for row in range(0, 1000, 250))
    assert compared(trained, [TEXTS[:3]], 3).documents == 3
    assert compared(trained, [], 0).documents == 0


def test_long_documents_are_left_out(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "DOCUMENT_BYTES", 10)
    assert compared(trained, [["short", "a text that is too long", ""]], 3).documents == 2
    monkeypatch.setattr(comparison, "PART_BYTES", 6)
    assert compared(trained, [["four", "four", "four", "four"]], 4).documents == 2


def test_one_wrong_token_is_named(trained: Tokenizer) -> None:
    encoder = ByteLevel(trained, END)
    column = pa.array(TEXTS, pa.large_string())
    ids, first = encoder.encode(column, "<u2")
    for damage in (lambda ids, at: ids.__setitem__(at, ids[at] + 1), lambda ids, at: ids.__setitem__(at, END)):
        wrong = ids.copy()
        damage(wrong, first[250] + 1)
        with pytest.raises(IntegrityError, match=r"gigatoken 0\.10\.0 and the tokenizers library encode document 250"):
            SampleComparison(trained, encoder, END, len(TEXTS), "part-00000.parquet").add(column, (wrong, first))
    other = SampleComparison(trained, Reference(trained, END), END, len(TEXTS), "part-00000.parquet")
    other.add(column, (ids, first))
    assert other.documents == 0  # the library itself encoded


def test_damage_stops_the_stage(trained: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = Context(Workspace(tmp_path).ensure())
    blank = {"captured_at": None, "snapshot": "s", "licence": "MIT", "mime": "text/plain"}
    blank |= {"source_bytes": 1, "extra": "{}"}
    rows = [{"id": i.to_bytes(16, "big"), "text": text, "uri": f"file:{i}"} | blank for i, text in enumerate(TEXTS)]
    curated = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    blob = ctx.store.put_bytes(trained.to_str().encode())
    task = TokeniseTask("web", blob, curated, "<u2", END)
    (made,) = staged_tokens.tokenise(ctx, "web/shards", [task])
    assert made.stats["encoder"] == "gigatoken 0.10.0"
    assert made.stats["compared"] == {"documents": 4, "bytes": sum(len(TEXTS[row]) for row in range(0, 1000, 250))}

    (the,) = trained.encode("the").ids

    class Damaged(ByteLevel):
        def encode(self, texts: pa.Array, dtype: str) -> Encoded:
            ids, first = super().encode(texts, dtype)
            return np.where(ids == the, the + 1, ids).astype(dtype), first

    monkeypatch.setattr(encode, "ByteLevel", Damaged)
    staged_tokens._encoder.cache_clear()
    try:
        with pytest.raises(IntegrityError, match=r"encode document 0 of part-00000\.parquet differently"):
            staged_tokens._tokenise(ctx.store, task)
    finally:
        staged_tokens._encoder.cache_clear()

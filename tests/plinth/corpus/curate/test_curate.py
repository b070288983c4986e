"""Curated text: edits by code point, exactly; held-out text apart; nothing else changed."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.corpus.curate import apply_edits
from plinth.corpus.protected.parameters import Holdout
from plinth.errors import StageError
from plinth.storage.parts import DOCUMENT_SCHEMA, read_table


def edit(start: int, end: int, replacement: str = "") -> dict[str, Any]:
    return {"start_cp": start, "end_cp": end, "replacement": replacement}


@pytest.mark.parametrize(
    "edits", [[edit(2, 4)], [edit(1, 2), edit(1, 3)], [edit(2, 3), edit(0, 1)], [edit(2, 1)], [edit(-1, 1)]]
)
def test_spans_that_make_no_sense_are_refused(edits: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="code points"):
        apply_edits("abc", edits)


@given(st.text(), st.lists(st.tuples(st.integers(0, 30), st.text(max_size=3)), max_size=5))
def test_edits_never_cut_a_character_and_keep_what_lies_between(text: str, cuts: list[tuple[int, str]]) -> None:
    points = sorted({min(point, len(text)) for point, _ in cuts})
    spans = list(zip(points[::2], points[1::2], strict=False))
    edits = [edit(start, end, replacement) for (start, end), (_, replacement) in zip(spans, cuts, strict=False)]
    result = apply_edits(text, edits)
    outside, at = [], 0
    for one in edits:
        outside.append(text[at : one["start_cp"]])
        at = one["end_cp"]
    inserted = sum(len(one["replacement"]) for one in edits)
    assert len(result) == len("".join([*outside, text[at:]])) + inserted
    position = 0
    for piece, one in zip(outside, edits, strict=True):
        assert result.startswith(piece + one["replacement"], position)
        position += len(piece) + len(one["replacement"])
    assert result[position:] == text[at:]


def test_curated_rows_are_the_documents_but_for_their_edits(tiny: Any) -> None:
    docs = [
        tiny.Doc("first: plain text of the first", name="1"),
        tiny.Doc("zweitens: schöne Grüße an ü@ü.de, ja", name="2", edits=((26, 32, "<email>"),)),
        tiny.Doc("third is dropped", name="3", fired=("bad",), edits=((0, 5, "x"),)),
        tiny.Doc("fourth 日本 text stays", name="4", edits=((7, 8, ""), (8, 9, "J"))),
    ]
    corpus = tiny.corpus({"a": [docs[:1], docs[1:]]}, holdout_params=Holdout(fraction=1e-9, min_documents=1))
    curated = corpus.through_curated()["a"]
    assert [part.name for part in curated.parts] == [
        "part-00000.parquet", "part-00001.parquet", "heldout-00000.parquet", "heldout-00001.parquet",
    ]  # fmt: skip
    tables = {part.name: read_table(tiny.ctx.store, part) for part in curated.parts}
    assert all(table.schema == DOCUMENT_SCHEMA for table in tables.values())
    expected = {docs[0].id: docs[0].text, docs[1].id: "zweitens: schöne Grüße an <email>, ja"}
    expected[docs[3].id] = "fourth J text stays"
    found = pa.concat_tables(tables.values()).to_pylist()
    assert {row["id"]: row["text"] for row in found} == expected
    assert sum(part.rows for part in curated.named("heldout-")) == 1
    originals = pa.concat_tables([read_table(tiny.ctx.store, part) for part in corpus.documents["a"].parts]).to_pylist()
    by_id = {row["id"]: row for row in originals}
    assert all({**by_id[row["id"]], "text": row["text"]} == row for row in found)
    stats = curated.stats
    assert (stats["documents"], stats["heldout_documents"], stats["edits"], stats["edited_documents"]) == (2, 1, 3, 2)
    assert stats["text_bytes"] + stats["heldout_bytes"] == sum(len(text.encode()) for text in expected.values())
    before = sum(len(doc.text.encode()) for doc in docs if not doc.fired)
    assert before - stats["edited_away_bytes"] == stats["text_bytes"] + stats["heldout_bytes"]


def test_wrong_edits_name_the_document(tiny: Any) -> None:
    doc = tiny.Doc("short", edits=((3, 9, ""),))
    corpus = tiny.corpus({"a": [[doc]]})
    with pytest.raises(StageError, match=doc.id.hex()):
        corpus.through_curated()

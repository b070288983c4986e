"""The ledger: a row per document that agrees with every stage, on any number of workers, asked through DuckDB."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.errors import IntegrityError, WorkspaceError
from plinth.provenance import ledger, ledger_columns
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.tokens.shards.index import open_part, write_index
from plinth.tokens.shards.reader import ShardReader
from tests import judged_corpus
from tests.judged_corpus import ANNOTATORS, PLANTED, ledger_of
from tests.peers import Peer

duckdb = Peer("duckdb")

GUIDE = Path(__file__).parents[4] / "docs" / "audit.md"


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return judged_corpus.copy(tmp_path_factory, tmp_path_factory.mktemp("judged"))


@pytest.fixture(scope="module")
def exported(ctx: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "ledger"
    made = ledger.run(ctx, ledger_of(ctx))
    ctx.refs.publish(made, "key")
    ledger.export(ctx, made, folder)
    return folder


def ask(folder: Path, question: str) -> list[dict[str, Any]]:
    """Return DuckDB's answer to a query, in which `ledger/` is the folder."""
    found = duckdb.connect().sql(question.replace("'ledger/", f"'{folder}/"))
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def test_verdicts_by_reason(ctx: Context, exported: Path) -> None:
    rows = ask(
        exported, "select bucket, decision, reason, count(*) n, sum(text_bytes) b from 'ledger/*.parquet' group by all"
    )
    for bucket in PLANTED:
        stats = ctx.refs.current(f"{bucket}/verdicts").stats
        own = [row for row in rows if row["bucket"] == bucket]
        assert {row["reason"]: row["n"] for row in own if row["reason"]} == stats["reasons"]
        assert {row["reason"]: row["b"] for row in own if row["reason"]} == stats["reason_bytes"]
        assert sum(row["n"] for row in own if row["decision"] == "train") == stats["decisions"]["train"]
    stages = ask(exported, "select stage, count(*) n from 'ledger/*.parquet' where stage is not null group by all")
    total = ctx.refs.current("funnel").stats["total"]["stages"]
    removed = {row["stage"]: row["removed"] for row in total if row["stage"] not in ("documents", "curated")}
    assert {row["stage"]: row["n"] for row in stages} == {stage: n for stage, n in removed.items() if n}


def test_every_column_is_that_of_its_stage(ctx: Context, exported: Path) -> None:
    rows = {row["id"]: row for row in ask(exported, "select * from 'ledger/*.parquet'")}
    assert len(rows) == sum(sum(counts) for counts in PLANTED.values())
    for bucket in PLANTED:
        first = 0
        for number, part in enumerate(ctx.refs.current(f"{bucket}/documents").named("part-")):
            documents = read_table(ctx.store, part).to_pylist()
            scores = {
                name: read_table(ctx.store, ctx.refs.current(f"{bucket}/{name}").named("part-")[number]).to_pylist()
                for name in (*ANNOTATORS, "policy")
            }
            for row, document in enumerate(documents):
                told = rows[document["id"].hex()]
                assert told["uri"] == judged_corpus.uri(bucket, first + row)
                assert (told["bucket"], told["source"], told["domain"]) == (bucket, 0, "a.example")
                assert (told["may_train"], told["may_redistribute"]) == (True, False)
                assert told["text_bytes"] == len(document["text"].encode())
                assert told["gopher_quality__word_count"] == scores["gopher_quality"][row]["word_count"]
                assert told["licence__permitted"] == scores["licence"][row]["permitted"]
                assert told["pii__spans"] == len(scores["pii"][row]["spans"])
                assert told["fired"] == scores["policy"][row]["fired"]
            first += len(documents)


def test_edits_count_where_they_were_made(ctx: Context, exported: Path) -> None:
    (row,) = ask(
        exported, "select sum(edits) n, sum(edited_characters) c from 'ledger/*.parquet' where decision = 'train'"
    )
    stats = [ctx.refs.current(f"{bucket}/curated").stats for bucket in PLANTED]
    held = ask(exported, "select coalesce(sum(edits), 0) n from 'ledger/*.parquet' where decision = 'heldout'")[0]["n"]
    assert row["n"] + held == sum(one["edits"] for one in stats) == 2
    assert row["c"] > 0


def test_places_in_the_shards(ctx: Context, exported: Path) -> None:
    columns = "id, shard, position, tokens, mixture_weight, mixture_epochs"
    mixture = ctx.refs.current("mixture").stats
    for bucket in PLANTED:
        shards = ctx.refs.current(f"{bucket}/shards")
        reader = ShardReader(ctx.store, shards)
        starts = {part.name: int(part.stats["start"]) for part in shards.named("shard-")}
        question = f"select {columns} from 'ledger/*.parquet' where bucket = '{bucket}' and decision = 'train'"
        rows = ask(exported, question)
        assert len(rows) == reader.documents_count
        for row in rows:
            (span,) = reader.index.find(bytes.fromhex(row["id"]))
            assert (starts[row["shard"]] + row["position"], row["tokens"]) == (span.start, span.tokens)
            own = mixture["buckets"][bucket]
            assert (row["mixture_weight"], row["mixture_epochs"]) == (
                own["needed"] / mixture["sequences"],
                own["epochs"],
            )
    assert len(starts) > 1 or len(ctx.refs.current("web/shards").named("shard-")) > 1
    others = ask(exported, "select count(*) n from 'ledger/*.parquet' where decision != 'train' and shard is not null")
    assert others == [{"n": 0}]


def test_rejects_are_a_table_of_their_own(exported: Path) -> None:
    rows = ask(exported, "select bucket, reason, count(*) n from 'ledger/rejects/*.parquet' group by all order by 1")
    assert rows == [{"bucket": "prose", "reason": "empty", "n": 3}, {"bucket": "web", "reason": "empty", "n": 3}]


def test_before_there_are_tokens(ctx: Context) -> None:
    made = ledger.run(ctx, ledger_of(ctx, curated=None, shards=None, mixture=None))
    table = read_table(ctx.store, made.named("web/part-")[0])
    assert table.column("shard").null_count == table.column("mixture_weight").null_count == table.num_rows
    assert table.schema.equals(read_table(ctx.store, ctx.refs.current("ledger").named("web/part-")[0]).schema)


def test_workers_change_nothing(
    ctx: Context, exported: Path, two_workers: LocalEngine, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    other = judged_corpus.copy(tmp_path_factory, tmp_path)
    made = ledger.run(Context(other.workspace, two_workers), ledger_of(other))
    assert made.digest == ctx.refs.current("ledger").digest


def test_an_index_of_other_documents_is_refused(ctx: Context, tmp_path: Path) -> None:
    made = ledger_of(ctx)
    assert made.shards is not None
    shards = made.shards["web"]
    index = shards.named("index-")[0]
    own = open_part(ctx.store, index)
    own = own.take(np.array([1, 0, *range(2, len(own))]))
    ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(own), [None, pa.py_buffer(own.ids.tobytes())])
    swapped = write_index(ctx.store, index.name, [ids, *map(pa.array, own.columns[1:])], dict(index.stats))
    parts = tuple(swapped if part.name == index.name else part for part in shards.parts)
    with pytest.raises(IntegrityError, match="does not match its documents"):
        ledger.run(ctx, ledger_of(ctx, shards={**made.shards, "web": shards.model_copy(update={"parts": parts})}))
    with pytest.raises(IntegrityError, match="not built from the current curated text"):
        ledger.run(ctx, ledger_of(ctx, curated={bucket: ctx.refs.current("prose/curated") for bucket in PLANTED}))


def test_an_export_replaces_the_one_before_and_nothing_else(ctx: Context, exported: Path, tmp_path: Path) -> None:
    made, folder = ctx.refs.current("ledger"), tmp_path / "out"
    ledger.export(ctx, made, folder)
    fewer = Manifest.model_validate({**made.model_dump(), "parts": made.parts[1:]})
    ledger.export(ctx, fewer, folder)
    assert sorted(path.name for path in folder.glob("*.parquet")) == [
        "prose-00001.parquet", "web-00000.parquet", "web-00001.parquet"
    ]  # fmt: skip
    (folder / "mine.parquet").write_bytes(b"not yours")
    with pytest.raises(WorkspaceError, match=r"mine\.parquet"):
        ledger.export(ctx, made, folder)
    assert (folder / "mine.parquet").read_bytes() == b"not yours"


def test_hexadecimal_of_slices_and_nulls() -> None:
    values = [bytes(range(16)), None, b"\xff" * 16, bytes(16)]
    column = pa.array(values, pa.binary(16))
    assert ledger_columns.hexadecimal(column).to_pylist() == [v.hex() if v else None for v in values]
    assert ledger_columns.hexadecimal(column.slice(1, 2)).to_pylist() == [None, "ff" * 16]
    assert ledger_columns.hexadecimal(column.slice(0, 0)).to_pylist() == []


def questions() -> list[str]:
    """The SQL of the guide, block by block."""
    return re.findall(r"^```sql\n(.*?)^```", GUIDE.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_question_of_the_guide_has_an_answer(exported: Path) -> None:
    (question,) = questions()
    assert ask(exported, question.strip().rstrip(";"))

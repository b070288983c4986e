"""Annotators that a program computes: the same sidecars, and every fault is refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from plinth.corpus import annotate
from plinth.corpus.annotate import external
from plinth.errors import StageError
from plinth.storage.parts import read_table
from tests.plinth.corpus.annotate.test_stage import TEXTS, plugged

#: More documents than one batch, so that the statistics are added up.
MANY = [[f"The old bridge number {n} was repaired in spring, and a longer road was built." for n in range(2500)]]


def corpus(tools: Any, parts: list[list[str]] = TEXTS) -> Any:
    return tools.corpus({"web": [[tools.Doc(text) for text in part] for part in parts]})


def installed(path: Path) -> None:
    """The program of an environment that has Plinth."""
    external.compute(json.loads(path.read_bytes()))


@pytest.mark.parametrize("name", ["gopher_quality", "c4", "licence", "fineweb2", "language"])
@pytest.mark.parametrize("parts", [TEXTS, MANY], ids=["short", "many"])
def test_the_sidecar_does_not_depend_on_where_it_was_computed(
    tiny: Any, tmp_path: Path, name: str, parts: list[list[str]]
) -> None:
    here, there = corpus(tiny, parts), corpus(type(tiny)(_context(tmp_path / "there")), parts)
    there.ctx.programs = {name: installed}
    made = []
    for one in (here, there):
        after = annotate.annotator(name).sidecars
        sidecars = {other: annotate.run(one.ctx, "web", other, {}, one.documents["web"]) for other in after}
        made.append(annotate.run(one.ctx, "web", name, {}, one.documents["web"], sidecars=sidecars))
    assert made[0] == made[1]
    assert made[0].digest == made[1].digest


def _context(folder: Path) -> Any:
    from plinth.compute.context import Context
    from plinth.storage.workspace import Workspace

    return Context(Workspace(folder).ensure())


def lengths(change: Callable[[pa.Table], pa.Table] = lambda table: table, **options: Any) -> Callable[[Path], None]:
    """A program without Plinth: the lengths of texts, with a planted fault."""

    def program(path: Path) -> None:
        for file in json.loads(path.read_bytes())["files"]:
            documents = pq.read_table(file["documents"])
            counts = pc.cast(pc.utf8_length(documents["text"]), pa.int32())
            table = pa.table({"id": documents["id"], "characters": counts})
            pq.write_table(change(table), file["output"], **options)

    return program


def test_a_program_needs_only_parquet_and_gets_only_what_is_missing(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugged(monkeypatch, annotate=external.only_external)
    seen = list[dict[str, Any]]()

    def program(path: Path) -> None:
        seen.append(json.loads(path.read_bytes()))
        lengths(lambda table: table.select(["characters", "id"]), row_group_size=1)(path)

    first, more = corpus(tiny), corpus(tiny, [*TEXTS, ["one more text"]])
    for one in (first, first, more):
        one.ctx.programs = {"length": program}
        made = annotate.run(one.ctx, "web", "length", {}, one.documents["web"])
    rows = [read_table(more.ctx.store, part)["characters"].to_pylist() for part in made.parts]
    assert rows == [[len(text) for text in part] for part in [*TEXTS, ["one more text"]]]
    assert [[file["rows"] for file in work["files"]] for work in seen] == [[2, 1], [1]]
    assert seen[0]["columns"] == [{"name": "characters", "type": "int32", "nullable": False}]
    assert (seen[0]["annotator"], seen[0]["version"], seen[0]["reads"]) == ("length", "1", ["text"])


def _half(path: Path) -> None:
    lengths()(path)
    for file in json.loads(path.read_bytes())["files"]:
        output = Path(file["output"])
        output.write_bytes(output.read_bytes()[:-20])


def _one_file(path: Path) -> None:
    lengths()(path)
    Path(json.loads(path.read_bytes())["files"][1]["output"]).unlink()


def _pipe(path: Path) -> None:
    os.mkfifo(json.loads(path.read_bytes())["files"][0]["output"])


def _link(path: Path) -> None:
    lengths()(path)
    output = Path(json.loads(path.read_bytes())["files"][0]["output"])
    output.symlink_to(output.rename(path.with_name("elsewhere")))


def _typed(table: pa.Table) -> pa.Table:
    return table.set_column(1, "characters", table["characters"].cast(pa.int64()))


def _null(table: pa.Table) -> pa.Table:
    return table.set_column(1, "characters", pa.array([None] * table.num_rows, pa.int32()))


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "nothing": (lambda path: None, "no complete Parquet file"),
    "second file missing": (_one_file, "part-00001.parquet"),
    "half a file": (_half, "no complete Parquet file"),
    "a pipe": (_pipe, "a pipe, a device or a folder"),
    "a link": (_link, "a link"),
    "two columns of one name": (
        lengths(lambda table: table.append_column("characters", table["characters"])),
        r"characters \(int32\), characters",
    ),
    "two ids": (lengths(lambda table: table.append_column("id", table["id"])), r"characters \(int32\), id"),
    "too few rows": (lengths(lambda table: table.slice(0, table.num_rows - 1)), "1 rows"),
    "another type": (lengths(_typed), r"characters \(int64\)"),
    "no ids": (lengths(lambda table: table.drop_columns("id")), r"id, characters \(int32\)"),
    "another column": (lengths(lambda table: table.append_column("x", table["id"])), r"x \("),
    "another order": (lengths(lambda table: table.take(list(range(table.num_rows))[::-1])), "ids of other documents"),
    "nulls": (lengths(_null), "characters"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_program_is_refused_by_name_and_leaves_nothing(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    plugged(monkeypatch, annotate=external.only_external)
    one = corpus(tiny)
    program, words = FAULTS[fault]
    one.ctx.programs = {"length": program}
    with pytest.raises(StageError, match=words) as refused:
        annotate.run(one.ctx, "web", "length", {}, one.documents["web"])
    assert "annotator length" in str(refused.value)
    assert not list((one.ctx.store.root / "staging").iterdir())
    one.ctx.programs = {"length": lengths()}
    assert annotate.run(one.ctx, "web", "length", {}, one.documents["web"]).stats["documents"] == 3


def test_an_external_annotator_without_a_program_is_refused(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugged(monkeypatch, annotate=external.only_external)
    one = corpus(tiny)
    with pytest.raises(StageError, match="only in an external program"):
        annotate.run(one.ctx, "web", "length", {}, one.documents["web"])


def test_other_annotators_never_run_an_external_one_in_their_pass(tiny: Any) -> None:
    one = corpus(tiny)
    one.ctx.programs = {"c4": lambda path: pytest.fail("not asked for")}
    beside = {"gopher_quality": {}, "c4": {}}
    annotate.run(one.ctx, "web", "gopher_quality", {}, one.documents["web"], beside=beside)
    asked = list[Path]()
    one.ctx.programs = {"c4": lambda path: asked.append(path) or installed(path)}
    annotate.run(one.ctx, "web", "c4", {}, one.documents["web"], beside=beside)
    assert len(asked) == 1


def test_a_program_with_another_version_of_the_annotator_is_refused(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugged(monkeypatch)
    one = corpus(tiny)

    def stale(path: Path) -> None:
        external.compute({**json.loads(path.read_bytes()), "version": "2"})

    one.ctx.programs = {"length": stale}
    with pytest.raises(StageError, match="has another version"):
        annotate.run(one.ctx, "web", "length", {}, one.documents["web"])

"""A mark finds everything downstream, freezes it, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError
from registry import candidate, taint


def assets(ctx: Context, record: taint.Taint) -> list[str]:
    return sorted(each.asset for each in taint.affected(ctx, record))


def chain_of(ctx: Context, line: Any) -> Any:
    return candidate.ancestry(ctx, line.checkpoint.digest, line.evaluation.digest)


def document_id(text: str) -> str:
    return fingerprint.digest(text)[:32]


def test_everything_made_of_a_marked_manifest_is_found(ctx: Context, line: Any) -> None:
    record = taint.mark(ctx, line.tokenizer.digest, "ada", "wrong vocabulary")
    assert assets(ctx, record) == ["checkpoint", "evaluation", "mixture", "run", "tokenizer", "web/shards"]
    (mark,) = taint.marks_on(ctx, chain_of(ctx, line))
    assert mark == f"tokenizer (manifest {line.tokenizer.digest[:12]}) is marked by ada: wrong vocabulary"


def test_a_source_is_marked_by_its_inventory(ctx: Context, line: Any) -> None:
    inventory = fingerprint.digest("inventory")
    record = taint.mark(ctx, inventory[:12], "ada", "licence withdrawn")
    assert record.target == inventory
    assert len(assets(ctx, record)) == 8
    assert "licence withdrawn" in taint.marks_on(ctx, chain_of(ctx, line))[0]


def test_a_document_freezes_only_what_holds_it(ctx: Context, make_line: Any) -> None:
    one, other = make_line(1), make_line(2)
    record = taint.mark(ctx, document_id("also kept 1"), "ada", "takedown")
    assert record.holders == (one.curated.digest,)
    assert taint.marks_on(ctx, chain_of(ctx, one))[0].endswith("is marked by ada: takedown")
    assert taint.marks_on(ctx, chain_of(ctx, other)) == ()


def test_a_document_that_comes_back_later_is_caught(ctx: Context, make_line: Any) -> None:
    make_line(1)
    taint.mark(ctx, document_id("also kept 7"), "ada", "takedown")
    later = make_line(7)
    assert len(taint.marks_on(ctx, chain_of(ctx, later))) == 1


def test_a_document_that_no_training_text_holds_freezes_nothing(ctx: Context, line: Any) -> None:
    record = taint.mark(ctx, document_id("dropped"), "ada", "takedown")
    assert assets(ctx, record) == []
    assert taint.marks_on(ctx, chain_of(ctx, line)) == ()


def test_marks_are_only_added(ctx: Context, line: Any) -> None:
    first = taint.mark(ctx, line.checkpoint.digest, "ada", "first reason")
    again = taint.mark(ctx, line.checkpoint.digest[:10], "ben", "second reason")
    assert again == first
    assert taint.records(ctx) == (first,)
    taint.mark(ctx, document_id("kept"), "ben", "takedown")
    assert len(taint.records(ctx)) == 2


@pytest.mark.parametrize("target", ["ff" * 32, "12", "nonsense", "", "*"])
def test_what_does_not_exist_cannot_be_marked(ctx: Context, line: Any, target: str) -> None:
    with pytest.raises(MissingError, match="nothing to mark"):
        taint.mark(ctx, target, "ada", "because")


def test_an_unreadable_mark_freezes_instead_of_vanishing(ctx: Context, line: Any) -> None:
    taint.mark(ctx, line.checkpoint.digest, "ada", "because")
    (path,) = ctx.workspace.taint.glob("*.json")
    path.write_text("{}")
    with pytest.raises(IntegrityError, match="not a mark"):
        taint.marks_on(ctx, chain_of(ctx, line))

"""The slices of every document: joined by id, one label on each axis, expressions as policies have them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, RecipeError
from plinth.evaluation.slices import choice
from plinth.records import Manifest

Ledger = Callable[..., Manifest]


def id_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:16]


def asked(*rows: tuple[str, str, int]) -> pa.Table:
    """Held-out documents by name, bucket and bytes."""
    return pa.table({"id": [id_of(name) for name, _, _ in rows], "bucket": [bucket for _, bucket, _ in rows],
                     "bytes": [size for _, _, size in rows]})  # fmt: skip


@pytest.fixture
def made(ledger: Ledger) -> Manifest:
    def row(name: str, **columns: Any) -> dict[str, Any]:
        return {"id": id_of(name).hex(), **columns}

    web = [row("a", decision="train", licence="train"), row("b", language__label="de", pii__spans=3), row("c"),
           row("c", decision="drop", licence="dropped"), row("d", language__label=None, domain=None)]  # fmt: skip
    return ledger(web=web, code=[row("e", licence="BSD", cluster_size=4, language__score=0.2)])


DOCUMENTS = asked(("d", "web", 1024), ("b", "web", 1023), ("e", "code", 70_000), ("c", "web", 4096))


def test_every_document_has_a_label_on_every_axis_in_the_order_asked(ctx: Context, made: Manifest) -> None:
    found = choice.labels(ctx.store, made, DOCUMENTS, {})
    assert found == {
        "uri": ["file:///web/4", "file:///web/1", "file:///code/0", "file:///web/2"],
        "bucket": ["web", "web", "code", "web"],
        "language": ["unknown", "de", "en", "en"],
        "domain": ["unknown", "a.example", "a.example", "a.example"],
        "length": ["1 to 4 KiB", "< 1 KiB", "64 KiB and more", "4 to 16 KiB"],
    }


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("documents.licence", ["MIT", "MIT", "BSD", "MIT"]),  # not those of the rows that were dropped or trained on
        ("documents.cluster_size", ["1", "1", "4", "1"]),
        (" language.label ", ["unknown", "de", "en", "en"]),
        ("pii.spans > 0 and language.label != 'en'", ["no", "yes", "no", "no"]),
        ("language.score < 0.5", ["no", "no", "yes", "no"]),
        ("documents.domain is None", ["yes", "no", "no", "no"]),
        ("documents.may_commercial", ["yes"] * 4),
    ],
)
def test_conditions_and_columns(ctx: Context, made: Manifest, expression: str, expected: list[str]) -> None:
    assert choice.labels(ctx.store, made, DOCUMENTS, {"own": expression})["own"] == expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("language.score", "one slice per value would result in too many slices"),
        ("language.labl == 'en'", "did you mean 'language.label'"),
        ("documents.text == 'x'", "no column 'documents.text'"),
        ("__import__('os')", "Call is not part of the policy language"),
        ("language.label > 3", "types do not match"),
    ],
)
def test_expressions_that_do_not_fit_are_named(ctx: Context, made: Manifest, expression: str, message: str) -> None:
    with pytest.raises(RecipeError, match=r"evaluation\.slices\.own") as caught:
        choice.labels(ctx.store, made, DOCUMENTS, {"own": expression})
    assert message in str(caught.value)


def test_a_ledger_of_other_documents_is_refused(ctx: Context, made: Manifest, ledger: Ledger) -> None:
    with pytest.raises(IntegrityError, match="lacks held-out documents"):
        choice.labels(ctx.store, made, asked(("a", "web", 5)), {})  # it was trained on
    with pytest.raises(IntegrityError, match="lacks held-out documents"):
        choice.labels(ctx.store, ledger(), DOCUMENTS, {})

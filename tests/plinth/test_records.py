"""Manifests prove their ancestry; steps give keys."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from plinth import fingerprint
from plinth.records import Blob, Manifest, Part, Step

BLOB = Blob(md5="0" * 32, sha256="1" * 64, bytes=5)


def manifest(**changes: Any) -> Manifest:
    base: dict[str, Any] = {
        "asset": "web/documents", "step": "documents", "version": "1", "params": {"a": 1}, "inputs": {"s": "2" * 64},
        "parts": (Part(name="part-00000.parquet", blob=BLOB, rows=3), Part(name="rejects-00000.parquet", blob=BLOB)),
    }  # fmt: skip
    return Manifest(**{**base, **changes})


@pytest.mark.parametrize(
    "change",
    [
        {"asset": "x"}, {"step": "x"}, {"version": "2"}, {"params": {"a": 2}}, {"inputs": {"s": "3" * 64}},
        {"parts": ()}, {"stats": {"documents": 1}},
    ],
)  # fmt: skip
def test_digest_covers_every_field(change: dict[str, Any]) -> None:
    assert manifest(**change).digest != manifest().digest


def test_digest_survives_the_disk() -> None:
    data = fingerprint.canonical(manifest(stats={"rate": 0.1, "reasons": {"x": 2}}))
    assert fingerprint.canonical(Manifest.model_validate_json(data)) == data


def test_named_rows_and_bytes() -> None:
    assert [part.name for part in manifest().named("part-")] == ["part-00000.parquet"]
    assert (manifest().rows, manifest().bytes) == (3, 10)


def test_records_are_frozen_and_refuse_unknown_fields() -> None:
    with pytest.raises(ValidationError):
        manifest().asset = "y"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Blob.model_validate({"md5": "", "sha256": "", "bytes": 1, "path": "/x"})


@given(
    st.lists(st.text(alphabet="ab", min_size=1), max_size=4), st.lists(st.text(alphabet="ab", min_size=1), max_size=4)
)
def test_step_keys_differ_exactly_when_inputs_differ(left: list[str], right: list[str]) -> None:
    step = Step(name="s", version="1")
    assert (step.key(left) == step.key(right)) == (left == right)


def test_step_key_covers_name_version_and_parameters() -> None:
    steps = [
        Step(name="s", version="1"),
        Step(name="t", version="1"),
        Step(name="s", version="2"),
        Step(name="s", version="1", params={"x": 1}),
        Step(name="s", version="1", params={"x": 1.5}),
    ]
    assert len({step.key(["i"]) for step in steps}) == len(steps)

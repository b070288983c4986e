"""Required terms of a source: unknown is refused, never defaulted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from plinth.corpus.annotate.licence import judge
from plinth.corpus.sources.inventory import inventory
from plinth.corpus.sources.parameters import Bucket, Source
from plinth.errors import SourceError
from tests.plinth.corpus.sources.conftest import make_source

FACTS = {
    "kind": "text",
    "path": "in",
    "licence": "MIT",
    "domain": "d",
    "snapshot": "s",
    "terms": {"train": True, "redistribute": True, "commercial": True},
}


@pytest.mark.parametrize("field", [name for name in FACTS if name != "licence"] + ["licence"])
def test_every_fact_is_required(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Source.model_validate({key: value for key, value in FACTS.items() if key != field})


@pytest.mark.parametrize("term", ["train", "redistribute", "commercial"])
def test_every_term_is_required(term: str) -> None:
    terms = {key: value for key, value in FACTS["terms"].items() if key != term}  # type: ignore[attr-defined]
    with pytest.raises(ValidationError, match=term):
        Source.model_validate({**FACTS, "terms": terms})
    with pytest.raises(ValidationError, match="terms"):
        Source.model_validate({**FACTS, "terms": {**terms, term: None}})


@pytest.mark.parametrize("licence", ["", "  ", "NONE", "none", "NOASSERTION", "unknown", "Unknown"])
def test_no_licence_is_refused(licence: str) -> None:
    with pytest.raises(ValidationError, match="the license is missing"):
        Source.model_validate({**FACTS, "licence": licence})


@pytest.mark.parametrize(
    "licence",
    ["MIT AND", "AND", "(MIT", "MIT)", "MIT ISC", "see website", "MIT/ISC", "©", "()", "MIT OR OR ISC"],
)
def test_what_is_no_expression_is_refused(licence: str) -> None:
    with pytest.raises(ValidationError, match="not an SPDX expression"):
        Source.model_validate({**FACTS, "licence": licence})


@pytest.mark.parametrize(
    "licence",
    ["MIT", "per-document", "GPL-2.0+", "MIT OR (ISC AND 0BSD)", "Apache-2.0 WITH LLVM-exception", "LicenseRef-ours"],
)
def test_expressions_are_taken_as_they_are(licence: str) -> None:
    assert Source.model_validate({**FACTS, "licence": licence}).licence == licence


@given(st.lists(st.sampled_from(["MIT", "ISC", "AND", "OR", "(", ")"]), min_size=1, max_size=8).map(" ".join))
def test_the_recipe_and_the_gate_read_expressions_alike(licence: str) -> None:
    try:
        Source.model_validate({**FACTS, "licence": licence})
        taken = True
    except ValidationError:
        taken = False
    assert taken == (judge(licence, ("MIT", "ISC"))[0] != "unknown")


def test_what_may_not_be_trained_on_is_not_even_listed(tmp_path: Path) -> None:
    source = make_source("text", path="not-there", terms={"train": False, "redistribute": True, "commercial": True})
    with pytest.raises(SourceError, match="may not be trained on"):
        inventory(Bucket(description="", owner="o", sources=(source,)), tmp_path)

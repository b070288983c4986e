"""The story of a document on a corpus judged by the real stages: source, rules with values, edits, by text."""

from __future__ import annotations

import pytest

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.provenance import document_rows, explain
from tests import judged_corpus
from tests.judged_corpus import PLANTED, texts


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return judged_corpus.copy(tmp_path_factory, tmp_path_factory.mktemp("judged"))


def row_of(kind: int, bucket: str = "web") -> int:
    """The first row of a kind of `PLANTED`."""
    return sum(PLANTED[bucket][:kind])


def test_source_with_its_terms(ctx: Context) -> None:
    story = explain.explain_document(ctx, judged_corpus.uri("web", 0))
    assert story["source"] == {"index": 0, **judged_corpus.SOURCE}


def test_rules_that_fired_with_the_values_that_made_them(ctx: Context) -> None:
    short = explain.explain_document(ctx, judged_corpus.uri("web", row_of(1)))
    assert (short["status"], short["reason"]) == ("drop", "too_few_words")
    assert short["rules"] == [
        {
            "reason": "too_few_words",
            "rule": "gopher_quality.word_count < 20",
            "values": {"gopher_quality.word_count": 10},
        }
    ]
    foreign = explain.explain_document(ctx, judged_corpus.uri("web", row_of(2)))
    assert foreign["rules"][0]["values"] == {"documents.licence": "GPL-3.0-only"}
    assert explain.explain_document(ctx, judged_corpus.uri("web", row_of(3) - 1))["edits"] == []


def test_duplicates_name_each_other(ctx: Context) -> None:
    copy, first = (explain.explain_document(ctx, judged_corpus.uri("web", row)) for row in (row_of(3), 0))
    assert {copy["reason"], first["reason"]} == {"exact_duplicate", None}
    members = {member["uri"] for member in copy["dedup"]["exact"]["members"]}
    assert members == {judged_corpus.uri("web", row_of(3)), judged_corpus.uri("web", 0)}


def test_edits_tell_what_was_cut_but_for_personal_data(ctx: Context) -> None:
    row = row_of(4)
    story = explain.explain_document(ctx, judged_corpus.uri("web", row))
    address = "ann0@tidewater-house.net"
    (edit,) = story["edits"]
    assert texts("web")[row][0][edit["start_cp"] : edit["end_cp"]] == address
    assert (edit["reason"], edit["replacement"], edit["characters"]) == ("pii", "<EMAIL>", len(address))
    assert "cut" not in edit
    assert explain._edit({"start_cp": 2, "end_cp": 5, "reason": "lines"}, "a\nbäc\nd", personal=False)["cut"] == "bäc"


def test_a_trained_document_down_to_its_shard(ctx: Context) -> None:
    row = next(
        row for row in range(20) if explain.explain_document(ctx, judged_corpus.uri("prose", row))["status"] == "train"
    )
    story = explain.explain_document(ctx, judged_corpus.uri("prose", row))
    assert story["tokens"][0]["shards"][0]["shard"].startswith("shard-")
    assert story["curated"]["characters"] == len(texts("prose")[row][0])


def test_by_the_beginning_of_its_text(ctx: Context) -> None:
    text = texts("prose")[3][0]
    story = explain.explain_document(ctx, "  " + "\n ".join(text.split()[:4]))
    assert story["uri"] == judged_corpus.uri("prose", 3)
    copied = explain.explain_document(ctx, texts("web")[0][0][:60])
    assert {copied["uri"], *(other["uri"] for other in copied["also"])} == {
        judged_corpus.uri("web", 0), judged_corpus.uri("web", row_of(3))
    }  # fmt: skip


@pytest.mark.parametrize("text", ["no such beginning of text", "the (.*", "the of", ".* .* .*"])
def test_text_that_nothing_begins_with(ctx: Context, text: str) -> None:
    with pytest.raises(MissingError, match="no document"):
        explain.explain_document(ctx, text)


def test_too_short_a_beginning_finds_nothing(ctx: Context) -> None:
    assert document_rows.by_text(ctx, "the") == []

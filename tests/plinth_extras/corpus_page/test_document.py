"""One document: its text with cut spans, what is hidden, its rules and duplicates; searches in texts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.corpus.dedup.near import index, minhash
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.policy.parameters import Policy
from plinth.errors import IntegrityError, MissingError
from plinth.records import Manifest
from plinth.storage.parts import read_table, write_table
from plinth_extras.corpus_page import search
from plinth_extras.corpus_page.document import DocumentReader, Segment, _outside, grouped, segments
from plinth_extras.corpus_page.ledger import LedgerReader, OpenLedger
from plinth_extras.corpus_page.view import View
from tests import judged_corpus


def rows(opened: OpenLedger, *query: tuple[str, str]) -> list[dict[str, Any]]:
    return opened.rows(View.parse(query, opened.numeric))


def test_personal_data_is_not_shown_even_of_dropped_documents(ctx: Context, opened: OpenLedger) -> None:
    own = DocumentReader(ctx, opened)
    texts = {judged_corpus.uri("web", row): text for row, (text, _) in enumerate(judged_corpus.texts("web"))}
    personal = [row for row in rows(opened) + rows(opened, ("page", "2")) if "@" in texts.get(row["uri"], "")]
    assert len(personal) == 2
    for row in personal:
        window = own.window(row["at"], 0, 10_000)
        (cut,) = [one for one in window.segments if one.reason]
        address = next(word for word in texts[row["uri"]].split() if "@" in word)
        assert cut == Segment(f"{len(address)} characters of personal data", "pii", cut.replacement)
        assert window.cut == {"pii": len(address)}
        assert address not in "".join(one.text for one in window.segments)
        assert own.window(row["at"], texts[row["uri"]].index("@"), 5).segments[0].reason == "pii"


def test_personal_data_is_hidden_without_a_policy_that_removes_it(
    ctx: Context, opened: OpenLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy was written by another version of Plinth, which this one cannot read."""
    own = DocumentReader(ctx, opened)
    found = search.words(ctx, opened, View(text="Write to")).rows
    before = [own.window(row["at"], 0, 10_000).segments for row in found]
    monkeypatch.setattr(DocumentReader, "policy", lambda *_: Policy())
    assert len(found) == 2
    assert [own.window(row["at"], 0, 10_000).segments for row in found] == before
    again = search.words(ctx, opened, View(text="Write to")).rows
    assert [row["behind"] for row in again] == [row["behind"] for row in found]
    assert not any("@" in row["behind"] for row in again)


def test_a_document_that_was_dropped_has_the_spans_that_stages_found(ctx: Context, opened: OpenLedger) -> None:
    row = rows(opened, ("reason", "too_few_words"))[0]
    own = DocumentReader(ctx, opened)
    assert own.edits(row["at"]) == []
    (fired,) = own.rules(row["at"], own.columns(row["at"]))
    assert (fired.reason, fired.text) == ("too_few_words", "gopher_quality.word_count < 20")
    assert fired.values == {"gopher_quality.word_count": 10}
    licence = rows(opened, ("reason", "licence"))[0]
    assert own.rules(licence["at"], own.columns(licence["at"]))[0].values == {"licence.permitted": False}


def test_place_of_a_document(ctx: Context, opened: OpenLedger) -> None:
    own, row = DocumentReader(ctx, opened), rows(opened)[3]
    right = ":".join(map(str, row["at"]))
    for hint in (right, "", "prose:99:1", "nothing:0:0", "web:0:0", "web:a:b", f"{right}9", ":::"):
        assert own.place(row["id"], hint) == row["at"]
    with pytest.raises(MissingError, match="no document"):
        own.place("0" * 32, right)


def test_duplicates_columns_and_training(ctx: Context, opened: OpenLedger) -> None:
    own, row = DocumentReader(ctx, opened), rows(opened, ("in.cluster_size", "2.."))[0]
    whole = own.columns(row["at"])
    (other,) = own.duplicates(whole)
    assert (other["cluster"], other["id"] != row["id"]) == (row["cluster"], True)
    found = grouped(whole)
    assert set(found) >= {"document", "gopher_quality", "licence", "pii", "exact", "near", "holdout"}
    assert sum(len(one) for one in found.values()) == len(opened.columns)
    trained = own.columns(rows(opened, ("decision", "train"))[0]["at"])
    tokens, runs = own.training(trained)
    assert [(one["shards"][0]["position"], one["tokens"]) for one in tokens] == [
        (trained["position"], trained["tokens"])
    ]
    assert runs == []
    assert own.duplicates(trained | {"cluster_size": 1}) == []


@given(
    st.tuples(st.integers(0, 30), st.integers(1, 20)),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=4),
)
def test_no_edit_overlaps_personal_data(edit: tuple[int, int], spans: list[tuple[int, int]]) -> None:
    hidden = [{"start_cp": at, "end_cp": at + size} for at, size in spans]
    own = {"start_cp": edit[0], "end_cp": sum(edit), "reason": "lines"}
    covered = {at for span in hidden for at in range(span["start_cp"], span["end_cp"])}
    pieces = [at for one in _outside(own, hidden) for at in range(one["start_cp"], one["end_cp"])]
    assert sorted(pieces) == sorted(set(range(edit[0], sum(edit))) - covered)


@given(
    st.text(min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.sampled_from("ab")), max_size=6),
    st.integers(0, 60),
    st.integers(1, 60),
)
def test_segments_are_the_window_in_order(
    text: str, spans: list[tuple[int, int, str]], start: int, length: int
) -> None:
    start = min(start, len(text) - 1)
    edits = sorted(
        ({"start_cp": at, "end_cp": at + size, "reason": reason, "replacement": ""} for at, size, reason in spans),
        key=lambda one: (one["start_cp"], one["end_cp"]),
    )
    window = text[start : start + length]
    found = list(segments(window, start, edits, set()))
    assert "".join(one.text for one in found) == window
    covered = {at for one in edits for at in range(one["start_cp"], one["end_cp"]) if start <= at < start + len(window)}
    assert sum(len(one.text) for one in found if one.reason) == len(covered)
    assert all(one.text for one in found)


HUGE = 50 * 2**20


def with_text(ctx: Context, text: str) -> None:
    """Replace the text of the first document of `web`, in a ledger of its own."""
    made, known = ctx.refs.current("web/documents"), ctx.refs.current("ledger")
    table = read_table(ctx.store, made.parts[0])
    column = pa.array([text, *table["text"].to_pylist()[1:]], pa.large_string())
    table = table.set_column(table.schema.get_field_index("text"), table.schema.field("text"), column)
    part = write_table(ctx.store, made.parts[0].name, table)
    other = Manifest.model_validate({**made.model_dump(), "parts": (part, *made.parts[1:])})
    ctx.refs.save(other)
    inputs = {**known.inputs, "web/documents": other.digest}
    ctx.refs.publish(Manifest.model_validate({**known.model_dump(), "inputs": inputs}), key="changed")


def test_a_huge_document_is_read_in_windows(ctx: Context) -> None:
    text = "a needle here. " + "word " * (HUGE // 5) + "\U0001f600 the end"
    with_text(ctx, text)
    with LedgerReader().opened(ctx) as opened:
        own, at = DocumentReader(ctx, opened), ("web", 0, 0)
        window = own.window(at, 0, 100)
        assert (window.segments, window.characters) == ((Segment(text[:100]),), len(text))
        assert own.window(at, len(text) - 9, 100).segments == (Segment("\U0001f600 the end"),)
        assert own.window(at, 2**40, 100).start == len(text) - 1
        found = search.words(ctx, opened, View(text="NEEDLE"))
        assert [(one["at"], one["match"]) for one in found.rows] == [(at, "needle")]
        assert len(found.rows[0]["behind"]) == search.AROUND


def test_words_are_found_within_the_list_and_searches_go_on(
    ctx: Context, opened: OpenLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        judged_corpus.uri(b, row): text
        for b in ("prose", "web")
        for row, (text, _) in enumerate(judged_corpus.texts(b))
    }
    assert sum("tidewater-house" in text for text in texts.values()) == 2
    for guess in ("TIDEWATER-house", "@", "to ann"):  # in an address, and over its beginning
        guessed = search.words(ctx, opened, View(text=guess))
        assert (guessed.rows, guessed.searched, guessed.after) == ([], len(texts), 0)
    word = "WRITE to "
    wanted = {uri for uri, text in texts.items() if word.lower() in text.lower()}
    found = search.words(ctx, opened, View(text=word))
    assert {row["uri"] for row in found.rows} == wanted
    assert (found.searched, found.after, len(wanted)) == (len(texts), 0, 2)
    assert all(row["match"] == "Write to " for row in found.rows)
    for row in found.rows:
        around = row["before"] + row["match"] + row["behind"]
        assert "tidewater" not in around
        assert "@" not in around
        assert around.split("Write to")[0] in texts[row["uri"]]
        assert row["behind"].partition(" characters of personal data")[0].isdecimal()
    assert search.words(ctx, opened, View(text=word, chosen=(("bucket", "prose"),))).rows == []
    assert search.words(ctx, opened, View(text=".*")).rows == []

    common = search.words(ctx, opened, View(text="The"))
    rest = search.words(ctx, opened, View(text="The", after=common.after))
    assert len(common.rows) == search.PAGE_ROWS
    assert common.searched + rest.searched == len(texts)
    both = [row["uri"] for row in common.rows + rest.rows]
    assert both == [
        row["uri"] for row in rows(opened) + rows(opened, ("page", "2")) if "the" in texts[row["uri"]].lower()
    ]

    monkeypatch.setattr(search, "SCAN_BYTES", 1)  # one row group per request
    seen, view, requests = list[str](), View(text=word), 0
    while True:
        part = search.words(ctx, opened, view)
        seen += [row["uri"] for row in part.rows]
        requests += 1
        if not part.after:
            break
        view = View(text=word, after=part.after)
    assert (set(seen), len(seen), requests > 1) == (wanted, 2, True)


def test_near_texts_within_the_list(ctx: Context, opened: OpenLedger) -> None:
    text = judged_corpus.texts("web")[5][0]
    with pytest.raises(MissingError, match="dedup/index"):
        search.near(ctx, opened, View(similar=text))
    documents, params = {b: ctx.refs.current(f"{b}/documents") for b in judged_corpus.PLANTED}, Dedup().minhash
    signed = {bucket: minhash.signatures(ctx, bucket, params, one) for bucket, one in documents.items()}
    made = index.run(ctx, params, documents, signed)
    ctx.refs.publish(made, key=made.digest)
    found = search.near(ctx, opened, View(similar=text.upper()))
    assert (found[0]["uri"], found[0]["exact"]) == (judged_corpus.uri("web", 5), True)
    inside = View(similar=text, chosen=(("bucket", "prose"),))
    assert all(row["bucket"] == "prose" for row in search.near(ctx, opened, inside))


def test_a_damaged_text_is_named(ctx: Context, opened: OpenLedger) -> None:
    own, row = DocumentReader(ctx, opened), rows(opened)[0]
    path = ctx.store.path(own.part(*row["at"][:2]).blob)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(IntegrityError, match=path.name):
        own.window(row["at"], 0, 10)
    with pytest.raises(IntegrityError, match=path.name):
        search.words(ctx, opened, View(text="a"))

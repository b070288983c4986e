from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from plinth.corpus import annotate
from plinth.corpus.annotate import base, stage
from plinth.corpus.annotate.base import ANNOTATORS, Annotator
from plinth.errors import MissingError, RecipeError, StageError
from plinth.extensions import NoParams
from plinth.storage.parts import DOCUMENT_SCHEMA, EDIT_TYPE, read_table
from tests.catalogues import Including

TEXTS = [["the first text of all", "write to someone@tidewater.net now"], ["a third one and the last"]]


def _needs_nothing(chosen: Annotator) -> bool:
    required = any(field.is_required() for field in chosen.params.model_fields.values())
    return not required and not chosen.needs(chosen.params())


#: Annotators that run without parameters, models and lists, and read text or license.
PLAIN = sorted(
    name
    for name, chosen in ANNOTATORS.items()
    if _needs_nothing(chosen) and set(chosen.reads) <= {"text", "licence"} and not chosen.after
)


@pytest.fixture
def corpus(tiny: Any) -> Any:
    return tiny.corpus({"web": [[tiny.Doc(text) for text in part] for part in TEXTS]})


def plugged(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Annotator:
    """A made-up annotator: the length of each text."""

    def lengths(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
        counts = pa.array([len(text) for text in batch.column("text").to_pylist()], pa.int32())
        return pa.record_batch([counts], schema=made.schema)

    made = replace(
        Annotator(
            name="length",
            version="1",
            description="Length.",
            source="Ours.",
            params=NoParams,
            schema=pa.schema([pa.field("characters", pa.int32(), nullable=False)]),
            reads=("text",),
            annotate=lengths,
        ),
        **changes,
    )
    monkeypatch.setattr(base, "ANNOTATORS", Including(ANNOTATORS, made))
    return made


@pytest.mark.parametrize("name", PLAIN)
def test_sidecars_align_and_their_statistics_add_up(corpus: Any, name: str) -> None:
    made = annotate.run(corpus.ctx, "web", name, {}, corpus.documents["web"])
    assert made.asset == f"web/{name}"
    assert [part.name for part in made.parts] == ["part-00000.parquet", "part-00001.parquet"]
    tables = [read_table(corpus.ctx.store, part) for part in made.parts]
    assert [table.num_rows for table in tables] == [2, 1]
    assert all(table.schema.equals(ANNOTATORS[name].schema) for table in tables)
    assert made.stats["documents"] == 3
    whole = pa.concat_tables(tables)
    for field in ANNOTATORS[name].schema:
        values = whole.column(field.name).to_pylist()
        if pa.types.is_string(field.type):
            assert made.stats["labels"][field.name] == {value: values.count(value) for value in sorted(set(values))}
        elif field.type == EDIT_TYPE:
            facts = {"spans": sum(map(len, values)), "documents": sum(map(bool, values))}
            assert made.stats["columns"][field.name] == facts
        elif pa.types.is_boolean(field.type):
            assert made.stats["columns"][field.name] == {"true": sum(values), "nulls": 0}
        else:
            facts = made.stats["columns"][field.name]
            assert (facts["values"], facts["nulls"], facts["min"], facts["max"]) == (3, 0, min(values), max(values))
            assert facts["sum"] == pytest.approx(sum(values), abs=1e-5)
            assert facts["mean"] == pytest.approx(sum(values) / 3, abs=1e-5)


def prepared(chosen: Annotator) -> Any:
    """Return the arguments of `annotate`, with the parameters' defaults."""
    return chosen.prepare(chosen.params(), {}) if chosen.prepare else chosen.params()


@pytest.mark.parametrize("name", PLAIN)
def test_empty_and_tiny_texts_and_no_texts_at_all(name: str) -> None:
    chosen = ANNOTATORS[name]
    texts = ["", " ", "\n", "a", ".", "\x00", "é", "😀"]
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string()), "licence": pa.array(["MIT"] * len(texts))})
    made = chosen.annotate(batch, prepared(chosen))
    stage._require(chosen, len(texts), made)
    stage._require(chosen, 0, chosen.annotate(batch.slice(0, 0), prepared(chosen)))


@pytest.mark.parametrize("name", PLAIN)
def test_rows_do_not_depend_on_the_batch(name: str) -> None:
    chosen = ANNOTATORS[name]
    texts = [f"{text} {number} a@b.net\n" * (1 + number % 5) for part in TEXTS for text in part for number in range(9)]
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string()), "licence": pa.array(["MIT"] * len(texts))})
    whole = chosen.annotate(batch, prepared(chosen))
    for start, size in ((0, 1), (3, 7), (20, 7)):
        part = chosen.annotate(batch.slice(start, size), prepared(chosen))
        assert part.equals(whole.slice(start, size))


def test_a_batch_is_cut_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "SLICE_BYTES", 10)
    texts = ["", "123", "1234567", "1", "x" * 35, "", "12", ""]
    batch = pa.table({"text": pa.array(["before", *texts], pa.large_string())}).slice(1).to_batches()[0]
    cut = stage.slices(batch)
    assert [some.column("text").to_pylist() for some in cut] == [
        ["", "123", "1234567"], ["1", "x" * 35], ["", "12", ""],
    ]  # fmt: skip
    assert [some.num_rows for some in stage.slices(batch.slice(0, 0))] == [0]


def test_how_batches_are_cut_does_not_show(corpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    documents, before = corpus.documents["web"], _recorded(corpus)
    whole = annotate.run(corpus.ctx, "web", "gopher_quality", {}, documents, beside=BESIDE)
    for name in _recorded(corpus).keys() - before.keys():
        (corpus.ctx.workspace.records / name[:2] / name).unlink()
    monkeypatch.setattr(stage, "SLICE_BYTES", 1)
    assert annotate.run(corpus.ctx, "web", "gopher_quality", {}, documents, beside=BESIDE).digest == whole.digest


def test_documents_and_parameters_and_version_decide_what_is_done_again(
    corpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    made = plugged(monkeypatch)

    def counting(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return made.annotate(batch, params)

    plugged(monkeypatch, annotate=counting)
    first = annotate.run(corpus.ctx, "web", "length", {}, corpus.documents["web"])
    assert calls == [2, 1]
    assert annotate.run(corpus.ctx, "web", "length", {}, corpus.documents["web"]).digest == first.digest
    assert calls == [2, 1]
    plugged(monkeypatch, annotate=counting, version="2")
    second = annotate.run(corpus.ctx, "web", "length", {}, corpus.documents["web"])
    assert calls == [2, 1, 2, 1]
    assert second.digest != first.digest
    assert second.stats == first.stats


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"annotate": lambda batch, params: pa.record_batch({"characters": pa.array([1], pa.int32())})}, "1 rows"),
        ({"annotate": lambda batch, params: pa.record_batch({"other": pa.array([1, 2])})}, "other (int64)"),
        (
            {
                "schema": pa.schema([("share", pa.float64())]),
                "annotate": lambda batch, params: pa.record_batch({"share": pa.array([0.5, float("nan")])}),
            },
            "NaN or infinity in share",
        ),
        (
            {
                "schema": pa.schema([pa.field("label", pa.string(), nullable=False)]),
                "annotate": lambda batch, params: pa.record_batch(
                    [pa.array(["en", None])], schema=pa.schema([pa.field("label", pa.string(), nullable=False)])
                ),
            },
            "1 nulls in label",
        ),
    ],
)
def test_an_annotator_that_breaks_its_contract_stops_the_stage(
    corpus: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], says: str
) -> None:
    plugged(monkeypatch, **changes)
    with pytest.raises(StageError) as caught:
        annotate.run(corpus.ctx, "web", "length", {}, corpus.documents["web"])
    assert says in str(caught.value)


def test_rare_labels_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "MAX_LABELS", 2)
    labels: dict[str, dict[str, int]] = {}
    stage._merge_labels(labels, "label", {"en": 3, "de": 2, "fr": 1})
    stage._merge_labels(labels, "label", {"en": 1, "sv": 4})
    assert labels == {"label": {"de": 2, "en": 4, "other": 5}}


def test_long_labels_do_not_enter_the_manifest() -> None:
    labels: dict[str, dict[str, int]] = {}
    stage._merge_labels(labels, "label", {"x" * 1000: 1, "y" * 1001: 2, "z" * 10**6: 3})
    assert labels == {"label": {"x" * 1000: 1, "other": 5}}


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("gopher_qualty", {}, "did you mean 'gopher_quality'?"),
        ("zzz", {}, "language, gopher_quality"),
        ("pii", {"kind": ["email"]}, "did you mean 'kinds'?"),
        ("pii", {"kinds": ["e-mail"]}, "corpus.annotate.pii.kinds"),
        ("gopher_quality", {"profile": "dolma"}, "corpus.annotate.gopher_quality.profile"),
        ("c4", {"min_words_per_line": -1}, "corpus.annotate.c4.min_words_per_line"),
    ],
)
def test_wrong_names_and_parameters_are_refused(corpus: Any, name: str, params: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        annotate.run(corpus.ctx, "web", name, params, corpus.documents["web"])
    assert says in str(caught.value)


@pytest.mark.parametrize("chosen", ANNOTATORS.values(), ids=lambda chosen: str(chosen.name))
def test_every_annotator_says_what_it_is(chosen: Annotator) -> None:
    assert ANNOTATORS[chosen.name] is chosen
    assert chosen.version
    assert chosen.description.endswith(".")
    assert chosen.source
    assert all(field.description for field in chosen.params.model_fields.values())
    assert set(chosen.reads) <= set(DOCUMENT_SCHEMA.names)


BESIDE: dict[str, dict[str, Any]] = {
    "gopher_quality": {},
    "c4": {"terminal_punctuation": False},
    "licence": {"permitted": ["MIT"]},
    "pii": {},
}


def _recorded(corpus: Any) -> dict[str, bytes]:
    root = corpus.ctx.workspace.records
    return {path.name: path.read_bytes() for path in root.rglob("*.json")}


def test_annotators_beside_are_made_in_the_same_reading_with_the_same_bytes(corpus: Any) -> None:
    documents = corpus.documents["web"]
    before = _recorded(corpus)
    alone = {name: annotate.run(corpus.ctx, "web", name, raw, documents) for name, raw in BESIDE.items()}
    records = {name: value for name, value in _recorded(corpus).items() if name not in before}
    for name in records:
        (corpus.ctx.workspace.records / name[:2] / name).unlink()
    first = annotate.run(corpus.ctx, "web", "gopher_quality", {}, documents, beside=BESIDE)
    assert first.digest == alone["gopher_quality"].digest
    assert {name: value for name, value in _recorded(corpus).items() if name not in before} == records
    for part in documents.named("part-"):  # who comes next does not need the text any more
        corpus.ctx.store.path(part.blob).unlink()
    later = {name: annotate.run(corpus.ctx, "web", name, raw, documents, beside=BESIDE) for name, raw in BESIDE.items()}
    assert {name: made.digest for name, made in later.items()} == {name: made.digest for name, made in alone.items()}


def test_only_what_is_missing_is_made_beside(corpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    made = plugged(monkeypatch)

    def counting(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return made.annotate(batch, params)

    plugged(monkeypatch, annotate=counting)
    documents, beside = corpus.documents["web"], {"length": {}, "licence": {"permitted": ["MIT"]}}
    annotate.run(corpus.ctx, "web", "length", {}, documents, beside=beside)
    assert calls == [2, 1]
    annotate.run(corpus.ctx, "web", "gopher_quality", {}, documents, beside=beside)
    annotate.run(corpus.ctx, "web", "licence", {"permitted": ["MIT"]}, documents, beside=beside)
    assert calls == [2, 1]


def test_one_that_fails_or_lacks_its_resources_does_not_stop_its_neighbour(
    corpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = corpus.documents["web"]
    plugged(monkeypatch, annotate=lambda batch, params: pa.record_batch({"characters": pa.array([1], pa.int32())}))
    alone = annotate.run(corpus.ctx, "web", "fineweb", {}, documents)
    beside: dict[str, dict[str, Any]] = {"length": {}, "fineweb": {"short_line_characters": 20}}
    assert annotate.run(corpus.ctx, "web", "c4", {}, documents, beside=beside).stats["documents"] == 3
    with pytest.raises(StageError, match="length returned an invalid batch"):
        annotate.run(corpus.ctx, "web", "length", {}, documents, beside=beside)
    plugged(monkeypatch, resources=lambda params: ("lists/words",))
    other = annotate.run(corpus.ctx, "web", "fineweb", {"short_line_characters": 9}, documents, beside={"length": {}})
    assert other.digest != alone.digest
    with pytest.raises(MissingError, match="needs lists/words"):
        annotate.run(corpus.ctx, "web", "length", {}, documents)


def test_a_worker_with_another_version_of_an_annotator_is_refused(corpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plugged(monkeypatch)
    params = made.params()
    task = stage._Task(corpus.documents["web"].parts[0], (stage._Request("length", "1 (acme 2.0)", params, (), {}),))
    with pytest.raises(StageError, match="annotator length has another version in this worker") as refused:
        stage._annotate(corpus.ctx.store, task)
    assert (refused.value.found, refused.value.expected) == ("version 1", "version 1 (acme 2.0)")

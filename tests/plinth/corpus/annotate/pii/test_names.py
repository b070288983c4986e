"""Names and addresses by a pipeline that is made here: a blank spaCy pipeline with rules for entities."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from plinth.corpus import annotate, lists
from plinth.corpus.annotate.pii import pii
from plinth.errors import MissingError, StageError
from plinth.storage.parts import read_table
from tests.peers import Peer

spacy = Peer("spacy")


TEXT = "😀 Ada Byron lives at 12 Harbour Lane, write to ada@tidewater.net or Ada Byron."


def pipeline(folder: Path, *extra: dict[str, Any]) -> Path:
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns(
        [{"label": "PERSON", "pattern": "Ada Byron"}, {"label": "STREET", "pattern": "12 Harbour Lane"},
         {"label": "ORG", "pattern": "lives"}, *extra]
    )  # fmt: skip
    nlp.to_disk(folder)
    return folder


@pytest.fixture
def corpus(tiny: Any) -> Any:
    return tiny.corpus({"web": [[tiny.Doc(TEXT), tiny.Doc("nobody here")]]})


def run(corpus: Any, folder: Path, **params: Any) -> Any:
    made = lists.run(corpus.ctx, "people", str(folder))
    given = {"ner": "people"} | params
    return annotate.run(corpus.ctx, "web", "pii", given, corpus.documents["web"], {"lists/people": made})


def test_names_and_addresses_beside_the_patterns(corpus: Any, tmp_path: Path) -> None:
    made = run(corpus, pipeline(tmp_path / "model"))
    first, second = read_table(corpus.ctx.store, made.parts[0]).to_pylist()
    spans = [(span["reason"], TEXT[span["start_cp"] : span["end_cp"]], span["replacement"]) for span in first["spans"]]
    assert spans == [
        ("name", "Ada Byron", "<NAME>"),
        ("address", "12 Harbour Lane", "<ADDRESS>"),
        ("email", "ada@tidewater.net", "<EMAIL>"),
        ("name", "Ada Byron", "<NAME>"),
    ]
    assert (first["name"], first["address"], first["email"], first["total"]) == (2, 1, 1, 4)
    assert second["spans"] == []


def test_another_pipeline_is_another_input(corpus: Any, tmp_path: Path) -> None:
    first = run(corpus, pipeline(tmp_path / "one"))
    again = run(corpus, pipeline(tmp_path / "one"))
    other = run(corpus, pipeline(tmp_path / "two", {"label": "PERSON", "pattern": "nobody"}))
    assert first.digest == again.digest != other.digest
    assert other.stats["columns"]["name"]["sum"] == first.stats["columns"]["name"]["sum"] + 1


def test_labels_are_chosen(corpus: Any, tmp_path: Path) -> None:
    made = run(corpus, pipeline(tmp_path / "model"), ner_labels={"ORG": "name"})
    assert made.stats["columns"]["name"]["sum"] == 1
    assert made.stats["columns"]["address"]["sum"] == 0


def test_a_pipeline_that_is_missing_or_none_is_refused(
    corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingError, match="needs lists/people"):
        annotate.run(corpus.ctx, "web", "pii", {"ner": "people"}, corpus.documents["web"])
    (tmp_path / "words.txt").write_text("no pipeline")
    with pytest.raises(StageError, match="not a loadable spaCy pipeline"):
        pii.load("people", {"words.txt": tmp_path / "words.txt"})

    def none(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(pii, "import_module", none)
    with pytest.raises(MissingError) as caught:
        pii.load("people", {})
    assert "plinth[ner]" in str(caught.value)
    assert importlib.import_module("spacy")


def test_long_texts_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pii, "PIECE", 40)
    nlp = spacy.load(pipeline(tmp_path / "model"))
    text = "\n".join(f"{number} Ada Byron came" for number in range(30))
    found = list(pii.entities(nlp, text, {"PERSON": "name"}))
    assert len(found) == 30
    assert all(text[start:end] == "Ada Byron" for start, end, _ in found)
    assert list(pii.entities(nlp, "", {"PERSON": "name"})) == []


def test_parameters_alone_do_not_find_names() -> None:
    import pyarrow as pa

    with pytest.raises(StageError, match="was not prepared"):
        pii.annotate(pa.record_batch({"text": pa.array(["x"], pa.large_string())}), pii.PiiParams(ner="people"))

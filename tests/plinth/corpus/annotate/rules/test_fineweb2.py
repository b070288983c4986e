"""Rules by language: the default policy keeps good text of many scripts and drops spam derived from it."""

import importlib.util
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.corpus import annotate
from plinth.corpus.annotate.base import annotator
from plinth.corpus.annotate.rules import fineweb
from plinth.corpus.annotate.rules.fineweb import FineWeb2Params, PreparedLimits, limits_of, published
from plinth.corpus.policy.compiled_policy import columns_of
from plinth.corpus.policy.expressions import parse
from plinth.corpus.policy.profiles import profile
from plinth.errors import MissingError, SourceError, StageError
from plinth.storage.parts import read_table

#: Languages of twelve scripts whose sentences in spaCy are fifty words or more.
LANGUAGES = [
    "ar", "az", "bo", "da", "de", "el", "es", "fr", "gu", "he", "hi", "id", "ja", "lb", "pl", "ro", "ru", "sk", "sl",
    "sr", "ta", "uk", "vi", "zh",
]  # fmt: skip


def prose(language: str) -> str:
    """The sentences of a language that spaCy shows, five a paragraph."""
    (package,) = importlib.util.find_spec("spacy").submodule_search_locations
    sentences = runpy.run_path(f"{package}/lang/{language}/examples.py")["sentences"]  # without the language's rules
    joint = "" if language in ("ja", "zh") else " "
    return "\n\n".join(joint.join(sentences[at : at + 5]) for at in range(0, len(sentences), 5))


def columns(texts: list[str]) -> dict[str, pa.Array]:
    """The columns of the profile's annotators."""
    batch, found = pa.record_batch({"text": pa.array(texts, pa.large_string())}), dict[str, pa.Array]()
    for needed, params in profile("fineweb/languages").annotators.items():
        chosen = annotator(needed)
        given = chosen.params(**params)
        read = batch
        for column in chosen.after:
            read = read.append_column(column, found[column])
        made = chosen.annotate(read, chosen.prepare(given, {}) if chosen.prepare else given)
        found |= {f"{needed}.{column}": made.column(column) for column in made.schema.names}
    return found


def reasons(texts: list[str], name: str = "fineweb/languages") -> list[list[str]]:
    """The rules of a profile that fire on each text."""
    found, chosen = columns(texts), profile(name)
    types = columns_of(tuple(dict.fromkeys(("language", *chosen.annotators))))
    fires = {reason: parse(drop, types, reason).evaluate(found, len(texts)) for reason, drop in chosen.rules}
    return [[reason for reason, one in fires.items() if one[row]] for row in range(len(texts))]


@pytest.mark.exhaustive
def test_prose_of_twenty_four_languages_is_kept_where_english_rules_dropped_it() -> None:
    texts = [prose(language) for language in LANGUAGES]
    kept = dict(zip(LANGUAGES, reasons(texts), strict=True))
    assert {language: fired for language, fired in kept.items() if fired} == {}
    before = reasons(texts, "fineweb/pipeline")
    assert sum(not fired for fired in before) < len(LANGUAGES) / 4


@pytest.mark.parametrize("language", LANGUAGES)
def test_spam_of_the_same_words_is_dropped(language: str) -> None:
    text = prose(language)
    lines = text.split("\n\n")
    repeated = "\n".join([lines[0]] * 12)
    # names of goods without a sentence: the letters of the text, cut into pieces between bars
    letters = "".join(one for one in text if one.isalpha() or one == " ")
    listed = "\n".join(f"| {letters[at : at + 4]} | {at} | # | $ |" for at in range(0, len(letters) - 4, 4))
    shouted = " ".join(word + "!!! ### $$$ >>>" for word in text.split()[:80])
    for spam in (repeated, listed, shouted, lines[0][:40]):
        assert reasons([spam])[0], spam[:100]


def test_english_has_no_scores_and_the_verdicts_of_fineweb() -> None:
    good = "The river is old and the bridge across it was built by people that have long been forgotten. "
    texts = [good + f"In {year} they came with carts to see it. " * 1 for year in range(1900, 1903)]
    texts.append(Path(fineweb.__file__).read_text("utf-8"))
    found = columns(texts)
    assert found["language.label"].to_pylist() == ["en"] * 4
    assert all(column.null_count == 4 for name, column in found.items() if name.startswith("fineweb2."))
    assert [fired[1:] if fired[:1] == ["language"] else fired for fired in reasons(texts)] == reasons(
        texts, "fineweb/pipeline"
    )


def scores(label: str, text: str, own: Any = None) -> dict[str, Any]:
    batch = pa.record_batch({"text": pa.array([text], pa.large_string()), "language.label": pa.array([label])})
    made: dict[str, Any] = fineweb.annotate_fineweb2(batch, PreparedLimits(own or {})).to_pylist()[0]
    return made


def test_scores_stand_over_the_limits_of_the_language() -> None:
    text = "Die Katze schläft.\nDie Katze schläft.\nund der Hund"
    made, limits = scores("de", text), published()["de"]
    assert (made["word_count"], made["sentences"], made["stop_words"]) == (11, 3, 2)
    assert made["duplicate_lines"] == pytest.approx(1 / 3 / limits.duplicate_lines)
    assert made["newlines_per_word"] == pytest.approx(2 / 11 / limits.newlines_per_word)
    assert made["letter_words"] == pytest.approx(9 / 11 / limits.letter_words)
    assert made["ended_lines"] == 1.0  # German is asked for none
    assert made["long_words"] == pytest.approx(40 / 9 / limits.max_word_characters)
    # `Die Katze`, `Die Katze schläft` and `Die Katze schläft .`, twice each, of 50 characters
    tops = (2 * 9 / 50, 2 * 17 / 50, 2 * 19 / 50)
    assert made["top_n_grams"] == pytest.approx(max(np.array(tops) / limits.top_n_grams))
    russian = scores("ru", "Кот спит.\nПёс")
    assert russian["ended_lines"] == pytest.approx(0.5 / published()["ru"].ended_lines)


def test_labels_of_other_models_find_their_language() -> None:
    for label, code in {
        "zho_Hans": "zh",
        "cmn_Hani": "zh",
        "arb_Arab": "ar",
        "rus_Cyrl": "ru",
        "lvs_Latn": "lv",
    }.items():
        assert limits_of(label, {}) == published()[code]
    assert limits_of("en", {}) is None
    assert limits_of("eng_Latn", {}) is None
    for label in ("uzn_Cyrl", "rus_Latn"):  # no list of theirs is in that script
        assert limits_of(label, {}) == published()["other"]
    other = limits_of("xyz_Latn", {})
    assert other == published()["other"]
    assert other is not None
    assert 0.2 < other.duplicate_lines < 0.4
    assert scores("xyz_Latn", "a b")["stop_words"] is None


def test_a_list_of_limits_takes_the_place_of_the_published_ones(tmp_path: Path) -> None:
    line = published()["de"].model_copy(update={"newlines_per_word": 0.1, "stop_words": ("Hund",)})
    path = tmp_path / "limits.jsonl"
    path.write_text(line.model_dump_json() + "\n")
    params = FineWeb2Params(limits="mine")
    assert fineweb.resources_fineweb2(params) == ("lists/mine",)
    prepared = fineweb.prepare_fineweb2(params, {"lists/mine": {"limits.jsonl": path}})
    made = scores("de", "Der Hund\nschläft", prepared.own)
    assert made["stop_words"] == 1
    assert made["newlines_per_word"] == pytest.approx(1 / 3 / 0.1)
    path.write_text(json.dumps({"label": "de", "duplicate_lines": 0}))
    with pytest.raises(SourceError, match="line 1 does not contain valid limits"):
        fineweb.prepare_fineweb2(params, {"lists/mine": {"limits.jsonl": path}})


def test_the_label_of_the_sidecar_decides_and_is_part_of_the_identity(tiny: Any) -> None:
    corpus = tiny.corpus({"web": [[tiny.Doc(prose("ja")), tiny.Doc(prose("de"))], [tiny.Doc("The old river. " * 30)]]})
    documents = corpus.documents["web"]
    with pytest.raises(MissingError, match=r"reads language\.label"):
        annotate.run(tiny.ctx, "web", "fineweb2", {}, documents)
    language = annotate.run(tiny.ctx, "web", "language", {}, documents)
    made = annotate.run(tiny.ctx, "web", "fineweb2", {}, documents, sidecars={"language": language}, beside={"c4": {}})
    assert made.inputs["web/language"] == language.digest
    rows = [row for part in made.parts for row in read_table(tiny.ctx.store, part).to_pylist()]
    assert [row["word_count"] is None for row in rows] == [False, False, True]
    assert rows[0] == scores("ja", prose("ja"))
    other = annotate.run(tiny.ctx, "web", "language", {"thresholds": {"default": 0.1}}, documents)
    again = annotate.run(tiny.ctx, "web", "fineweb2", {}, documents, sidecars={"language": other})
    assert [part.blob for part in again.parts] == [part.blob for part in made.parts]
    assert np.all([part.rows for part in made.parts] == [part.rows for part in documents.named("part-")])


def test_limits_fitted_from_a_reference_take_the_share_of_it_that_was_asked_for() -> None:
    """For documents that differ in one property, the limit is the quantile; stop words are the frequent words."""
    texts = [("Der Hund und die Katze. " * 20 + "\n" * number).strip("\n") + "\n" * number for number in range(100)]
    made = fineweb.fit("de", texts, removed=0.1)
    words = np.array([scores("de", text)["word_count"] for text in texts])
    assert set(words.tolist()) == {120}
    assert made.newlines_per_word == pytest.approx(np.quantile(np.arange(100) / 120, 0.9), abs=1e-3)
    assert made.letter_words == pytest.approx(5 / 6, abs=1e-3)
    assert made.stop_words == ("Der", "Hund", "Katze", "die", "und")
    assert (made.min_word_characters, made.max_word_characters) == (3.6, 3.6)
    with pytest.raises(StageError, match="too few documents in de"):
        fineweb.fit("de", texts[:99])


def test_limits_of_a_bucket_are_a_list_that_the_annotator_reads(tiny: Any, tmp_path: Path) -> None:
    docs = [tiny.Doc(prose("ja") + "\n" + str(number)) for number in range(120)] + [tiny.Doc(prose("de"))]
    corpus = tiny.corpus({"books": [docs]})
    ctx, documents = tiny.ctx, corpus.documents["books"]
    ctx.refs.publish(documents, "1" * 64)
    ctx.refs.publish(annotate.run(ctx, "books", "language", {}, documents), "2" * 64)
    (made,) = fineweb.fitted(ctx, "books", (), 0.05, 100)
    assert made.label == "ja"
    assert "の" in made.stop_words
    path = tmp_path / "limits.jsonl"
    path.write_text(made.model_dump_json() + "\n")
    prepared = fineweb.prepare_fineweb2(FineWeb2Params(limits="mine"), {"lists/mine": {"limits.jsonl": path}})
    assert limits_of("ja", prepared.own) == made
    with pytest.raises(StageError, match="too few documents in de"):
        fineweb.fitted(ctx, "books", ("de",), 0.05, 100)
    with pytest.raises(MissingError, match="no language with enough"):
        fineweb.fitted(ctx, "books", (), 0.05, 50)

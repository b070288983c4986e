import gzip
import re
import socket
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from plinth.corpus.annotate import language
from plinth.corpus.annotate.base import parameters
from plinth.errors import RecipeError


def rows(texts: list[str], **params: Any) -> list[dict[str, Any]]:
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    prepared = language.prepare(language.LanguageParams(**params), {})
    return list(language.annotate(batch, prepared).to_pylist())


def detect(texts: list[str], **params: Any) -> list[tuple[str, float]]:
    return [(row["label"], row["score"]) for row in rows(texts, **params)]


SENTENCES = {
    "en": "The old bridge over the river was rebuilt after the war, and many people visit it.",
    "de": "Die alte Brücke am Fluss wurde nach dem Krieg wieder aufgebaut und viele Menschen besuchen sie.",
    "fr": "Le vieux pont sur la rivière a été reconstruit après la guerre, et beaucoup de gens le visitent.",
    "ja": "川に架かる古い橋は戦後に再建され、多くの人々が訪れている。",
    "ru": "Старый мост через реку был восстановлен после войны, и многие люди приходят сюда.",
}


@pytest.mark.parametrize("label", SENTENCES)
def test_languages_are_told_apart(label: str) -> None:
    found, score = detect([SENTENCES[label]])[0]
    assert found == label
    assert 0.65 < score <= 1


def test_line_ends_do_not_matter() -> None:
    text = SENTENCES["de"]
    assert detect([text.replace(" ", "\n")]) == detect([text])


@pytest.mark.parametrize("text", ["", " \n ", "12 + 34 = 46", "....", "\x00"])
def test_a_text_without_letters_has_no_language(text: str) -> None:
    assert detect([text]) == [("und", 0.0)]


def test_the_middle_can_decide() -> None:
    text = SENTENCES["de"] + "\n" + " ".join([SENTENCES["en"]] * 200) + "\n" + SENTENCES["de"]
    assert detect([text], max_characters=256)[0][0] == "en"


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    language.kernel.cache_clear()
    assert detect([SENTENCES["fr"]])[0][0] == "fr"


#: A second paragraph in each language, for documents with varied text.
MORE = {
    "en": "In the morning the fishermen brought their boats back to the harbour, and the market opened at seven.",
    "de": "Am Morgen brachten die Fischer ihre Boote zurück in den Hafen, und um sieben Uhr öffnete der Markt.",
    "fr": "Le matin, les pêcheurs ramenaient leurs bateaux au port, et le marché ouvrait ses portes à sept heures.",
    "ja": "朝になると漁師たちは船を港に戻し、市場は七時に開いた。人々は魚や野菜を買いに集まってきた。",
    "ru": "Утром рыбаки возвращали свои лодки в гавань, а рынок открывался в семь часов утра.",
}


def planted(first: str, second: str, of_ten: int) -> str:
    """Return ten paragraphs, `of_ten` of them in the second language."""
    pairs = {name: (SENTENCES[name], MORE[name]) for name in (first, second)}
    return "\n\n".join(pairs[second if place < of_ten else first][place % 2] for place in range(10))


@pytest.mark.parametrize("second", ["de", "fr", "ru"])
@pytest.mark.parametrize("of_ten", [0, 1, 3, 5])
def test_mixed_documents_and_their_shares(second: str, of_ten: int) -> None:
    text = planted("en", second, of_ten)
    row = rows([text])[0]
    paragraphs = text.split("\n\n")
    size = sum(len(paragraph) for paragraph in paragraphs[of_ten:]) / sum(map(len, paragraphs))
    own = size if row["label"] == "en" else 1 - size
    assert row["paragraphs"] == 10
    assert row["label_share"] == pytest.approx(own, abs=0.02)
    assert row["mixed"] == (of_ten >= 3)
    if row["label"] == "en":
        assert [span["reason"] for span in row["foreign"]] == [f"language/{second}"] * of_ten


def test_foreign_paragraphs_can_be_cut_exactly() -> None:
    text = f"{SENTENCES['en']}\n{MORE['en']}\n\n{SENTENCES['de']}\n\n{MORE['en']}"
    (span,) = rows([text])[0]["foreign"]
    assert text[span["start_cp"] : span["end_cp"]] == SENTENCES["de"] + "\n"
    assert (span["replacement"], span["reason"]) == ("", "language/de")
    assert rows([text], min_score=1.0)[0]["foreign"] == []
    assert rows([text], min_letters=200)[0]["paragraphs"] == 0


def test_short_paragraphs_are_not_judged() -> None:
    row = rows(["Oui.\n\nNon merci.\n\n" + SENTENCES["en"]])[0]
    assert (row["paragraphs"], row["label_share"], row["mixed"], row["foreign"]) == (1, 1.0, False, [])


def test_thresholds_by_language_and_allowed_languages() -> None:
    texts = [SENTENCES["en"], SENTENCES["de"], "12 34"]
    scores = [score for _, score in detect(texts)]
    assert [row["accepted"] for row in rows(texts)] == [True, True, False]
    bars = {"default": 0.1, "de": (scores[1] + 1) / 2}
    assert [row["accepted"] for row in rows(texts, thresholds=bars)] == [True, False, False]
    assert [row["accepted"] for row in rows(texts, thresholds={})] == [True, True, False]
    assert [row["accepted"] for row in rows(texts, allowed=("de",))] == [False, True, False]


@pytest.mark.parametrize("params", [{"thresholds": {"german": 0.5}}, {"allowed": ["ger"]}, {"thresholds": {"de": 1.5}}])
def test_unknown_languages_and_thresholds_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"corpus\.annotate\.language"):
        parameters("language", params)


def test_the_list_of_languages_is_the_models() -> None:
    assert set(language.kernel().model.labels) == language.LANGUAGES


def test_text_read_in_a_wrong_encoding() -> None:
    text = f"{SENTENCES['de']} {MORE['de']}"
    latin = text.encode().decode("latin-1")
    cut = text.encode("latin-1").decode("utf-8", "replace")
    clean, mojibake, replaced = rows([text, latin, cut])
    assert (clean["damaged"], clean["wrong_encoding"]) == (0, False)
    umlauts = sum(character in "üöäß" for character in text)
    assert mojibake["wrong_encoding"]
    assert replaced["wrong_encoding"]
    assert replaced["damaged"] == pytest.approx(umlauts / len(cut))


def test_second_label() -> None:
    row = rows([SENTENCES["en"]])[0]
    assert 0 < row["second_score"] < row["score"]
    assert row["second_label"] not in ("en", language.UNKNOWN)


MANUALS = {folder.name: folder for folder in sorted(Path("/usr/share/man").glob("[a-z][a-z]")) if folder.is_dir()}


def prose(page: bytes) -> str:
    """Lines of a manual page that are not requests, without escapes."""
    lines = [line for line in page.decode("utf-8", "replace").splitlines() if not line.startswith((".", "'"))]
    return re.sub(r"\\f(?:.|\[\w*\])|\\[-&|~ ]?", "", "\n".join(lines))


def manuals(name: str) -> list[str]:
    """Long manual pages in a language, at most sixty."""
    pages = sorted(MANUALS[name].rglob("*.gz"))[:60] if name in MANUALS else []
    return [text for text in map(prose, (gzip.decompress(page.read_bytes()) for page in pages)) if len(text) > 500]


@pytest.mark.parametrize("name", [n for n in ("de", "fr", "ja", "pl", "ru", "uk", "sv", "nl") if len(manuals(n)) >= 10])
def test_manual_pages_in_their_language(name: str) -> None:
    """Commands, names and untranslated parts are in English; in some pages they are most of the text."""
    texts = manuals(name)
    right = sum(label == name for label, _ in detect(texts))
    assert right / len(texts) >= 0.75

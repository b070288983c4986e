import socket
from typing import NoReturn

import pyarrow as pa
import pytest

from plinth.corpus.annotate import language


def detect(texts: list[str], **params: int) -> list[tuple[str, float]]:
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    made = language.annotate(batch, language.Params(**params))
    return list(zip(made.column("label").to_pylist(), made.column("score").to_pylist(), strict=True))


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


def test_the_middle_of_a_long_text_decides() -> None:
    text = SENTENCES["de"] + "\n" + " ".join([SENTENCES["en"]] * 200) + "\n" + SENTENCES["de"]
    assert detect([text], max_characters=256)[0][0] == "en"


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    language.kernel.cache_clear()
    assert detect([SENTENCES["fr"]])[0][0] == "fr"

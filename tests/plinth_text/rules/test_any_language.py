"""Counts in any language: exact on tiny texts, and those of the white-space kernels where words are the same."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth_text.rules import fineweb
from plinth_text.rules.fineweb import LANGUAGE_GRAMS, language_counts, stop_words
from plinth_text.rules.gopher import repetition_shares
from plinth_text.words.script_words import words


def counted(*texts: str, stops: tuple[str, ...] = ()) -> dict[str, list[int]]:
    array = pa.array(texts, pa.large_string())
    made = language_counts(array, np.zeros(len(texts), dtype=np.int64), stop_words([stops]))
    names = ["words", "plain", "plain_characters", "letters", "stops", "sentences", "lines", "repeated", "characters"]
    return {name: made[:, column].tolist() for column, name in enumerate(names)}


def test_counts_of_a_chinese_and_a_russian_text() -> None:
    made = counted("今天天气很好，我们去公园。今天好！", "Да, 5 дней. Нет…\nДа, 5 дней.")
    assert made["words"] == [
        len(["今天", "天气", "很", "好", "，", "我们", "去", "公园", "。", "今天", "好", "！"]),
        12,
    ]
    assert made["plain"] == [9, 7]
    assert made["letters"] == [9, 5]
    assert made["plain_characters"] == [14, 17]
    assert made["sentences"] == [2, 3]
    assert made["lines"] == [1, 2]
    assert made["repeated"] == [0, 0]
    assert made["characters"] == [17, 28]


@pytest.mark.parametrize(
    ("text", "stops", "count"),
    [
        ("的 在 的", ("的", "在", "是"), 2),
        ("มนุษย์ทั้งหลายเกิดมา", ("ทั้งหลาย", "เกิดมา"), 2),  # each is more than one of BudouX's words
        ("ភាសាខ្មែរមាន", ("មាន", "ខ្មែរ"), 2),  # of syllables
        ("학교에서 책을 읽는다", ("에서", "을", "의"), 2),  # at the end of words
        ("Der Hund und die Katze", ("der", "und", "die"), 2),  # as FineWeb-2 compares them
        ("", ("x",), 0),
    ],
)
def test_distinct_stop_words(text: str, stops: tuple[str, ...], count: int) -> None:
    assert counted(text, stops=stops)["stops"] == [count]


def test_a_text_without_a_list_has_no_stop_words_and_long_lists_are_refused() -> None:
    array = pa.array(["a b c"], pa.large_string())
    made = language_counts(array, np.array([-1]), stop_words([("a",)]))
    assert made[0, fineweb.LANGUAGE_STOP_WORDS] == 0
    with pytest.raises(ValueError, match="65 stop words"):
        stop_words([[str(number) for number in range(65)]])


@given(st.lists(st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta"]), max_size=9), max_size=9))
def test_repetition_is_that_of_the_white_space_kernel(lines: list[list[str]]) -> None:
    text = "\n".join(" ".join(line) for line in lines)
    array = pa.array([text, "x"], pa.large_string())
    made = language_counts(array, np.array([-1, -1]), stop_words([()]))
    shares = repetition_shares(array)
    assert np.allclose(made[:, LANGUAGE_GRAMS:] / np.maximum(made[:, [fineweb.LANGUAGE_CHARACTERS]], 1), shares[:, 4:])
    lines_of = made[0, fineweb.LANGUAGE_REPEATED_LINES] / max(1, made[0, fineweb.LANGUAGE_LINES])
    assert lines_of == shares[0, 0]


@given(st.lists(st.text(alphabet="aя中ひไ।.。 \n-'", max_size=30), max_size=5))
def test_every_text_is_counted_alone(texts: list[str]) -> None:
    made = counted(*texts)
    assert made["words"] == [len(words(text)) for text in texts]
    for row, text in enumerate(texts):
        assert {name: [column[row]] for name, column in made.items()} == counted(text)

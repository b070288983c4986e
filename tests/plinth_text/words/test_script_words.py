"""Words in any script: exact ones, and BudouX's where the script has no spaces."""

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth_text.unicode import BLANK, HAN, KANA, S_LETTER, S_MARK, THAI, kinds
from plinth_text.words import script_words
from plinth_text.words.script_words import words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("今日は天気が良いので、公園に行きました。", "今日|は|天気|が|良い|ので|、|公園|に|行き|まし|た|。"),
        ("今天天气很好，我们去公园。", "今天|天气|很|好|，|我们|去|公园|。"),
        ("本程式讀取指定的檔案並將結果寫入標準輸出。", "本|程式|讀取|指定|的|檔案|並|將|結果|寫入|標準|輸出|。"),
        ("วันนี้อากาศดีมาก 25 ครั้ง", "วัน|นี้|อากาศ|ดี|มาก|25|ครั้ง"),
        ("ファイルfoo.txtを読み込みます", "ファイル|foo.txt|を|読み込み|ます"),
        ("中ไทย中", "中|ไทย|中"),
        ("ພາສາລາວແລະ", "ພາ|ສາ|ລາ|ວ|ແລະ"),
        ("ភាសាខ្មែរមាន", "ភា|សា|ខ្មែ|រ|មា|ន"),
        ("မြန်မာနိုင်ငံတော်", "မြန်|မာ|နိုင်|ငံ|တော်"),
        ("བོད་སྐད་ནི།", "བོད|སྐད|ནི|།"),
        ("مرحبا، كيف حالك؟", "مرحبا|،|كيف|حالك|؟"),
        ("हिन्दी में है।", "हिन्दी|में|है|।"),
        ("안녕하세요. 반갑습니다", "안녕하세요|.|반갑습니다"),
        ("L'eau d'été (3.5 l), e-mail: 1,000!", "L'|eau|d'|été|(|3.5|l|)|,|e-mail|:|1,000|!"),
        ("м'яч --all /usr ... - a--b", "м'яч|--all|/usr|...|-|a|--|b"),
        ("a\u3000b\u200bc\n\td", "a|b|c|d"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert "|".join(words(text)) == expected


def test_kinds_of_code_points() -> None:
    table = kinds()
    found = [table[ord(one)] for one in "aé5中かー𠀀ไ \u3000、。🙂"]
    assert found == [S_LETTER, S_LETTER, S_LETTER, HAN, KANA, KANA, HAN, THAI, BLANK, BLANK, S_MARK, S_MARK, S_MARK]


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_words_are_the_text_in_order(text: str) -> None:
    found, at = words(text), 0
    for word in found:
        at = text.index(word, at) + len(word)
    left = text
    for word in found:
        left = left.replace(word, "", 1)
    table = kinds()
    assert all(ord(one) < table.size and table[ord(one)] == BLANK for one in left)


@given(st.lists(st.sampled_from(["หนังสือ", "ภาษา", "中文", "ひらがな", "カタカナ", "漢字", "a", " ", "。", "ๆ", "2"])))
def test_a_part_that_is_cut_off_by_lines_is_words_too(pieces: list[str]) -> None:
    assert sum(len(word) for word in words("".join(pieces))) == sum(len(one.strip()) for one in pieces)


def examples(language: str) -> str:
    """Sentences in the language that spaCy shows."""
    return "".join(importlib.import_module(f"spacy.lang.{language}.examples").sentences)


THAI_TEXT = (
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม "
    "และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ"
)  # the first article of the declaration of human rights


@pytest.mark.parametrize(("language", "model"), [("zh", "zh-hans"), ("ja", "ja_word"), ("th", "th")])
def test_boundaries_are_those_of_budoux_as_released(language: str, model: str) -> None:
    budoux = pytest.importorskip("budoux")
    import json
    from importlib.metadata import distribution
    from pathlib import Path

    path = Path(str(distribution("budoux").locate_file(f"budoux/models/{model}.json")))
    parser = budoux.Parser(json.loads(path.read_text("utf-8")))
    text = THAI_TEXT if language == "th" else examples(language)
    number = ("zh-hans", "zh-hant", "ja_word", "th").index(model)
    picks = np.random.default_rng(1)
    for _ in range(60):
        some = "".join(picks.permutation(list(text))[: picks.integers(1, 60)]) if _ else text
        points = np.array([ord(one) for one in some], dtype=np.int32)
        found = np.zeros(points.size, dtype=np.bool_)
        scratch = np.zeros(points.size + 6, dtype=np.int32)
        script_words.begins(script_words.boundary_models(), number, points, points.size, scratch, found)
        starts = np.cumsum([0, *(len(one) for one in parser.parse(some))])[:-1]
        assert np.flatnonzero(found).tolist() == starts.tolist()

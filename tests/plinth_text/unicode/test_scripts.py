from __future__ import annotations

import pytest

from plinth_text.unicode import word_counts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"words": 0}),
        ("hello,  world - x\n", {"words": 4}),
        ("한국어 단어", {"words": 2}),
        ("使用Python编程，很好。ok", {"words": 2, "han": 6}),
        ("カタカナ漢字", {"words": 0, "kana": 4, "han": 2}),
        ("ภาษาไทย ดี", {"words": 0, "thai": 9}),
        ("a。b", {"words": 2}),
    ],
)
def test_words_between_spaces_and_characters_of_scripts_without_them(text: str, expected: dict[str, int]) -> None:
    assert word_counts(text) == expected

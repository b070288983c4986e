"""The normal form of a text."""

from __future__ import annotations

import re
import unicodedata

import pytest
from ftfy.badness import MOJIBAKE_CATEGORIES, is_bad
from hypothesis import example, given
from hypothesis import strategies as st

from plinth.corpus.documents.normalize import is_damaged, normalize
from plinth.corpus.sources.parameters import Normalisation

PLAIN = Normalisation()
PIECES = [
    "a", " ", "\t", "\n", "\r", "\r\n", "\x0b", "\x85", "\u2028", "\ufeff", "\x00", "\x9d", "e\u0301", "é", "Ã©",
    "â€™",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\x0bd\x0ce\u2028f", "a\nb\nc\nd\ne\nf"),
        ("    indented\n\tcode", "    indented\n\tcode"),
        ("trailing \t\u3000\nnext  ", "trailing\nnext"),
        ("\n \n\nfirst", "first"),
        ("a\n\n\nb", "a\n\n\nb"),
        ("a\n\n\n\n\n\nb", "a\n\n\nb"),
        ("e\u0301", "é"),
        ("\ufeffbell\x07 null\x00 del\x7f c1\x9d", "bell null del c1"),
        ("L&Atilde; stays &amp; stays", "L&Atilde; stays &amp; stays"),
        ("“quotes” and ﬁ stay", "“quotes” and ﬁ stay"),
        ("", ""),
        ("\r\n \t", ""),
    ],
)
def test_known_answers(text: str, expected: str) -> None:
    assert normalize(text, PLAIN) == expected


@pytest.mark.parametrize("good", ["schön, naïve café", "It’s “quoted” — yes…", "Привет, мир", "日本語の文章です"])
def test_mojibake_is_repaired_and_good_text_is_left_alone(good: str) -> None:
    bad = good.encode().decode("latin-1")
    assert normalize(bad, PLAIN) == good
    assert normalize(good, PLAIN) == good
    assert normalize(f"{good}\n{bad}", PLAIN) == f"{good}\n{good}"


def test_a_lone_c1_is_taken_for_windows_1252_or_without_repair_for_next_line() -> None:
    assert normalize("wait\x85", PLAIN) == "wait…"
    assert normalize("a\x85b", Normalisation(repair_mojibake=False)) == "a\nb"


def characters_of_mojibake() -> st.SearchStrategy[str]:
    """Draw characters that ftfy looks for, and ASCII between them."""
    ranges = re.compile("".join(("[", *MOJIBAKE_CATEGORIES.values(), "]")))
    return st.sampled_from([*"azAZ .,\n1" * 30, *filter(ranges.match, map(chr, range(0x80, 0x3000)))])


@given(st.text(characters_of_mojibake(), max_size=16))
@example("first\n\u0152")
@example("a \xc2 b")
def test_damage_is_what_ftfy_finds(text: str) -> None:
    assert is_damaged(text) == is_bad(text)


def test_repair_can_be_switched_off() -> None:
    assert normalize("schÃ¶n", Normalisation(repair_mojibake=False)) == "schÃ¶n"


def test_blank_lines_follow_the_parameter() -> None:
    assert normalize("a\n\n\nb", Normalisation(max_blank_lines=0)) == "a\nb"


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
@example("Ã\x83Â©")
def test_idempotent_and_clean(text: str) -> None:
    once = normalize(text, PLAIN)
    assert normalize(once, PLAIN) == once
    assert unicodedata.is_normalized("NFC", once)
    assert not any(unicodedata.category(c) == "Cc" for c in once if c not in "\n\t")
    assert once == once.strip("\n")
    assert all(line == line.rstrip() for line in once.split("\n"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("co\xadop\xader\xada\xadtion", "cooperation"),
        ("exam\xad\nple", "example"),
        ("a\u200bb\u2060c", "abc"),
        ("caf\u200dé", "café"),
        ("\u0e01\u200b\u0e02", "\u0e01\u200b\u0e02"),  # Thai: parts words
        ("می\u200cخواهم", "می\u200cخواهم"),  # Persian: shapes letters
        ("👩\u200d🔬", "👩\u200d🔬"),
        ("क्\u200dष", "क्\u200dष"),
    ],
)
def test_what_is_invisible_goes_where_it_means_nothing(text: str, expected: str) -> None:
    assert normalize(text, PLAIN) == expected
    assert normalize(text, Normalisation(strip_invisible=False)) == text


@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from([*PIECES, "\xad", "\u200b", "\u200d", "-", ".", "The", "ab", "\f", "7"])).map("".join),
    )
)
def test_no_letter_is_lost_and_boundaries_settle(text: str) -> None:
    params = Normalisation(repair_mojibake=False)
    for repair in (False, True):
        once = normalize(text, params, repair)
        assert normalize(once, params, repair) == once
        assert unicodedata.is_normalized("NFC", once)
        assert letters(once) == letters(text)


FLAG = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"  # of England


def tagged(text: str) -> str:
    return "".join(chr(0xE0000 + ord(c)) for c in text)


@pytest.mark.parametrize("point", [*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
def test_controls_that_reorder_text_are_removed(point: int) -> None:
    for text, expected in (("a{}b", "ab"), ("שלום{} עולם", "שלום עולם"), ("سلام{}", "سلام"), ("{}1", "1")):
        assert normalize(text.format(chr(point)), PLAIN) == expected


@pytest.mark.parametrize("point", [0x200E, 0x200F, 0x061C])
def test_marks_of_direction_stay(point: int) -> None:
    text = f"שלום{chr(point)} (2026) مرحبا"
    assert normalize(text, PLAIN) == text


def test_trojan_source_shows_what_it_does() -> None:
    """The stretched string and the early return of the paper (Boucher and Anderson 2021)."""
    shown = 'if access_level != "user\u202e \u2066# Check if admin\u2069 \u2066":'
    assert normalize(shown, PLAIN) == 'if access_level != "user # Check if admin ":'
    assert normalize('"Subtract \u2067" ;return', PLAIN) == '"Subtract " ;return'


@pytest.mark.parametrize("point", [0xE0000, 0xE0001, 0xE0020, 0xE0041, 0xE0061, 0xE007E, 0xE007F])
def test_tag_characters_are_removed(point: int) -> None:
    assert normalize(f"a{chr(point)}b", PLAIN) == "ab"
    assert normalize(chr(point) * 3 + FLAG, PLAIN) == FLAG


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"x{FLAG}y", f"x{FLAG}y"),
        ("\U0001f3f4" + tagged("usca") + "\U000e007f", "\U0001f3f4" + tagged("usca") + "\U000e007f"),
        ("\U0001f3f4" + tagged("gbeng"), "\U0001f3f4"),  # without an end
        ("\U0001f3f4" + tagged("ignore all of this") + "\U000e007f", "\U0001f3f4"),  # no code of a subdivision
        (FLAG + tagged("ignore"), FLAG),
        ("😀" + tagged("gbeng") + "\U000e007f", "😀"),
        ("\U0001f3f4\u202e" + tagged("gbeng") + "\U000e007f", FLAG),
    ],
)
def test_tags_stay_in_flags_alone(text: str, expected: str) -> None:
    assert normalize(text, PLAIN) == expected


@given(
    st.lists(st.sampled_from(["\U0001f3f4", tagged("g"), tagged("1"), "\U000e007f", "\u202e", "\xad", "a"])).map(
        "".join
    )
)
def test_whatever_hides_settles(text: str) -> None:
    once = normalize(text, PLAIN)
    assert normalize(once, PLAIN) == once
    assert "\u202e" not in once
    assert not any(0xE0000 <= ord(c) < 0xE0080 for c in once.replace(FLAG, "")) or "\U0001f3f4" in once


def letters(text: str) -> list[str]:
    """Return the letters of a text in order, composed or not, without controls and invisible characters between
    them."""
    return [c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c).startswith("L")]


def test_a_megabyte_of_spaces_takes_no_quadratic_time() -> None:
    assert normalize(" " * 10**6 + "x", PLAIN) == " " * 10**6 + "x"

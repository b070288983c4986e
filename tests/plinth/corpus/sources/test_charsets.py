"""Bytes as the text that a browser shows (WHATWG Encoding Standard)."""

from __future__ import annotations

import pytest

from plinth.corpus.sources.codings import decode

RUSSIAN = "Мельник записывает каждый мешок зерна, который привозит крестьянин. "
JAPANESE = "粉屋は農夫が持ってくる穀物の袋をすべて書き留める。"
KOREAN = "방앗간 주인은 농부가 가져오는 곡식 자루를 모두 적어 둔다. "
CHINESE = "磨坊主记下农夫带来的每一袋粮食。冬天的雪下得特别大。"
TAIWANESE = "磨坊主人記下農夫帶來的每一袋糧食。去年冬天的雪下得特別大。"


def page(text: str, encoding: str, head: str = "") -> bytes:
    """A page in an encoding of Python."""
    return f"<!DOCTYPE html><html><head>{head}<title>T</title></head><body><p>{text}</p></body></html>".encode(encoding)


@pytest.mark.parametrize(
    ("label", "body", "text"),
    [
        ("Shift_JIS", b"\x87\x40 \xfb\xfc \xfa\xb1 \x87\x8a", "① 髙 﨑 ㈱"),  # NEC's and IBM's rows
        ("x-sjis", b"\x81\x60\xb1", "～ｱ"),
        ("euc-jp", b"\xad\xa1\xa1\xc1\xfc\xfc \x8e\xb1 \xf9\xa1", "①～￤ ｱ 纊"),
        ("iso-2022-jp", b"a\x1b$B-!$\"\x1b(Bb\x1b(I1\x1b(Jc", "a①あbｱc"),
        ("euc-kr", b"\x8c\x63 \xa4\xa1", "똠 ㄱ"),
        ("ks_c_5601-1987", b"\xb0\xa1\x81\x41", "가갂"),
        ("big5", b"\xf9\xd8 \xbb\xa1 \xa1\x45", "裏 說 ‧"),
        ("big5-hkscs", b"\x87\x40 \xfe\xfe \x88\x62 \x87\x7a", "䏰 秔 Ê̄ 㡵"),
        ("gb2312", b"\x80 \xa2\xe3 \x81\x40 \xa8\xbc", "€ € 丂 ḿ"),
        ("gbk", b"\xd6\xd0\x90\x30\x81\x30", "中𐀀"),
        ("iso-8859-1", b"\x93caf\xe9\x94 \x80", "“café” €"),
        ("ascii", b"caf\xe9", "café"),
        ("iso-8859-9", b"\xfd\xfe\xf0 \x80", "ışğ €"),
        ("tis-620", b"\xa1\xd2\xc3 \x85", "การ …"),
        ("koi8-ru", b"\xae\xbe", "ўЎ"),
        ("x-mac-cyrillic", b"\x8f\xf0\xe8\xe2\xe5\xf2", "Привет"),
        ("macintosh", b"\x8e\xa9", "é©"),
        ("x-user-defined", b"a\x80\xff", "a\uf780\uf7ff"),
        ("unicode-1-1-utf-8", "é".encode(), "é"),
        (" UTF8 ", "é".encode(), "é"),
        ("l5", b"\xfd", "ı"),
    ],
)
def test_labels_mean_what_the_standard_says(label: str, body: bytes, text: str) -> None:
    assert decode(body, label) == text
    assert decode(b"<p>" + body, label, html=True) == f"<p>{text}"


@pytest.mark.parametrize("label", ["iso-2022-kr", "hz-gb-2312", "ISO-2022-CN", "replacement"])
def test_nothing_is_read_where_browsers_read_nothing(label: str) -> None:
    assert decode(b"~{VPND~} \x1b$)C\x0e", label) == ""
    assert decode(f"<meta charset={label}>\x1b$)C\x0e~{{VP~}}\xe9".encode("latin-1"), html=True) == ""
    assert decode(b"plain words", label) == "plain words"  # the label is wrong, and nothing hangs on it


def test_a_mark_comes_before_the_header_and_the_header_before_the_page() -> None:
    assert decode(b"\xef\xbb\xbf\xc3\xa9", "iso-8859-1") == "é"
    assert decode(b"\xff\xfe\xe9\0", "utf-8", html=True) == "é"
    assert decode(b"\xfe\xff\0\xe9", "shift_jis") == "é"
    both = page("да", "cp1251", "<meta charset=koi8-r>")
    assert "<p>да</p>" in decode(both, "windows-1251", html=True)
    assert "<p>да</p>" not in decode(both, html=True)


@pytest.mark.parametrize(
    "head",
    [
        "<meta charset=koi8-r>",
        "<META CHARSET = 'koi8-r' />",
        '<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">',
        "<meta content='text/html;charset=koi8-r' http-equiv=content-type>",
        "<!-- <meta charset=windows-1251> --><meta charset=koi8-r>",
        '<meta name=description content="charset=windows-1251"><meta charset=koi8-r>',
        '<meta name="a>b" content=x><meta charset=koi8-r>',
    ],
)
def test_a_page_declares_its_character_set(head: str) -> None:
    assert "<p>да</p>" in decode(page("да", "koi8-r", head), html=True)


def test_what_a_page_cannot_be_in_is_read_as_the_standard_says() -> None:
    assert "<p>é" in decode(b"<?xml version='1.0' encoding='iso-8859-15'?><p>\xe9 \xa4", html=True)
    assert "€" in decode(b"<?xml version='1.0' encoding='iso-8859-15'?><p>\xe9 \xa4", html=True)
    assert "<p>“é”" in decode(page("“é”", "cp1252", "<meta charset=x-user-defined>"), html=True)
    assert "<p>é</p>" in decode(page("é", "utf-8", "<meta charset=utf-16>"), html=True)
    assert "<p>é</p>" in decode(page("é", "utf-16-le"), "utf-8", html=True)
    assert "<p>schön" in decode(page("schön", "cp1252"), "utf-16", html=True)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (RUSSIAN, "koi8-r"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "cp866"),
        (JAPANESE, "cp932"),
        (JAPANESE + "担当は㈱山川の髙橋①。", "cp932"),
        (JAPANESE, "euc-jp"),
        (KOREAN, "euc-kr"),
        (KOREAN + "두 번쨰 방, 똠방. ", "cp949"),
        (TAIWANESE + "這裏的老師傅說。", "cp950"),
        (CHINESE, "gb2312"),
        ("L’été à Noël, « c’est œuvre » ! ", "cp1252"),
        ("Größe, Übermut, schöne Wörter – „süß“. ", "cp1252"),
    ],
)
@pytest.mark.parametrize("declared", ["utf-8", "", "no-such-charset"])
def test_a_declaration_that_the_bytes_refute_is_dropped(text: str, encoding: str, declared: str) -> None:
    assert decode((text * 4).encode(encoding), declared) == text * 4
    assert f"<p>{text * 4}</p>" in decode(page(text * 4, encoding), declared, html=True)
    meta = "<meta charset=utf-8>"
    assert f"<p>{text * 4}</p>" in decode(page(text * 4, encoding, meta), declared, html=True)


def test_a_page_refutes_the_header_and_not_itself() -> None:
    assert "<p>да</p>" in decode(page("да", "koi8-r", "<meta charset=koi8-r>"), "utf-8", html=True)


def test_some_damage_refutes_nothing() -> None:
    body = RUSSIAN.encode() * 4
    assert decode(body[:15] + b"\xff" + body[15:], "utf-8") == RUSSIAN * 4
    assert decode((RUSSIAN * 4).encode() + b"\xff", "", html=True) == RUSSIAN * 4


def test_the_last_character_of_a_body_that_was_cut_may_be_cut() -> None:
    assert decode("é".encode()[:1], "utf-8", partial=True) == ""
    assert decode("aé".encode()[:2], "", partial=True) == "a"
    assert decode("日本".encode("cp932")[:3], "shift_jis", partial=True) == "日"


def test_bytes_that_are_no_text_stay_damage_and_a_page_is_always_text() -> None:
    with pytest.raises(UnicodeDecodeError):
        decode(b"\x01\x02\xff\xfb\x90", "")
    assert isinstance(decode(b"\x01\x02\xff\xfb\x90", "", html=True), str)

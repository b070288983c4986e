"""Paragraphs of PDF pages by geometry, and files that need a password."""

from __future__ import annotations

import hashlib
import io

import pytest

pytest.importorskip("pypdfium2")

from plinth.corpus.extract.page import ExtractionFailure, Text
from plinth.corpus.extract.pdf import pdf_text

PAD = bytes.fromhex("28bf4e5e4e758a4164004e56fffa01082e2e00b6d0683e802f0ca9fe6453697a")
#: Lines of 12 points: left, height on the page, words.
Lines = list[tuple[float, float, str]]
FULL = "The keeper of the mill writes down every sack of grain that a farmer brings"
NEXT = "into the book that is open on the table next to the door of the old mill and"


def pdf(lines: Lines, password: bytes | None = None, size: float = 12) -> bytes:
    """A page with these lines; with a password, in the first way of PDF to encrypt (ISO 32000-1, 7.6.3)."""
    shown = "".join(f"1 0 0 1 {x:g} {y:g} Tm ({text}) Tj\n" for x, y, text in lines)
    content = f"BT /F1 {size:g} Tf\n{shown}ET".encode("latin-1")
    locked = ""
    if password is not None:
        owner, key = b"o" * 32, b""
        key = hashlib.md5((password + PAD)[:32] + owner + (2**32 - 4).to_bytes(4, "little") + b"id").digest()[:5]
        content = rc4(hashlib.md5(key + b"\4\0\0\0\0").digest()[:10], content)
        user = rc4(key, PAD)
        locked = f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{owner.hex()}> /U <{user.hex()}> >>"
        locked += " /ID [<6964> <6964>]"
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
    page += "/Resources << /Font << /F1 5 0 R >> >> >>"
    stream = b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content)
    pages = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", pages, page.encode(), stream]
    out, places = io.BytesIO(), []
    out.write(b"%PDF-1.4\n")
    for number, one in enumerate([*objects, font.encode()], 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, one))
    table = out.tell()
    rows = "".join(f"{place:010d} 00000 n \n" for place in places)
    out.write(f"xref\n0 6\n0000000000 65535 f \n{rows}trailer << /Size 6 /Root 1 0 R {locked} >>\n".encode())
    out.write(f"startxref\n{table}\n%%EOF\n".encode())
    return out.getvalue()


def rc4(key: bytes, data: bytes) -> bytes:
    state, j = list(range(256)), 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out, i, j = bytearray(), 0, 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)


def text(lines: Lines, password: bytes | None = None) -> str:
    found = pdf_text(pdf(lines, password), lambda: None)
    assert isinstance(found, Text)
    return found.text


def column(*lines: str, left: float = 72, top: float = 700) -> Lines:
    return [(left, top - 14 * n, line) for n, line in enumerate(lines)]


def test_a_file_that_needs_a_password_is_no_damage() -> None:
    assert text(column("A line."), password=b"") == "A line."
    found = pdf_text(pdf(column("A line."), password=b"secret"), lambda: None)
    assert isinstance(found, ExtractionFailure)
    assert found.reason == "encrypted"


def test_all_lines_of_a_paragraph_are_joined() -> None:
    assert text(column(FULL, NEXT, FULL, "ends here.")) == f"{FULL} {NEXT} {FULL} ends here."


def test_a_short_line_ends_a_paragraph_and_so_does_an_indent() -> None:
    assert text(column(FULL, "ends here.", NEXT, "and here.")) == f"{FULL} ends here.\n{NEXT} and here."
    indented = [(72, 700, FULL), (72, 686, NEXT), (90, 672, FULL), (72, 658, NEXT)]
    assert text(indented) == f"{FULL} {NEXT}\n{FULL} {NEXT}"


def test_a_space_between_paragraphs_is_a_blank_line() -> None:
    lines = [*column(FULL, NEXT, "end."), *column(FULL, NEXT, "end.", top=630)]
    assert text(lines) == f"{FULL} {NEXT} end.\n\n{FULL} {NEXT} end."


def test_items_of_a_list_stay_apart_and_what_hangs_behind_their_marks_is_theirs() -> None:
    lines = [(72, 700, "1. " + FULL), (86, 686, NEXT), (86, 672, "ends."), (72, 658, "2. " + FULL), (86, 644, "ends.")]
    assert text(lines) == f"1. {FULL} {NEXT} ends.\n2. {FULL} ends."


def test_rows_of_a_table_and_lines_of_verse_stay_apart() -> None:
    cells = (72, "Rye and barley"), (300, "12"), (460, "Anna Miller")
    rows: Lines = [(x, y, cell) for y in (700, 686, 672) for x, cell in cells]
    assert [line.split() for line in text(rows).split("\n")] == [["Rye", "and", "barley", "12", "Anna", "Miller"]] * 3
    verse = ["The mill stands still,", "the water is low,", "and over the hill", "comes the first snow."]
    assert text(column(*verse)) == "\n".join(verse)


def test_words_cut_at_a_line_s_end_are_whole() -> None:
    cut = "The keeper of the mill writes down every sack of grain that a farmer insti-"
    assert text(column(cut, "tutes, and so on and on, until the evening comes and the door is shut again", "now.")) == (
        cut[:-1] + "tutes, and so on and on, until the evening comes and the door is shut again now."
    )
    known = "A well-known keeper of the mill writes down every sack of grain of a well-"
    farmer = "known farmer in the book that is open on the table next to the old door"
    assert "of a well-known" in text(column(known, farmer))

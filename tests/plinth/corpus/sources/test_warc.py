"""WARC: what is whole is read, what is damaged is counted, and the damage ends where it ends."""

from __future__ import annotations

import gzip
import random
import re
import tracemalloc
import zlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from plinth.corpus.sources.record import EXCLUSIONS, RawRecord, Reject


def outcome(items: list[RawRecord | Reject]) -> list[str]:
    """`name` of a record, `!reason` of a reject."""
    return [f"!{item.reason}" if isinstance(item, Reject) else item.uri.rsplit("/", 1)[1] for item in items]


def members(*records: bytes) -> bytes:
    return b"".join(gzip.compress(record) for record in records)


def noise(size: int) -> bytes:
    return bytes(random.Random(0).choices(b"abcdefghij klmnop", k=size))


def test_a_record_keeps_its_facts(read_file: Any, warc_record: Any) -> None:
    body = "<p>schön</p>".encode("latin-1")
    record = warc_record("a", body, mime="text/html; charset=iso-8859-1")
    (item,) = read_file("warc", "x.warc.gz", members(record), licence="CC0-1.0")
    assert item.uri == "https://example.org/a"
    assert item.content == body
    assert (item.mime, item.charset, item.licence) == ("text/html", "iso-8859-1", "CC0-1.0")
    assert item.captured_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert item.where == "record 1"


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9])
def test_truncated_gzip_keeps_what_came_before(read_file: Any, warc_record: Any, cut: float) -> None:
    whole = members(warc_record("0"), warc_record("1"))
    last = members(warc_record("2", noise(100_000)))
    items = read_file("warc", "x.warc.gz", whole + last[: int(len(last) * cut)])
    assert outcome(items) == ["0", "1", "!truncated_gzip"]


def test_corrupt_member_costs_itself(read_file: Any, warc_record: Any) -> None:
    parts = [members(warc_record(str(i), noise(60_000))) for i in range(3)]
    middle = bytearray(parts[1])
    middle[2000:2100] = b"\xff" * 100
    assert outcome(read_file("warc", "x.warc.gz", parts[0] + bytes(middle) + parts[2])) == ["0", "!broken_gzip", "2"]


def test_a_length_that_is_too_long_swallows_no_other_member(read_file: Any, warc_record: Any) -> None:
    data = members(warc_record("0"), warc_record("1", length=10_000), warc_record("2"))
    assert outcome(read_file("warc", "x.warc.gz", data)) == ["0", "!broken_record", "2"]


def test_a_length_that_is_too_short_is_found_out(read_file: Any, warc_record: Any) -> None:
    data = warc_record("0") + warc_record("1", noise(50_000), length=1000) + warc_record("2")
    found = outcome(read_file("warc", "x.warc", data))
    assert found[0] == "0"
    assert found[-1] == "2"
    assert "!broken_record" in found


def test_what_is_no_page_is_told_apart(read_file: Any, warc_record: Any) -> None:
    data = members(
        warc_record("info", kind="warcinfo"),
        warc_record("ask", kind="request"),
        warc_record("about", kind="metadata"),
        warc_record("gone", status=404),
        warc_record("image", mime="image/png"),
        warc_record("plain", b"just text", mime="text/plain"),
        warc_record("part", kind="continuation"),
    )
    items = read_file("warc", "x.warc.gz", data)
    own = ["!not_page"] * 3
    assert outcome(items) == [*own, "!http_status", "!not_html", "plain", "!segmented_record"]
    assert [item.detail for item in items[:3]] == ["WARC-Type warcinfo", "WARC-Type request", "WARC-Type metadata"]
    assert items[5].content == "just text"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"name": "film", "mime": "video/mp4", "body": b"x" * 2_000_000}, "not_html"),  # and not too large
        ({"name": "moved", "status": 301, "body": b"x" * 2_000_000}, "http_status"),
        ({"name": "unchanged", "status": 304, "body": b""}, "http_status"),
        ({"name": "again", "kind": "revisit", "body": b""}, "revisit"),
        ({"name": "robots.txt", "mime": "text/plain"}, None),  # of a folder, which means nothing
        ({"name": "pdf", "body": b"%PDF-1.7 ..."}, "not_html"),  # declared as HTML
        ({"name": "image", "body": b"\x89PNG\r\n\x1a\n..", "mime": "text/plain"}, "not_html"),
        ({"name": "feed", "body": b"<?xml version='1.0'?><rss><item/></rss>", "mime": "application/xml"}, "not_html"),
        ({"name": "xhtml", "body": b"<?xml version='1.0'?><html xmlns='x'><p>y</p></html>", "mime": "text/xml"}, None),
        ({"name": "page", "body": b"\n <!DOCTYPE html><p>x", "mime": ""}, None),
        ({"name": "noise", "body": b"\1\2\3", "mime": ""}, "not_html"),
        ({"name": "zip", "body": b"PK\3\4...", "mime": "*/*"}, "not_html"),
        ({"name": "css", "mime": "text/css"}, "not_html"),
        ({"name": "empty", "body": b" \n"}, "empty"),
    ],
)
def test_what_is_no_page_is_an_exclusion(read_file: Any, warc_record: Any, facts: Any, reason: str | None) -> None:
    folder = "a/" if reason is None else ""
    record = warc_record(folder + facts.pop("name"), **facts)
    (item,) = read_file("warc", "x.warc.gz", members(record))
    found = item.reason if isinstance(item, Reject) else None
    assert found == reason
    assert found is None or found in EXCLUSIONS


def test_records_of_the_crawler_are_no_pages(read_file: Any, warc_record: Any) -> None:
    page = warc_record("page")
    own = [page.replace(b"https://example.org/page", address) for address in OWN_RECORDS]
    found = [item.reason for item in read_file("warc", "x.warc", b"".join(own))]
    assert found == ["robots_txt", "robots_txt", "not_page", "not_page"]


OWN_RECORDS = (
    b"https://example.org/robots.txt",
    b"HTTP://example.org:80/ROBOTS.TXT?x",
    b"dns:example.org",
    b"metadata://gnu.org/software/wget/warc/wget.log",
)


def test_an_answer_that_is_no_http_is_damage(read_file: Any, warc_record: Any) -> None:
    (item,) = read_file("warc", "x.warc", warc_record("a").replace(b"HTTP/1.1 200 X", b"HTTP/1.1 abc X"))
    assert (item.reason, item.reason in EXCLUSIONS) == ("broken_record", False)


def test_undeclared_text_is_text(read_file: Any, warc_record: Any) -> None:
    (item,) = read_file("warc", "x.warc", warc_record("a", "schön".encode(), mime=""))
    assert (item.content, item.mime) == ("schön", "text/plain")
    record = warc_record("a", b"{}", mime="").replace(
        b"WARC-Date", b"WARC-Identified-Payload-Type: text/json\r\nWARC-Date"
    )
    assert outcome(read_file("warc", "x.warc", record)) == ["!not_html"]


@pytest.mark.parametrize(
    ("body", "header", "mime", "expected"),
    [
        ("schön".encode()[:4], b"", "text/plain", "sch"),
        (gzip.compress(noise(9000), mtime=0)[:-30], b"Content-Encoding: gzip\r\n", "text/html", noise(9000)[:8000]),
        (b"ff\r\n<p>so far", b"Transfer-Encoding: chunked\r\n", "text/html", b"<p>so far"),
    ],
)
def test_what_the_archiver_has_cut_is_kept_and_marked(
    read_file: Any, warc_record: Any, body: bytes, header: bytes, mime: str, expected: str | bytes
) -> None:
    record = warc_record("a", body, headers=header, mime=mime)
    (item,) = read_file("warc", "x.warc", record.replace(b"WARC-Date", b"WARC-Truncated: length\r\nWARC-Date"))
    assert item.content[: len(expected)] == expected
    assert item.extra == {"truncated": "length"}
    whole = outcome(read_file("warc", "x.warc", record))
    assert whole[0].startswith("!") or (mime, whole) == ("text/plain", ["a"])


WET = "\r\n".join(
    (
        "WARC/1.0",
        "WARC-Type: {kind}",
        "WARC-Target-URI: https://e.org/",
        "Content-Type: {mime}",
        "Content-Length: {size}",
        "",
        "",
    )
)


def test_wet_and_wat(read_file: Any) -> None:
    """Common Crawl's extracted text is read; of its metadata there is nothing to read."""
    body = "Ein schöner Text.".encode()
    wet = WET.format(kind="conversion", mime="text/plain", size=len(body)).encode() + body + b"\r\n\r\n"
    (item,) = read_file("warc", "x.warc.wet.gz", members(wet))
    assert (item.content, item.mime, item.uri) == ("Ein schöner Text.", "text/plain", "https://e.org/")
    wat = WET.format(kind="metadata", mime="application/json", size=2).encode() + b"{}\r\n\r\n"
    assert outcome(read_file("warc", "x.warc.wat.gz", members(wat, wat))) == ["!not_page", "!not_page"]


def test_content_encoding_and_its_bomb(read_file: Any, warc_record: Any) -> None:
    header = b"Content-Encoding: gzip\r\n"
    data = members(
        warc_record("fine", gzip.compress(b"<p>hi</p>"), headers=header),
        warc_record("bomb", gzip.compress(b"\0" * 5_000_000), headers=header),
        warc_record("chunks", b"3\r\n<p>\r\n2\r\nhi\r\n0\r\n\r\n", headers=b"Transfer-Encoding: chunked\r\n"),
    )
    items = read_file("warc", "x.warc.gz", data)
    assert outcome(items) == ["fine", "!too_large", "chunks"]
    assert (items[0].content, items[2].content) == (b"<p>hi</p>", b"<p>hi")


def test_codings_are_undone_in_the_order_that_undoes_them(read_file: Any, warc_record: Any) -> None:
    page = b"<p>hi</p>"
    packed = zlib.compress(gzip.compress(page))  # first gzip, then deflate
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed)
    headers = b"Content-Encoding: gzip, deflate\r\nTransfer-Encoding: chunked\r\n"
    (item,) = read_file("warc", "x.warc", warc_record("a", chunks, headers=headers))
    assert item.content == page


@pytest.mark.parametrize(
    "header", [b"Content-Encoding: gzip", b"Content-Encoding: zstd", b"Transfer-Encoding: chunked"]
)
def test_what_the_archiver_has_decoded_already_is_left_alone(read_file: Any, warc_record: Any, header: bytes) -> None:
    (item,) = read_file("warc", "x.warc", warc_record("a", b"<p>hi</p>", headers=header + b"\r\n"))
    assert item.content == b"<p>hi</p>"


@pytest.mark.parametrize("coding", ["Transfer-Encoding: chunked", "Content-Encoding: br", "Content-Encoding: deflate"])
@pytest.mark.parametrize(
    "text",
    [
        "1984\r\n" + "A novel.\r\n" * 900,  # long enough for a chunk of that size, which no line end follows
        "1984\r\nA short novel.\r\n",
        "0\r\nThe fool: a card of the tarot.\r\n",
        "0\r\nTitle: a card\r\n\r\n",
        "1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n",
        "5\r\nhello\r\n0\r\nworld\r\n",
        "\r\n\r\nbeef\r\nis meat",
        "naïve " * 40,
    ],
)
def test_a_text_that_begins_like_a_coding_is_taken_as_it_stands(
    read_file: Any, warc_record: Any, coding: str, text: str
) -> None:
    record = warc_record("a", text.encode(), mime="text/plain; charset=utf-8", headers=coding.encode() + b"\r\n")
    (item,) = read_file("warc", "x.warc", record)
    assert item.content == text


@pytest.mark.parametrize("blank", [b"\r\n", b"\n", b"\r\n\r\n"])
@pytest.mark.parametrize(
    ("body", "header"),
    [
        (b"3\r\n<p>\r\n6\r\nhi</p>\r\n0\r\n\r\n", b"Transfer-Encoding: chunked"),
        (gzip.compress(b"<p>hi</p>", mtime=0), b"Content-Encoding: gzip"),
        (zlib.compress(b"<p>hi</p>"), b"Content-Encoding: deflate"),
        (bytes(pa.compress(b"<p>hi</p>", codec="brotli", asbytes=True)), b"Content-Encoding: br"),
        (bytes(pa.compress(b"<p>hi</p>", codec="zstd", asbytes=True)), b"Content-Encoding: zstd"),
        (
            b"%x;x=y\r\n%s\r\n0\r\nA: b\r\n\r\n" % (len(PACKED := gzip.compress(b"<p>hi</p>", mtime=0)), PACKED),
            b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked",
        ),
    ],
)
def test_a_blank_line_before_an_encoded_body_is_skipped(
    read_file: Any, warc_record: Any, blank: bytes, body: bytes, header: bytes
) -> None:
    (item,) = read_file("warc", "x.warc", warc_record("a", blank + body, headers=header + b"\r\n"))
    assert item.content == HI


@pytest.mark.parametrize("line", [b"\r\n", b"\n"])
@pytest.mark.parametrize("version", ["WARC/0.17", "WARC/0.18", "WARC/1.0", "WARC/1.1"])
@pytest.mark.parametrize("pack", ["members", "one member", "plain"])
def test_every_version_is_read_past_damage(
    read_file: Any, warc_record: Any, version: str, line: bytes, pack: str
) -> None:
    """One reject for a record without a length, for bytes that do not form a record, and for a truncated header."""
    good = [warc_record(str(i), noise(90_000), version=version, line=line) for i in range(4)]
    unsized = good[1].replace(b"Content-Length: ", b"Content-Length: x")
    records = [good[0], unsized, good[2], b"garbage\r\n" * 50, good[3], good[0][:40]]
    data = members(*records) if pack == "members" else b"".join(records)
    data = gzip.compress(data) if pack == "one member" else data
    found = outcome(read_file("warc", "x.warc" if pack == "plain" else "x.warc.gz", data))
    assert found == ["0", "!broken_record", "2", "!broken_record", "3", "!broken_record"]


@pytest.mark.parametrize("line", [b"\r\n", b"\n"])
def test_a_record_that_is_cut_anywhere_is_damage(read_file: Any, warc_record: Any, line: bytes) -> None:
    """Cuts in its header, that of HTTP (where half a status or media type is not a reason), and its body."""
    record = warc_record("0", line=line)
    whole = len(record) - 2 * len(line)
    for length in range(1, whole):
        assert outcome(read_file("warc", "x.warc", record + record[:length])) == ["0", "!broken_record"], length


def test_headers_of_http_with_bare_line_feeds(read_file: Any, warc_record: Any) -> None:
    head = b" X\r\nContent-Type: text/html\r\n\r\n"
    record = warc_record("a", HI).replace(head, head.replace(b"\r\n", b"\n") + b"\n\n\n")
    (item,) = read_file("warc", "x.warc", record)
    assert item.content == b"\n\n\n" + HI


def bare_deflate(data: bytes) -> bytes:
    squeeze = zlib.compressobj(wbits=-15)
    return squeeze.compress(data) + squeeze.flush()


HI = b"<p>hi</p>"


@pytest.mark.parametrize(
    ("body", "header"),
    [
        (bare_deflate(HI), b"Content-Encoding: deflate"),  # as many servers send it, without the frame of zlib
        (HI, b"Content-Encoding: deflate"),
        (HI, b"Content-Encoding: br"),
        (HI, b"Content-Encoding: UTF-8"),
        (gzip.compress(HI, mtime=0) + b"\0\0 advertisement", b"Content-Encoding: gzip"),
        (gzip.compress(HI[:4], mtime=0) + gzip.compress(HI[4:], mtime=0), b"Content-Encoding: X-GZIP"),
        (b"9\n<p>hi</p>\n0\n\n", b"Transfer-Encoding: chunked"),
        (b"4;a=b\r\n<p>h\r\n5 ; c\r\ni</p>\r\n0\r\nETag: x\r\n\r\n", b"Transfer-Encoding: chunked"),
        (b"9\r\n<p>hi</p>\r\n", b"Transfer-Encoding: chunked"),
        (HI, b"X-Joined: 1\r\nContent-Type: text/html, text/html"),
    ],
)
def test_bodies_as_servers_send_them(read_file: Any, warc_record: Any, body: bytes, header: bytes) -> None:
    (item,) = read_file("warc", "x.warc", warc_record("a", body, headers=header + b"\r\n"))
    assert (item.content, item.mime) == (HI, "text/html")


@pytest.mark.parametrize(
    ("mime", "body", "expected"),
    [
        ('text/plain; charset="ISO-8859-1"', b"sch\xf6n", "schön"),
        ("text/plain; Charset = 'windows-1251'", "да".encode("cp1251"), "да"),
        ("text/plain; charset=no-such", "schön".encode(), "schön"),
        ("text/plain; charset=punycode", b"a-b", "a-b"),  # a codec of Python, whose time grows by the square
        ("text/plain; charset=undefined", b"hi", "hi"),
        ("text/plain", b"\xef\xbb\xbfhi", "hi"),
        ("text/plain; charset=utf-16", "hi".encode("utf-16-be"), "栀椀"),
        ("text/plain; charset=utf-8", b"\xfe\xff" + "hi".encode("utf-16-be"), "hi"),
    ],
)
def test_character_sets_of_plain_text(read_file: Any, warc_record: Any, mime: str, body: bytes, expected: str) -> None:
    (item,) = read_file("warc", "x.warc", warc_record("a", body, mime=mime))
    assert item.content == expected


def test_a_resource_says_its_charset_in_the_record(read_file: Any) -> None:
    head = b"WARC/1.0\r\nWARC-Type: resource\r\nWARC-Target-URI: https://e.org/\r\nContent-Type: Text/HTML;charset=Big5"
    (item,) = read_file("warc", "x.warc", head + b"\r\nContent-Length: 9\r\n\r\n<p>hi</p>\r\n\r\n")
    assert (item.content, item.mime, item.charset) == (HI, "text/html", "big5")


def test_zeros_between_members_are_padding(read_file: Any, warc_record: Any) -> None:
    one, two = (members(warc_record(name)) for name in ("0", "1"))
    assert outcome(read_file("warc", "x.warc.gz", one + bytes(512) + two + bytes(512))) == ["0", "1"]


@pytest.mark.parametrize(
    ("body", "header", "reason"),
    [
        (gzip.compress(noise(9000))[:-30], b"Content-Encoding: gzip", "truncated_gzip"),
        (b"\x1f\x8bnonsense", b"Content-Encoding: gzip", "broken_gzip"),
        (b"ffffff\r\n<p>far less than that", b"Transfer-Encoding: chunked", "broken_record"),
        (b"ff\r\n\x1f\x8b\x08", b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked", "broken_record"),
        (b"4\r\nthis\r\nff\r\nis cut", b"Transfer-Encoding: chunked", "broken_record"),
        (b"3\r\n<p>\r\nno size\r\n", b"Transfer-Encoding: chunked", "broken_record"),
        (b"non\x01sense", b"Content-Encoding: br", "broken_record"),
        (b"non\x01sense", b"Content-Encoding: deflate", "broken_record"),
        (b"\x1f\x9d\x90\x01\x02", b"Content-Encoding: compress", "broken_record"),
    ],
)
def test_a_body_that_cannot_be_decoded_is_a_reject(
    read_file: Any, warc_record: Any, body: bytes, header: bytes, reason: str
) -> None:
    data = members(warc_record("0"), warc_record("1", body, headers=header + b"\r\n"), warc_record("2"))
    assert outcome(read_file("warc", "x.warc.gz", data)) == ["0", f"!{reason}", "2"]


def test_damage_is_not_laid_at_the_door_of_the_record_before(read_file: Any, warc_record: Any) -> None:
    broken = bytearray(members(warc_record("1", noise(5000))))
    broken[40] ^= 0x55
    items = read_file("warc", "x.warc.gz", members(warc_record("0")) + bytes(broken))
    assert [item.uri for item in items] == ["https://example.org/0", "x.warc.gz"]


def test_a_bomb_is_inflated_in_bounded_memory(read_file: Any, warc_record: Any) -> None:
    data = gzip.compress(warc_record("bomb", b"\0" * 80_000_000), compresslevel=1) + members(warc_record("1"))
    tracemalloc.start()
    items = read_file("warc", "x.warc.gz", data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outcome(items) == ["!too_large", "1"]
    assert peak < 5_000_000


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("x.warc", b"", ["!empty"]),
        ("x.warc.gz", b"", ["!empty"]),
        ("x.warc.gz", b"this is not gzip", ["!broken_gzip"]),
        ("x.warc", b"this is not WARC\r\n\r\n", ["!broken_record"]),
        ("x.warc.gz", gzip.compress(b"", mtime=0), ["!empty"]),
    ],
)
def test_files_that_are_no_warc(read_file: Any, name: str, data: bytes, expected: list[str]) -> None:
    assert outcome(read_file("warc", name, data)) == expected


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        ("20200101000000", "2020-01-01"),
        ("2020-01-01", "2020-01-01"),
        ("2020", "2020-01-01"),
        ("2009-03-65T08:43:19-0800", None),
        ("", None),
    ],
)
def test_the_time_of_a_capture_is_read_or_counted(
    read_file: Any, warc_record: Any, stated: str, found: str | None
) -> None:
    record = re.sub(rb"WARC-Date: [^\r\n]*", f"WARC-Date: {stated}".encode(), warc_record("a", HI))
    (item,) = read_file("warc", "x.warc", record)
    assert (item.captured_at.date().isoformat() if item.captured_at else None) == found
    assert item.unread_date == (found is None)

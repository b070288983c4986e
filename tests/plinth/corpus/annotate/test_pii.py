import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.corpus.annotate.pii import KINDS, Params, annotate, luhn, spans
from plinth.text import hints


def found(text: str) -> list[tuple[str, str]]:
    return [(span["reason"], text[span["start_cp"] : span["end_cp"]]) for span in spans(text)]


def whole(texts: list[str], **params: Any) -> list[dict[str, Any]]:
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    return list(annotate(batch, Params(**params)).to_pylist())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mail jane.doe+x@tidewater.co.uk.", [("email", "jane.doe+x@tidewater.co.uk")]),
        ("<a@b.io>, (c_d@e-f.org)", [("email", "a@b.io"), ("email", "c_d@e-f.org")]),
        ("über😀 jane@tidewater.net", [("email", "jane@tidewater.net")]),
        ("jane@example.com, x@sub.example.org, y@localhost, z@a.test, q@b.invalid", []),
        ("@decorator user@host a@b @c.com a..b@c.com x.@c.com", []),
        ("a@b@c.com", []),
        ("git@github.com:a/b.git, logo@2x.png, https://img.io/badge/x@y.svg?z", []),
        ("at 93.184.216.34 and 203.0.113.9 and 192.168.1.1 and 127.0.0.1", [("ip", "93.184.216.34")]),
        ("93.184.216.34:53, (151.101.1.69)", [("ip", "93.184.216.34"), ("ip", "151.101.1.69")]),
        (
            "version 93.1.2.3, v93.1.2.3, Release: 93.1.2.3, >= 93.1.2.3, section 93.1.2.3, '93.1.2.3'",
            [("ip", "93.1.2.3")],
        ),
        ("dpkg 1.4.1.19, 2.5.29.28, see 5.2.3.6", []),  # four small numbers
        ("93.2.3.4.5 and 93.8.8.888 and 093.8.8.8 and x93.8.8.8 and 93.8.8.8-rc1", []),
        ("255.255.255.0 and 224.0.1.99 and ffff:ffff:ffff::, 4000::/3, aa::ff", []),  # masks, multicast, unassigned
        ("2606:4700::1111 and ::1 and fe80::1 and 2001:db8::1", [("ip", "2606:4700::1111")]),
        ("x[::2], std::size, a::b, 12:30:45, 00:1b:44:11:3a:b7", []),
        ("2001:4860:4860:0:0:0:0:8888", [("ip", "2001:4860:4860:0:0:0:0:8888")]),
        ("card 4111 1111 1111 1111.", [("card", "4111 1111 1111 1111")]),
        ("4111-1111-1111-1111 5500000000000004", [("card", "4111-1111-1111-1111"), ("card", "5500000000000004")]),
        ("3782 822463 10005", [("card", "3782 822463 10005")]),
        ("4111 1111 1111 1112", []),  # check digit
        ("9111111111111111 4111 1111-1111 1111", []),  # no issuer; mixed separators
        ("0000000000000000 1234567812345670", []),
        ("4111111111111111.5 x4111111111111111 -4111111111111111", []),
    ],
)
def test_what_is_found(text: str, expected: list[tuple[str, str]]) -> None:
    assert found(text) == expected


def test_offsets_are_code_points() -> None:
    row = whole(["😀é jane@tidewater.net and 93.8.8.8"])[0]
    assert row == {
        "email": 1,
        "ip": 1,
        "card": 0,
        "spans": [
            {"start_cp": 3, "end_cp": 21, "replacement": "<EMAIL>", "reason": "email"},
            {"start_cp": 26, "end_cp": 34, "replacement": "<IP>", "reason": "ip"},
        ],
    }


def test_only_the_kinds_asked_for() -> None:
    row = whole(["jane@tidewater.net 93.8.8.8 4111111111111111"], kinds=("card",))[0]
    assert (row["email"], row["ip"], row["card"]) == (0, 0, 1)
    assert [span["reason"] for span in row["spans"]] == ["card"]


@given(st.text(alphabet="0123456789", min_size=1, max_size=20))
def test_luhn_has_one_check_digit(digits: str) -> None:
    assert sum(luhn(digits + str(last)) for last in range(10)) == 1


@given(st.text(alphabet="0123456789", min_size=2, max_size=19), st.data())
def test_luhn_sees_every_wrong_digit(digits: str, data: st.DataObject) -> None:
    valid = next(digits + str(last) for last in range(10) if luhn(digits + str(last)))
    at = data.draw(st.integers(0, len(valid) - 1))
    other = data.draw(st.sampled_from([digit for digit in "0123456789" if digit != valid[at]]))
    assert not luhn(valid[:at] + other + valid[at + 1 :])


PIECES = [
    "jane@tidewater.net", "93.8.8.8", "2606:4700::1111", "4111 1111 1111 1111", "4111111111111111", "3782 822463 10005",
    "@", ".", "..", "::", ":", "-", " ", "\n", "1", "12", "a", "f", "é", "😀", "x@", "%", "v", "(", "2001:",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=25).map("".join)


@settings(max_examples=500, deadline=None)
@given(st.lists(TEXTS, max_size=4))
def test_hints_never_miss_what_the_patterns_find(texts: list[str]) -> None:
    assert [row["spans"] for row in whole(texts)] == [spans(text) for text in texts]


@given(TEXTS)
def test_spans_are_sorted_disjoint_and_inside(text: str) -> None:
    at = 0
    for span in spans(text):
        assert at <= span["start_cp"] < span["end_cp"] <= len(text)
        assert span["reason"] in KINDS
        at = span["end_cp"]


def test_hints_tell_kinds_apart() -> None:
    texts = ["a@b.io", "8.8.8.8", "2606:4700::1", "4111 1111 1111 1", "plain x[::2] 1.2.3 12:30 a @b 1--2"]
    expected = [hints.EMAIL, hints.IPV4, hints.IPV6, hints.NUMBER, 0]
    assert hints.hints(pa.array(texts, pa.large_string())).tolist() == expected
    assert hints.hints(pa.array(texts, pa.large_string())[1:3]).tolist() == expected[1:3]


@pytest.mark.parametrize(
    "text",
    [
        "a" * 300_000 + "@",
        "a." * 150_000 + "@b.net",
        "a@" + "b." * 150_000,
        "a@" * 150_000 + "b.net",
        "a@" + "b-" * 150_000,
        "1." * 150_000,
        "1" * 300_000,
        "4111 " * 60_000,
        ":" * 300_000,
        "a:" * 150_000,
        "%" * 300_000 + "@b.net",
    ],
    ids=range(11),
)
def test_no_text_makes_a_pattern_slow(text: str) -> None:
    started = time.process_time()
    spans(text)
    assert time.process_time() - started < 2

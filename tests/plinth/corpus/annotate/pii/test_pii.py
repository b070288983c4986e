from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.corpus.annotate.pii import national, network, numbers
from plinth.corpus.annotate.pii import numbers as pii_hits
from plinth.corpus.annotate.pii.numbers import PiiHit
from plinth.corpus.annotate.pii.pii import ALL_KINDS, KINDS, PiiParams, annotate, disjoint
from plinth.errors import RecipeError


def whole(texts: list[str], **params: Any) -> list[dict[str, Any]]:
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    return list(annotate(batch, PiiParams(**({"kinds": KINDS} | params))).to_pylist())


def found(text: str, **params: Any) -> list[tuple[str, str]]:
    spans = whole([text], **params)[0]["spans"]
    return [(span["reason"], text[span["start_cp"] : span["end_cp"]]) for span in spans]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mail jane.doe+x@tidewater.co.uk.", [("email", "jane.doe+x@tidewater.co.uk")]),
        ("<a@b.io>, (c_d@e-f.org)", [("email", "a@b.io"), ("email", "c_d@e-f.org")]),
        ("über😀 jane@tidewater.net", [("email", "jane@tidewater.net")]),
        ("jane@example.com, x@sub.example.org, y@localhost, z@a.test, q@b.invalid", []),
        ("@decorator user@host a@b @c.com a..b@c.com x.@c.com a@b@c.com", []),
        ("git@github.com:a/b.git, logo@2x.png, https://img.io/badge/x@y.svg?z", []),
        ("a" * 64 + "@b.io", [("email", "a" * 64 + "@b.io")]),
        ("a" * 65 + "@b.io", []),
        ("postgres://ann:k3tchup!@db.tidewater.net/x", [("key/url_password", "k3tchup!")]),
        ("postgres://user:password@db.tidewater.net/x", []),
        ("at 93.184.216.34 and 203.0.113.9", [("ip", "93.184.216.34"), ("private_ip", "203.0.113.9")]),
        ("192.168.1.1, 127.0.0.1", [("private_ip", "192.168.1.1"), ("private_ip", "127.0.0.1")]),
        ("93.184.216.34:53, (151.101.1.69)", [("ip", "93.184.216.34"), ("ip", "151.101.1.69")]),
        ("version 93.1.2.3, v93.1.2.3, >= 93.1.2.3, section 93.1.2.3, '93.1.2.3'", [("ip", "93.1.2.3")]),
        ("dpkg 1.4.1.19, 2.5.29.28, see 5.2.3.6", []),  # four small numbers
        ("93.2.3.4.5 and 93.8.8.888 and 093.8.8.8 and x93.8.8.8 and 93.8.8.8-rc1", []),
        ("2606:4700::1111 and fe80::1", [("ip", "2606:4700::1111"), ("private_ip", "fe80::1")]),
        ("x[::2], std::size, a::b, 12:30:45, 00:1b:44:11:3a:b7", []),
        ("2001:4860:4860:0:0:0:0:8888", [("ip", "2001:4860:4860:0:0:0:0:8888")]),
        ("card 4111 1111 1111 1111.", [("card", "4111 1111 1111 1111")]),
        ("4111-1111-1111-1111 5500000000000004", [("card", "4111-1111-1111-1111")]),
        ("visa 5500000000000004", [("card", "5500000000000004")]),
        ("3782 822463 10005", [("card", "3782 822463 10005")]),
        ("4111 1111 1111 1112", []),  # check digit
        ("9111 1111 1111 1111 4111 1111-1111 1111", []),  # no issuer; mixed gaps
        ("card 4111111111111111.5 x4111111111111111 -4111111111111111", []),
        ("(415) 867-5309, 212-867-5309", [("phone", "(415) 867-5309"), ("phone", "212-867-5309")]),
        ("1-800-867-5309", [("phone", "1-800-867-5309")]),
        ("415-555-0123, 411-867-5309, 115-867-5309", []),  # fiction, service codes
        ("+49 30 901820, +44 (0) 20 7946 0958", [("phone", "+49 30 901820"), ("phone", "+44 (0) 20 7946 0958")]),
        ("+20240115 and x+4930901820 and +999 123 45678", []),
        ("Tel. 030 901820-12 Uhr", [("phone", "030 901820-12")]),
        ("030 901820-12", []),
        ("phone 2024-01-15, tel 1995-2001", []),
        ("Phone support: order 12345678", []),
        ("电话：13812345678", [("phone", "13812345678")]),
        ("DE89 3704 0044 0532 0130 00 ist", [("iban", "DE89 3704 0044 0532 0130 00")]),
        ("GB82WEST12345698765432", [("iban", "GB82WEST12345698765432")]),
        ("GB82WEST12345698765433 XX82WEST12345698765432 DE89370400440532013", []),
        ("aws AKIAQ5RST2UVW3XYZ4AB", [("key/aws_access_key", "AKIAQ5RST2UVW3XYZ4AB")]),
        ("AKIAIOSFODNN7EXAMPLE", []),
        ("api_key = 'k8Fz2Qm9Lr4Xt7Vb1Nw6'", [("key/assigned", "k8Fz2Qm9Lr4Xt7Vb1Nw6")]),
        ("TOKEN=k8Fz2Qm9Lr4Xt7Vb1Nw6\n", [("key/assigned", "k8Fz2Qm9Lr4Xt7Vb1Nw6")]),
        ("token = make_the_token_of_session_12(k8Fz2Qm9Lr4Xt7Vb1Nw6)", []),
        ("x = 'k8Fz2Qm9Lr4Xt7Vb1Nw6', token_id = 'k8Fz2Qm9Lr4Xt7Vb1Nw6'", []),
        ("Müller@firma.de, jörg.müller@firma.de", [("email", "Müller@firma.de"), ("email", "jörg.müller@firma.de")]),
        ("Mu\u0308ller@firma.de иван@пример.рф", [("email", "Mu\u0308ller@firma.de"), ("email", "иван@пример.рф")]),
        ("'o'hara@firma.ie' f'x@b.io'", [("email", "o'hara@firma.ie"), ("email", "x@b.io")]),
        ("post@müller.de请联系", [("email", "post@müller.de")]),
        ("请联系zhang@firma.cn。 用户@例子.广告吗", [("email", "zhang@firma.cn"), ("email", "用户@例子.广告")]),
        ("请大家在今天以前联系@firma.cn “ж@x.рф” @例子.广告", [("email", "ж@x.рф")]),
        ("ж" * 32 + "@b.io", [("email", "ж" * 32 + "@b.io")]),
        ("ж" * 33 + "@b.io", []),  # 66 octets
        ("030 / 12345678, 0711/123 45-67", [("phone", "030 / 12345678"), ("phone", "0711/123 45-67")]),
        ("(030) 12345678 (089)1234567", [("phone", "(030) 12345678"), ("phone", "(089)1234567")]),
        ("+49 30 12345678, +49 (0)30 / 123456", [("phone", "+49 30 12345678"), ("phone", "+49 (0)30 / 123456")]),
        ("Tel. 030 123456 / 030 654321", [("phone", "030 123456"), ("phone", "030 654321")]),
        ("St.-Nr. 021/815/08150, 012/2019, /030/12345678, 2030/12345678, f(030) 12345678", []),
        ("Rechnung 0123/456789, Az.: 0123/456789, (01) 09501101530003, (030) 1234", []),
        ("sk-k8Fz2Qm9Lr4Xt7Vb1Nw6", [("key/model_api_key", "sk-k8Fz2Qm9Lr4Xt7Vb1Nw6")]),
        ("use sk-ant-api03-k8Fz2Qm9Lr4Xt7Vb-Nw6_q.", [("key/model_api_key", "sk-ant-api03-k8Fz2Qm9Lr4Xt7Vb-Nw6_q")]),
        ("(sk-proj-k8Fz2Qm9Lr4Xt7Vb1Nw6)", [("key/model_api_key", "sk-proj-k8Fz2Qm9Lr4Xt7Vb1Nw6")]),
        ("sk-0123456789abcdef8a7b6c5d4e3f2a1b", [("key/model_api_key", "sk-0123456789abcdef8a7b6c5d4e3f2a1b")]),
        ("sk-ant-your-key-here-8fj2k3l4 sk-toggleable__label-arrow-and-content-12 sk-estimator-doc-link", []),
        ("part no 123-45-6789, P/N: 123-45-6789, item #123-45-6789, serial number 123-45-6789", []),
        ("Model 123-45-6789; order no. 123-45-6789; invoice: 123-45-6789; ISBN 123-45-6789", []),
        ("phone 123-45-6789", [("phone", "123-45-6789")]),
        ("as part of the form, 123-45-6789", [("national/us_ssn", "123-45-6789")]),
        ("social security number: 123-45-6789", [("national/us_ssn", "123-45-6789")]),
        ("11010519491231002x 110105 19491231 002X", [("national/cn_resident_id", "11010519491231002x"),
                                                     ("national/cn_resident_id", "110105 19491231 002X")]),
        ("身份证号码为11010519491231002X。", [("national/cn_resident_id", "11010519491231002X")]),
        ("110105194912310021 110105194913310026 170105194912310020 110105189912310028 x11010519491231002X", []),
    ],
)  # fmt: skip
def test_what_is_found(text: str, expected: list[tuple[str, str]]) -> None:
    assert found(text) == expected


#: Numbers that the publishers of the rules, or their standards, print as examples; and the words that must stand near.
NATIONAL = {
    "us_ssn": ("", "123-45-6788"), "uk_nino": ("NINO ", "AB 12 34 56 C"), "fr_nir": ("NIR ", "255081416802538"),
    "br_cpf": ("CPF ", "52998224725"), "ch_ahv": ("", "756.9217.0769.85"), "de_steuer_id": ("IdNr ", "86 095 742 719"),
    "pl_pesel": ("PESEL ", "44051401359"), "be_niss": ("NISS ", "85.07.30-033.28"), "nl_bsn": ("BSN ", "111222333"),
    "se_personnummer": ("personnummer ", "811228-9874"), "in_aadhaar": ("Aadhaar ", "2345 6789 0124"),
    "ca_sin": ("SIN ", "130 692 544"), "pt_nif": ("NIF ", "123456789"), "au_tfn": ("TFN ", "123 456 782"),
    "es_dni": ("DNI ", "12345678Z"), "es_nie": ("NIE ", "X1234567L"), "fi_hetu": ("hetu ", "131052-308T"),
    "it_codice_fiscale": ("", "RSSMRA85T10A562S"), "cn_resident_id": ("", "11010519491231002X"),
}  # fmt: skip


@pytest.mark.parametrize("rule", NATIONAL)
def test_national_numbers_and_their_check_digits(rule: str) -> None:
    word, number = NATIONAL[rule]
    assert found(f"{word}{number}.") == [(f"national/{rule}", number)]
    assert not word or found(f"{number}.") == []
    # every other last digit (or letter) is wrong, where there is a check digit
    if rule not in ("us_ssn", "uk_nino"):
        others = "0123456789" if number[-1].isdigit() else "ABCDEFGHJKLMNPQRSTUVWXYZ"
        wrong = [f"{word}{number[:-1]}{last}." for last in others if last != number[-1]]
        assert all((f"national/{rule}", text[len(word) : -1]) not in found(text) for text in wrong)


def test_every_national_rule_has_a_known_number() -> None:
    assert {rule.name for rule in (*national.NUMBERS, *national.LETTERED)} == set(NATIONAL)


@pytest.mark.parametrize(
    "number", ["000-12-3456", "666-12-3456", "912-12-3456", "123-00-4567", "123-45-0000", "078-05-1120"]
)
def test_social_security_numbers_that_are_never_given(number: str) -> None:
    assert found(f"SSN {number}") == []


def test_keys_between_lines_and_in_three_parts() -> None:
    key = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----"
    assert found(f"x {key} y") == [("key/private_key", key)]
    assert found("-----BEGIN PRIVATE KEY-----\ncut") == [("key/private_key", "-----BEGIN PRIVATE KEY-----")]
    assert found("-----BEGIN CERTIFICATE-----\nMHcCAQ") == []
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ0aWRlIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9"
    assert found(f"t={token}") == [("key/jwt", token)]
    assert found(token.replace("eyJhbGci", "eyJoaGci")) == []  # a header without an algorithm


def test_counts_offsets_and_replacements() -> None:
    row = whole(["😀é jane@tidewater.net and 93.8.8.8"], replacements={"ip": "|||IP|||"})[0]
    assert {name: row[name] for name in ALL_KINDS if row[name]} == {"email": 1, "ip": 1}
    assert (row["total"], row["per_1000"]) == (2, pytest.approx(1000 * 2 / 34))
    assert row["spans"] == [
        {"start_cp": 3, "end_cp": 21, "replacement": "<EMAIL>", "reason": "email"},
        {"start_cp": 26, "end_cp": 34, "replacement": "|||IP|||", "reason": "ip"},
    ]


def test_only_the_kinds_asked_for() -> None:
    text = "jane@tidewater.net 93.8.8.8 10.0.0.1 4111 1111 1111 1111"
    assert [reason for reason, _ in found(text, kinds=("card",))] == ["card"]
    assert [reason for reason, _ in found(text, kinds=PiiParams().kinds)] == ["email", "ip", "card"]


def test_unknown_kinds_are_refused() -> None:
    from plinth.corpus.annotate.base import parameters

    with pytest.raises(RecipeError, match="replacements"):
        parameters("pii", {"replacements": {"e-mail": "x"}})


@given(st.text(alphabet="0123456789", min_size=2, max_size=19), st.data())
def test_check_digits_see_every_wrong_digit(digits: str, data: st.DataObject) -> None:
    for check in (pii_hits.luhn, pii_hits.verhoeff, pii_hits.mod_11_10):
        valid = [digits + str(last) for last in range(10) if check(digits + str(last))]
        assert len(valid) == 1
        at = data.draw(st.integers(0, len(digits)))
        other = data.draw(st.sampled_from([digit for digit in "0123456789" if digit != valid[0][at]]))
        assert not check(valid[0][:at] + other + valid[0][at + 1 :])


PIECES = [
    "jane@tidewater.net", "93.8.8.8", "2606:4700::1111", "4111 1111 1111 1111", "4111111111111111", "3782 822463 10005",
    "@", ".", "..", "::", ":", "-", " ", "\n", "1", "12", "a", "f", "é", "😀", "x@", "%", "v", "(", ")", "2001:", "+",
    "+49 30 901820", "212-867-5309", "(415) 867-5309", "123-45-6788", "DE89370400440532013000", "tel", "SSN", "card ",
    "AKIAQ5RST2UVW3XYZ4AB", "-----BEGIN PRIVATE KEY-----", "RSSMRA85T10A562S", "756.9217.0769.85", "order", "=", "'",
    "529.982.247-25", "11010519491231002X", "110105 19491231 002X", "030 / 12345678", "(030) ", " / ", "ü@ü.de",
    "рф", "用", "part no ", "IBAN ", "GB82 WEST 1234 5698 7654 32", "token=", "k8Fz2Qm9Lr4Xt7Vb1Nw6",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=25).map("".join)


def everywhere(text: str) -> list[PiiHit]:
    """Return the hits of the rules that need no words at every byte of a text, without the kernel."""
    raw = text.encode()
    hits = []
    for at in range(len(raw)):
        before, letters = raw[at - 1 : at] if at else b" ", raw[:at].rstrip(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        tries: list[PiiHit | None] = []
        if raw[at : at + 1] == b"@":
            tries.append(network.email(raw, at))
        if raw[at : at + 1].isdigit() and not before.isalnum() and before not in (b"_", b"-", b"$", b"%"):
            inside = raw[at - 2 : at - 1].isdigit() and before in (b".", b"/", b",", b":")
            tries += [] if inside else [network.dotted(raw, at), numbers.card(raw, at, 0), national.number(raw, at, 0)]
        if raw[at : at + 1].isdigit() and at - len(letters) in (2, 6) and before.isupper():
            first = raw[len(letters) - 1 : len(letters)] if letters else b" "
            if not (first.isalnum() or first in (b"_", b"-")):
                tries += [numbers.iban(raw, len(letters)), national.lettered(raw, len(letters), 0)]
        if raw.startswith(b"-----BEGIN", at) and not (before.isalnum() or before in (b"_", b"-")):
            tries.append(network.pem(raw, at))
        hits += [hit for hit in tries if hit]
    return hits


@settings(max_examples=400, deadline=None)
@given(TEXTS)
def test_the_kernel_misses_nothing_that_the_rules_accept(text: str) -> None:
    spans = [
        (len(text[: s["start_cp"]].encode()), len(text[: s["end_cp"]].encode())) for s in whole([text])[0]["spans"]
    ]
    for hit in everywhere(text):
        assert any(start < hit.end and hit.start < end for start, end in spans), hit


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, max_size=4))
def test_spans_are_sorted_disjoint_inside_and_of_their_own_text(texts: list[str]) -> None:
    rows = whole(texts)
    assert rows == [row for text in texts for row in whole([text])]
    for text, row in zip(texts, rows, strict=True):
        at = 0
        for span in row["spans"]:
            assert at <= span["start_cp"] < span["end_cp"] <= len(text)
            assert span["reason"].partition("/")[0] in KINDS
            at = span["end_cp"]
        assert row["total"] == len(row["spans"]) == sum(row[kind] for kind in ALL_KINDS)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.sampled_from("ab"))))
def test_of_overlapping_spans_the_earlier_then_the_longer_stays(pairs: list[tuple[int, int, str]]) -> None:
    spans = [(start, start + size, reason) for start, size, reason in pairs]
    chosen = disjoint(spans)
    assert all(one[1] <= other[0] for one, other in pairwise(chosen))
    for start, end, _ in spans:
        assert any(one[0] < end and start < one[1] and one[0] <= start for one in chosen)

"""One form of a host, whatever an address makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.text import domain, domains, host, host_name

BOOKS = "xn--bcher-kva.example"


@pytest.mark.parametrize(
    "uri",
    [
        "http://bücher.example/x",
        "http://b%C3%BCcher.example/x",
        "http://b%c3%bccher.example",
        "HTTP://BÜCHER.EXAMPLE./x",
        "https://XN--BCHER-KVA.example:8443/",
        "https://user:pass@word@bücher.example?q",
        "//bücher.example/x",
        "http://bu\u0308cher.example#f",  # two code points
        "http://bücher。example/",
        "http://ｂücher．ｅxample/",  # full width
        "http://b\xadü\u200bcher.example/",  # what is not seen
        " http://bücher.exa\tmple/ ",
        "http:\\\\bücher.example\\x",
        "http:/bücher.example/x",
        "https:///bücher.example",
        "s3://bücher.example/key",
        "bücher.example/x",
        "bücher.example:80/x",
        BOOKS + "./x",
    ],
)
def test_one_host_in_several_spellings(uri: str) -> None:
    assert host(uri) == BOOKS


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("http://127.0.0.1:80/", "127.0.0.1"),
        ("http://2130706433/", "127.0.0.1"),
        ("http://0x7f.1/", "127.0.0.1"),
        ("http://0177.0.0.01/", "127.0.0.1"),
        ("http://127.1", "127.0.0.1"),
        ("http://256.1.1.1/", "256.1.1.1"),
        ("http://1.2.3.08/", "1.2.3.08"),
        ("http://[2001:DB8:0:0::0001]:8080/x", "2001:db8::1"),
        ("http://user@[::1]/", "::1"),
        ("http://[oops/", ""),
        ("http://www.example.org/", "www.example.org"),
        ("http://straße.example/", "xn--strae-oqa.example"),
        ("http://localhost/", "localhost"),
        ("books/alice.txt", ""),
        ("a.jsonl#L12", ""),
        ("alice.txt", ""),
        ("casino.example", ""),
        ("folder.v1/readme", ""),
        ("1.2/x", ""),
        ("file:bucket/notes.txt", ""),
        ("urn:isbn:1", ""),
        ("mailto:a@example.org", ""),
        ("", ""),
    ],
)
def test_hosts_and_names_that_have_none(uri: str, found: str) -> None:
    assert host(uri) == found


def test_a_name_that_is_a_host_is_one_where_lists_are_looked_up() -> None:
    assert host("casino.example", bare=True) == "casino.example"
    assert host("a.jsonl#L12", bare=True) == ""


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("bücher.example", BOOKS),
        (" BÜCHER.example. ", BOOKS),
        ("www.Example.org", "example.org"),
        (".example.org", "example.org"),
        ("xn--bcher-kva.example", BOOKS),
        ("例え.テスト", "xn--r8jz45g.xn--zckzah"),
        ("0x7f.1", "127.0.0.1"),
        ("under_score.example", "under_score.example"),
    ],
)
def test_lines_of_a_list(line: str, name: str) -> None:
    assert domain(line) == name


@pytest.mark.parametrize("line", ["com", "", ".", "not a host", "a..b", "*.org", "https://example.org/", "-a.example"])
def test_a_line_that_is_no_host_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="host name"):
        domain(line)


def test_domains_are_the_host_and_those_above_it() -> None:
    assert domains("a.b.example.org") == ["a.b.example.org", "b.example.org", "example.org"]
    assert domains("127.0.0.1") == ["127.0.0.1"]
    assert domains("2001:db8::1") == ["2001:db8::1"]
    assert domains("localhost") == domains("") == []


@given(st.text(max_size=40))
def test_any_text_has_a_form_and_the_form_has_itself(text: str) -> None:
    once = host(f"https://{text}")
    assert host(f"https://[{once}]" if ":" in once else f"https://{once}") in (once, host_name(once))
    host(text, bare=True)

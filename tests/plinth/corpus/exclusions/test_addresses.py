"""Normal forms: what people write for one thing is one thing, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.corpus.exclusions import address, domain, domains_of, licences_of, normal
from plinth.errors import RequestError


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://WWW.Example.org:443/a%7Eb/%c3%a9/?q=a b#x", "http://example.org/a~b/é?q=a%20b"),
        ("https://bücher.example/ü", "https://xn--bcher-kva.example/%C3%BC"),
        ("https://ex%61mple.org", "example.org/"),
        ("http://user:secret@example.org/x", "example.org/x"),
        ("https://bücher。example/", "https://BÜCHER.example"),
        ("books/Alice in Wonderland.txt", "books/Alice%20in%20Wonderland.txt"),
    ],
)
def test_one_address_in_several_spellings(one: str, other: str) -> None:
    assert address(one) == address(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://example.org/a", "https://example.org/b"),
        ("https://example.org/a", "https://example.org/A"),
        ("https://example.org/a%2Fb", "https://example.org/a/b"),
        ("https://example.org/?a", "https://example.org/?b"),
        ("https://example.org:8080/", "https://example.org/"),
        ("https://strasse.de", "https://straße.de"),
    ],
)
def test_different_addresses_stay_different(one: str, other: str) -> None:
    assert address(one) != address(other)


@given(st.text(max_size=60))
def test_any_text_has_a_normal_form_and_the_form_has_itself(text: str) -> None:
    once = address(f"https://{text}")
    assert address(f"https://{once}") == address(f"https://{address(f'https://{once}')}")
    domains_of(f"https://{text}")
    licences_of(text)


def test_domains_are_those_of_the_host_and_above_it() -> None:
    assert domains_of("https://a.b.Example.org/x") == ["a.b.example.org", "b.example.org", "example.org"]
    assert domains_of("https://müller.example") == ["xn--mller-kva.example"]
    assert domains_of("books/alice.txt") == domains_of("https://[bad/") == []


@pytest.mark.parametrize("name", ["com", "", ".", "ex ample.org", "1.2.3.4", "a..b", "https://example.org/", "*.org"])
def test_a_domain_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="host name"):
        domain(name)
    with pytest.raises(RequestError, match="not valid for a takedown"):
        normal("domain", name)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("url", " "), ("licence", "MIT OR Apache-2.0"), ("licence", ""), ("document", "abc"), ("text", " \n…")],
)
def test_a_target_that_means_nothing_is_refused_with_what_would_do(kind: str, value: str) -> None:
    with pytest.raises(RequestError) as caught:
        normal(kind, value)  # type: ignore[arg-type]
    assert caught.value.expected

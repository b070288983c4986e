"""What a page, or the server's answer, says about its use: opt-outs and a licence, as they stand in `extra`.

    directives    of `robots` (`<meta>`, `X-Robots-Tag`) those that speak of use, and `tdm-reservation` where it is 1
                  (TDM Reservation Protocol, W3C community group), as words in order
    tdm_policy    address of the owner's policy on text and data mining
    rel_license   address of the licence that the page links to, where it links to one

A directive for one named crawler (`X-Robots-Tag: otherbot: noindex`) is not for others, and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

DIRECTIVES, TDM_POLICY, REL_LICENSE = "directives", "tdm_policy", "rel_license"
#: `none` is `noindex, nofollow` (Google's and Bing's documentation); `noai` and `noimageai` are DeviantArt's.
WORDS = {"noai": "noai", "noimageai": "noimageai", "noarchive": "noarchive", "noindex": "noindex", "none": "noindex"}
TDM = "tdm-reservation"
HEADERS = ("x-robots-tag", TDM, "tdm-policy", "link")
ADDRESS_CHARACTERS = 500
_FOR_ONE = re.compile(r"\s*(?!unavailable_after|max-)[\w-]+\s*:", re.I)
_LINK = re.compile(r"<([^<>]{1,500})>\s*;[^<>]{0,200}?\brel\s*=\s*\"?[^\"<>,;]{0,100}\blicense\b", re.I)
_CREATIVE_COMMONS = re.compile(
    r"https?://(?:www\.)?creativecommons\.org/(licenses|publicdomain)/([a-z-]{2,10})/(\d\.\d)(?:/([a-z]{2,3}))?(?:/|$)",
    re.I,
)


def directives(robots: Iterable[str], tdm: Iterable[str]) -> str:
    """Words of values of `robots` and `tdm-reservation`, in order of the alphabet."""
    given = (value for value in robots if not _FOR_ONE.match(value))
    found = {WORDS[word] for value in given for word in value.lower().replace(",", " ").split() if word in WORDS}
    if any(value.strip() == "1" for value in tdm):
        found.add(TDM)
    return " ".join(sorted(found))


def of_headers(headers: Any) -> dict[str, str]:
    """Signals in the headers of an HTTP answer (FastWARC's)."""
    given = [(name.lower(), value) for name, value in headers.items()]
    if not any(name in HEADERS for name, _ in given):
        return {}
    robots, tdm, policies, links = ([value for of, value in given if of == name] for name in HEADERS)
    found = {
        DIRECTIVES: directives(robots, tdm),
        TDM_POLICY: "".join(policies[:1]).strip()[:ADDRESS_CHARACTERS],
        REL_LICENSE: one_of(match[1] for line in links for match in _LINK.finditer(line)),
    }
    return {name: value for name, value in found.items() if value}


def one_of(addresses: Iterable[str]) -> str:
    """The address, where all are the same; a page that links to two licences says which part has which to people."""
    found = {address.strip() for address in addresses} - {""}
    return found.pop() if len(found) == 1 else ""


def joined(first: Mapping[str, Any], second: Mapping[str, str]) -> dict[str, Any]:
    """Metadata of an answer and of its page: directives of both hold, of other values the page's."""
    both = {*str(first.get(DIRECTIVES, "")).split(), *second.get(DIRECTIVES, "").split()}
    return {**first, **second, **({DIRECTIVES: " ".join(sorted(both))} if both else {})}


def spdx(address: str) -> str:
    """The SPDX identifier of a Creative Commons licence by its address; empty for any other."""
    found = _CREATIVE_COMMONS.match(address)
    if found is None:
        return ""
    kind, name, version, place = found[1].lower(), found[2].upper(), found[3], (found[4] or "").upper()
    if kind == "publicdomain":
        return "CC0-1.0" if name == "ZERO" else ""
    return f"CC-{name}-{version}" + (f"-{place}" if place else "")

"""Opt-outs and licenses that pages and servers declare: read, kept, and columns for rules."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from plinth.corpus.annotate.licence import OPT_OUT
from plinth.corpus.extract.extractor import Extractor, extracted
from plinth.corpus.extract.page import page_facts
from plinth.corpus.sources.parameters import Extraction
from plinth.corpus.sources.record import RawRecord
from plinth.corpus.sources.times import directives, spdx
from plinth.extensions import NoParams

BY = "https://creativecommons.org/licenses/by-sa/4.0/"


@pytest.mark.parametrize(
    ("robots", "tdm", "words"),
    [
        (["noai, NoImageAI"], [], "noai noimageai"),
        (["index, follow"], ["0"], ""),
        (["none"], [" 1 "], "noindex tdm-reservation"),
        (["otherbot: noai"], [], ""),
        (["noarchive", "unavailable_after: 25 Jun 2030 15:00:00 PST, noindex"], [], "noarchive noindex"),
        (["max-snippet:-1, noindex"], [], "noindex"),
        (["max-image-preview:large, noai"], [], "noai"),
    ],
)
def test_directives(robots: list[str], tdm: list[str], words: str) -> None:
    assert directives(robots, tdm) == words


@pytest.mark.parametrize(
    ("html", "facts"),
    [
        ('<meta name="robots" content="noai, noimageai"><META NAME=ROBOTS CONTENT=noindex>', "noai noimageai noindex"),
        ('<meta name="tdm-reservation" content="1">', "tdm-reservation"),
        ('<meta name="tdm-reservation" content="0"><style>a{display:none}</style>', None),
        ('<body><meta name="robots" content="noai">', None),  # of the text, which may be a quotation
        ('<meta name="googlebot" content="noindex">', None),
    ],
)
def test_opt_outs_of_a_head(html: str, facts: str | None) -> None:
    assert page_facts(html, None).get("directives") == facts


def test_the_policy_of_a_reservation() -> None:
    html = '<meta name="tdm-reservation" content="1"><meta name="tdm-policy" content="/tdm.json">'
    assert page_facts(html, None) == {"directives": "tdm-reservation", "tdm_policy": "/tdm.json"}


@pytest.mark.parametrize(
    ("html", "address"),
    [
        (f'<link rel="license" href="{BY}">', BY),
        (f"<body><p>x</p><a class=y rel='nofollow license' href='{BY}'>CC</a>", BY),
        (f"<body><a href={BY} rel=license>CC</a><a rel=license href={BY}>again</a>", BY),
        (f'<body><a rel="license" href="{BY}">a</a><a rel="license" href="/other">b</a>', None),  # one of each part
        (f'<body><a href="{BY}" title="license">CC</a>', None),
        (f'<body><pre>&lt;a rel="license" href="{BY}"></pre>', None),
        ('<body><p rel="license" href="x">', None),
    ],
)
def test_the_licence_that_a_page_links_to(html: str, address: str | None) -> None:
    assert page_facts(html, None).get("rel_license") == address


@pytest.mark.parametrize(
    ("address", "identifier"),
    [
        (BY, "CC-BY-SA-4.0"),
        ("http://www.creativecommons.org/licenses/by/3.0/de/deed.de", "CC-BY-3.0-DE"),
        ("https://creativecommons.org/publicdomain/zero/1.0/", "CC0-1.0"),
        ("https://creativecommons.org/publicdomain/mark/1.0/", ""),
        ("https://evil.example/?https://creativecommons.org/licenses/by/4.0/", ""),
        ("/terms", ""),
    ],
)
def test_addresses_of_creative_commons(address: str, identifier: str) -> None:
    assert spdx(address) == identifier


PAGE = "<html><head>%s</head><body><article><p>A page that says enough to be kept, at some length.</p>%s</article>"


def documents(read_file: Any, record: bytes, licence: str) -> list[RawRecord]:
    items = read_file("warc", "x.warc.gz", gzip.compress(record), licence=licence)
    with Extractor(Extraction()) as extractor:
        return [item for item in extracted(items, extractor, Counter()) if isinstance(item, RawRecord)]


def test_answer_and_page_together(read_file: Any, warc_record: Any) -> None:
    headers = b"X-Robots-Tag: noarchive\r\nX-Robots-Tag: otherbot: noai\r\ntdm-reservation: 1\r\n"
    headers += b'tdm-policy: /policy.json\r\nLink: </s.css>; rel=preload, </cc>; rel="license"\r\n'
    page = PAGE % ('<meta name="robots" content="noai">', f'<a rel="license" href="{BY}">CC</a>')
    (item,) = documents(read_file, warc_record("a", page.encode(), headers=headers), "per-document")
    kept = {name: item.extra[name] for name in ("directives", "tdm_policy", "rel_license")}
    assert kept == {
        "directives": "noai noarchive tdm-reservation",
        "tdm_policy": "https://example.org/policy.json",
        "rel_license": BY,
    }
    assert item.licence == "CC-BY-SA-4.0"


def test_the_licence_of_the_source_stands(read_file: Any, warc_record: Any) -> None:
    linked = PAGE % ("", f'<a rel="license" href="{BY}">CC</a>')
    assert [item.licence for item in documents(read_file, warc_record("a", linked.encode()), "MIT")] == ["MIT"]
    silent = documents(read_file, warc_record("a", (PAGE % ("", "")).encode()), "per-document")
    assert [item.licence for item in silent] == ["unknown"]


def test_columns_for_rules() -> None:
    extra = [
        {"domain": "d"},
        {"directives": "noai tdm-reservation", "tdm_policy": "https://e.org/p"},
        {"rel_license": BY},
    ]
    extra.append({"directives": 7, "rel_license": [1]})  # from a user's JSON file
    batch = pa.record_batch({"extra": [json.dumps(one) for one in extra]})
    rows = OPT_OUT.annotate(batch, NoParams()).to_pylist()
    none = dict.fromkeys(OPT_OUT.schema.names[:5], False) | dict.fromkeys(OPT_OUT.schema.names[5:])
    assert rows == [
        none,
        none | {"tdm_reservation": True, "noai": True, "tdm_policy": "https://e.org/p"},
        none | {"licence_address": BY},
        none,
    ]

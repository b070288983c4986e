"""URL rules: each list on its own, agreement with datatrove, hostile lists and addresses."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.corpus import lists
from plinth.corpus.annotate.blocklists import Rules, UrlParams, annotate_url, prepare_url
from plinth.corpus.annotate.stage import run
from plinth.corpus.lists import MAX_BAD_SHARE, ListTable
from plinth.errors import MissingError, SourceError
from plinth.storage.parts import read_table
from plinth.text import HOST

LISTS = {
    "domains.txt": "# blocked\nbad.example\nspam.co.example\n",
    "ads/domains.txt": "adserver.example\n",
    "urls.txt": "https://www.good.example/one/bad/page/\n",
    "hard_words.txt": "casinox\n",
    "soft_words.txt": "lucky\nbet\nwinner\n",
    "sub_words.txt": "xxfake\n",
    "reputation.tsv": "good.example\t0.9\nexample.org\t0.25\nlow.example.org\t0.05\n",
}


NONE = ListTable.of([], pa.string())


def rules(folder: Path, files: Mapping[str, str | bytes] = LISTS, **params: Any) -> Rules:
    paths = {}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        paths[name] = path
    return prepare_url(UrlParams(lists="web", **params), {"lists/web": paths})


def judged(made: Rules, *uris: str) -> list[dict[str, Any]]:
    return annotate_url(pa.record_batch({"uri": list(uris)}), made).to_pylist()


@pytest.mark.parametrize(
    ("uri", "column", "value", "named"),
    [
        ("https://bad.example/x", "blocked_domain", True, "domains.txt"),
        ("https://deep.below.BAD.example:8080/x", "blocked_domain", True, "domains.txt"),
        ("https://notbad.example/x", "blocked_domain", False, None),
        ("https://cdn.adserver.example/", "blocked_domain", True, "ads/domains.txt"),
        ("https://co.example/", "blocked_domain", False, None),
        ("http://good.example/one/bad/page#top", "blocked_url", True, "urls.txt"),
        ("http://good.example/one/bad/page/two", "blocked_url", False, None),
        ("https://a.example/Casinox-night", "hard_words", 1, "hard_words.txt"),
        ("https://a.example/casinoxnight", "hard_words", 0, None),
        ("https://a.example/lucky/day", "soft_words", 1, None),
        ("https://a.example/lucky/bet", "soft_words", 2, "soft_words.txt"),
        ("https://a.example/my-xx.fake/", "sub_words", 1, "sub_words.txt"),
        ("file:bucket/notes.txt", "blocked_domain", False, None),
        ("https://[broken/x", "blocked_domain", False, None),
    ],
)
def test_each_list(tmp_path: Path, uri: str, column: str, value: object, named: str | None) -> None:
    (row,) = judged(rules(tmp_path), uri)
    assert row[column] == value
    assert row["list"] == named


@pytest.mark.parametrize(
    ("uri", "listing"),
    [
        ("https://a.example/tag/mills/", True),
        ("https://a.example/category/mills/page/2/", True),
        ("https://a.example/blog/page12/index.html", True),
        ("https://a.example/Author/ann?sort=old", True),
        ("https://a.example/search/label/mills#top", True),
        ("https://a.example/2019/04/", True),
        ("https://a.example/?cat=3", True),
        ("https://a.example/news.php?cat=3&id=7", False),
        ("https://a.example/category/mills/the-old-mill", False),
        ("https://a.example/2019/04/the-old-mill", False),
        ("https://a.example/thread/7?page=2", False),
        ("https://a.example/the-year/1984x", False),
        ("https://a.example/tag", False),
        ("", False),
    ],
)
def test_pages_that_list_articles_have_addresses_of_their_own(tmp_path: Path, uri: str, listing: bool) -> None:
    (row,) = judged(rules(tmp_path), uri)
    assert row["listing"] == listing


@pytest.mark.parametrize("listed", ["bücher.example", "xn--bcher-kva.example", "WWW.BÜCHER.example."])
@pytest.mark.parametrize(
    "uri",
    [
        "http://b%C3%BCcher.example/x",
        "http://bücher.example/a",
        "http://xn--bcher-kva.example/a",
        "https://user@www.BÜCHER.example.:8443/a",
        "bücher.example/x",
    ],
)
def test_a_host_is_one_in_the_list_and_in_the_address(tmp_path: Path, listed: str, uri: str) -> None:
    files = {"domains.txt": f"{listed}\n", "urls.txt": f"https://{listed}/a/\n", "reputation.tsv": f"{listed}\t0.5\n"}
    (row,) = judged(rules(tmp_path, files), uri)
    assert (row["blocked_domain"], row["blocked_url"]) == (True, uri.endswith("/a") and ":8443" not in uri)
    assert row["reputation"] == 0.5


def test_the_longest_listed_suffix_gives_the_reputation(tmp_path: Path) -> None:
    made = judged(
        rules(tmp_path), "https://www.good.example/", "https://x.low.example.org/", "https://example.org", "a:b"
    )
    assert [row["reputation"] for row in made] == pytest.approx([0.9, 0.05, 0.25, None])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("domains.txt", "ok.example\nnot a host\n", "domains.txt, line 2"),
        ("domains.txt", "com\n", "line 1"),
        ("domains.txt", b"ok.example\n\xff\xfe\n", "not UTF-8"),
        ("domains.txt.gz", b"\x1f\x8bnonsense", "cannot be used"),
        ("sub_words.txt", "a\n", "line 1"),
        ("hard_words.txt", "two words\n", "line 1"),
        ("reputation.tsv", "good.example\tnan\n", "line 1"),
        ("reputation.tsv", "good.example 0.5\n", "line 1"),
        ("domain_list.csv", "x.example\n", "a name that starts with domains"),
        ("domains.txt", "# none yet\n", "no entry"),
        ("domains.txt", "x" * 5000 + "\n", "5000 characters"),
    ],
)
def test_a_poisoned_list_is_refused_by_file_and_line(tmp_path: Path, name: str, text: str | bytes, said: str) -> None:
    with pytest.raises(SourceError) as caught:
        rules(tmp_path, {name: text})
    assert said in str(caught.value)


def test_a_published_list_with_some_bad_lines_is_used_and_they_are_counted(tmp_path: Path) -> None:
    most = round(1 / MAX_BAD_SHARE)
    good = "".join(f"d{number}.example\n" for number in range(most - 1))
    made = rules(tmp_path, {"domains": good + "-no-host-\n"})
    assert (len(made.domains), made.domains.left_out) == (most - 1, 1)
    assert judged(made, f"http://d{most - 2}.example/")[0]["blocked_domain"]
    with pytest.raises(SourceError, match=rf"(?s)domains, line {most}.*'-no-host-', and 1 more of {most + 1} lines"):
        rules(tmp_path, {"domains": good + "-no-host-\n-neither-\n"})


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_blocklist_that_datatrove_ships_is_used_whole(tiny: Any) -> None:
    """UT1: 4,558,940 domains, 691 of which are not host names. A worker maps the table that was built once."""
    import datatrove

    ctx: Context = tiny.ctx
    shipped = next(Path(datatrove.__file__).parent.glob("assets/url_filterblacklists*.tar.gz"))
    folder = ctx.workspace.input / "ut1"
    with tarfile.open(shipped) as archive:
        archive.extractall(folder)
    hosts = [line for line in (folder / "domains").read_text().split()[::2000] if HOST.fullmatch(line) and "." in line]
    pages = [f"//{host}/page" for host in hosts] + [f"//{host}.none.example/" for host in hosts]
    corpus = tiny.corpus({"web": [[tiny.Doc("one", page) for page in pages]]})
    made = run(
        ctx, "web", "url", {"lists": "ut1"}, corpus.documents["web"], {"lists/ut1": lists.run(ctx, "ut1", "ut1")}
    )
    assert made.stats["tables"]["domains"] == {"entries": 4_558_249, "left_out": 691}
    blocked = read_table(ctx.store, made.parts[0])["blocked_domain"].to_pylist()
    assert sum(blocked) == len(hosts)
    assert all(blocked[: len(hosts)])


def test_compressed_lists_are_read(tmp_path: Path) -> None:
    made = rules(tmp_path, {"domains.txt.gz": gzip.compress(b"bad.example\n")})
    assert judged(made, "http://bad.example")[0]["blocked_domain"]


@given(st.lists(st.text(max_size=60), max_size=20))
def test_any_address_is_judged(uris: list[str]) -> None:
    made = Rules(2, ListTable.of([("bad.example", "d")], pa.string()), NONE, NONE, hard_words={"a": "h"})
    assert len(judged(made, *uris)) == len(uris)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_agreement_with_datatrove(tmp_path: Path) -> None:
    """The same lists, 5,400 addresses. Words are compared without case by us alone; hosts below a listed host are
    blocked by us at any depth, by datatrove at the registered domain and at the full name."""
    import tldextract
    from datatrove.data import Document
    from datatrove.pipeline.filters.url_filter import URLFilter

    text = {key: value for key, value in LISTS.items() if "/" not in key and "reputation" not in key}
    made = rules(tmp_path, text)
    peer = URLFilter(
        extra_domains=["bad.com", "spam.org"],
        extra_urls=[],
        banned_words=["casinox"],
        banned_subwords=["xxfake"],
        soft_banned_words=["lucky", "bet", "winner"],
        use_integrated_lists=False,
    )
    peer.tldextractor = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    made.domains = ListTable.of([("bad.com", "d"), ("spam.org", "d")], pa.string())
    hosts = ["bad.com", "www.bad.com", "x.y.spam.org", "good.net", "notbad.com", "bad.com.net"]
    words = ["lucky", "bet", "casinox", "news", "xx", "fake", "2020", "winner", "betting", "page"]
    uris = [
        f"https://{host}/{first}{join}{second}/{third}"
        for host in hosts
        for first in words
        for join in ("-", "", "_")
        for second in words
        for third in ("", "a.html", "bet")
    ]
    assert len(uris) >= 5000
    ours = [_dropped(row) for row in judged(made, *uris)]
    theirs = [peer.filter(Document(text="", id="", metadata={"url": uri})) is not True for uri in uris]
    differing = [uri for uri, mine, other in zip(uris, ours, theirs, strict=True) if mine != other]
    assert not differing


def _dropped(row: Mapping[str, Any]) -> bool:
    return bool(
        row["blocked_domain"] or row["blocked_url"] or row["hard_words"] or row["soft_words"] >= 2 or row["sub_words"]
    )


def test_a_changed_list_annotates_again_and_another_does_not(tiny: Any) -> None:
    ctx: Context = tiny.ctx
    folder = ctx.workspace.input / "web"
    folder.mkdir(parents=True)
    (folder / "domains.txt").write_text("bad.example\n")
    corpus = tiny.corpus({"web": [[tiny.Doc("one")]]})
    first = run(
        ctx, "web", "url", {"lists": "web"}, corpus.documents["web"], {"lists/web": lists.run(ctx, "web", "web")}
    )
    again = run(
        ctx, "web", "url", {"lists": "web"}, corpus.documents["web"], {"lists/web": lists.run(ctx, "web", "web")}
    )
    (folder / "domains.txt").write_text("worse.example\n")
    other = run(
        ctx, "web", "url", {"lists": "web"}, corpus.documents["web"], {"lists/web": lists.run(ctx, "web", "web")}
    )
    assert first.digest == again.digest != other.digest
    with pytest.raises(MissingError, match="needs lists/web"):
        run(ctx, "web", "url", {"lists": "web"}, corpus.documents["web"])

"""The model of main content that is learned on own pages: sampling by site, agreement and its limits, same bytes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import Engine, LocalEngine
from plinth.corpus import illegal_gate
from plinth.corpus import lists as lists_stage
from plinth.corpus.documents import documents
from plinth.corpus.documents import extraction_model as learned
from plinth.corpus.documents.documents import FileGroupTask
from plinth.corpus.documents.extraction_model import (
    AGREEMENTS,
    ASSET,
    SampleTask,
    agreements,
    choose,
    is_held_out,
    learn,
    require_agreement,
    site_factors,
    site_of,
)
from plinth.corpus.extract.content.engine import default_model, read_model
from plinth.corpus.extract.content.lessons import TAUGHT
from plinth.corpus.extract.extractor import Extractor
from plinth.corpus.extract.page import Page, Text
from plinth.corpus.sources.inventory import groups, inventory
from plinth.corpus.sources.parameters import Bucket, Documents, Illegal
from plinth.errors import MissingError, StageError
from plinth.records import Manifest
from plinth.storage.parts import read_table
from tests.plinth.corpus.source_folder import SourceFolder
from tests.tiny_corpus import ADJECTIVES, NOUNS, PLACES, VERBS

SITES, PAGES = 20, 24
ARTICLE = '<meta property="og:type" content="article">'


def sentence(draw: random.Random) -> str:
    things = [f"the {draw.choice(ADJECTIVES)} {draw.choice(NOUNS)}" for _ in range(3)]
    return f"Once {things[0]} {draw.choice(VERBS)} {things[1]} near {things[2]} {draw.choice(PLACES)}."


def paragraphs(draw: random.Random, count: int, sentences: int = 3) -> str:
    return "".join(f"<p>{' '.join(sentence(draw) for _ in range(sentences))}</p>" for _ in range(count))


def article(draw: random.Random, head: str = ARTICLE, asides: int = 3) -> str:
    """Page with asides in its text, which the default model keeps and Trafilatura drops."""
    middle = "".join(f"{paragraphs(draw, 2)}<aside>{paragraphs(draw, 1, 2)}</aside>" for _ in range(asides))
    body = f"<nav><a href=/>Home</a></nav><article><h1>{sentence(draw)}</h1>{middle}{paragraphs(draw, 2)}</article>"
    return f"<!doctype html><html><head><title>T</title>{head}</head><body>{body}<footer>Imprint</footer></body></html>"


class Crawl(SourceFolder):
    def fill(self, sites: int = SITES, pages: int = PAGES, **form: Any) -> None:
        draw = random.Random(5)
        for site in range(sites):
            for number in range(pages):
                self.write(f"html/site{site:02d}.example/{number:02d}.html", article(draw, **form))

    def learn(
        self, engine: Engine | None = None, seconds: float = 5, bucket: Bucket | None = None, **fields: Any
    ) -> Manifest:
        params = Documents.model_validate(
            {"extraction": {"engine": "blocks", "seconds_per_page": seconds}, "part_bytes": 400_000}
            | {"extraction_model": {"buckets": ["web"], "held_out": 0.4, **fields}}
        )
        assert params.extraction_model
        bucket, ctx = bucket or self.bucket("html"), Context(self.ctx.workspace, engine=engine or self.ctx.engine)
        found = {"web": (bucket, inventory(bucket, self.root))}
        return learned.run(ctx, params, params.extraction_model, found, None, {})


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Crawl:
    crawl = Crawl(tmp_path_factory.mktemp("crawl"))
    crawl.fill()
    return crawl


@pytest.mark.parametrize(
    ("uri", "site"),
    [
        ("https://news.example.org/a", "example.org"),
        ("https://www.bbc.co.uk/a", "bbc.co.uk"),
        ("http://x.de/", "x.de"),
        ("http://a.xy.de/", "xy.de"),
        ("http://co.uk/", "co.uk"),
        ("http://127.0.0.1:80/x", "127.0.0.1"),
        ("http://[::1]/x", "::1"),
        ("folder/sub/page.html", "folder"),
        ("page.html", ""),
        ("sit\udc80e/page.html", "sit\\udc80e"),
    ],
)
def test_site_of_an_address(uri: str, site: str) -> None:
    assert site_of(uri) == site


def test_pages_with_the_smallest_numbers_are_chosen_and_few_of_a_site() -> None:
    pages = [(n, "a" if n < 50 else f"s{n}") for n in range(100)]
    assert choose(pages, 20) == [(0, "a"), (1, "a"), *((n, f"s{n}") for n in range(50, 68))]
    mixed = random.Random(1).sample(pages, 100)
    assert choose([*choose(mixed[:60], 20), *mixed[60:]], 20) == choose(pages, 20)


@pytest.mark.parametrize(("sites", "share"), [(100, 0.1), (30, 0.1), (8, 0.25), (5, 0.4), (1, 1)])
def test_a_site_of_many_articles_has_a_bounded_weight(sites: int, share: float) -> None:
    names = [*(f"s{n}" for n in range(sites - 1)), *["large"] * 1000]
    weights = np.array([*range(1, sites), *[1.0] * 1000])
    found = weights * site_factors(names, weights)
    assert found[sites - 1 :].sum() <= share * found.sum() * (1 + 1e-9)
    assert site_factors(names[:sites], weights[:sites] ** 0) == pytest.approx(np.ones(sites))


def test_a_share_of_the_sites_is_held_out() -> None:
    sites = [f"{n}.example" for n in range(2000)]
    held = {site for site in sites if is_held_out(site, 0.3)}
    assert 500 < len(held) < 700
    assert held < {site for site in sites if is_held_out(site, 0.5)}


def test_the_model_learns_what_the_teacher_drops(crawl: Crawl) -> None:
    made = crawl.learn()
    facts = made.stats
    assert (made.asset, facts["trees"]) == (ASSET, 550)
    assert facts["learned_articles"] + facts["measured_articles"] == SITES * PAGES
    assert facts["learned_sites"] + facts["measured_sites"] == SITES
    assert set(facts["not_taught"].values()) == {0}
    assert facts["gain_low"] > 0.02
    assert facts["gain_low"] <= facts["gain"] <= facts["gain_high"]
    assert facts["gain"] == pytest.approx(facts["agreement"] - facts["default_agreement"], abs=1e-5)
    model = crawl.ctx.store.open_path(made.parts[0].blob)
    own, default = read_model(model), default_model()
    assert all(np.array_equal(a, b[: a.size]) for a, b in zip(default[:6], own[:6], strict=True))
    unseen = Page(article(random.Random(99)).encode())
    params = Documents.model_validate({"extraction": "blocks"}).extraction
    lengths = []
    for file in (None, model):
        with Extractor(params, file) as extractor:
            (answer,) = extractor.extract([unseen])
        assert isinstance(answer, Text)
        lengths.append(answer.text.count("."))
    assert lengths == [3 * 8 + 6 + 1, 3 * 6 + 6 + 1]  # without the asides, as Trafilatura reads it


def test_workers_and_repetitions_give_the_same_model(crawl: Crawl, tmp_path: Path, two_workers: LocalEngine) -> None:
    other = Crawl(tmp_path)
    other.fill()
    assert other.learn(engine=two_workers) == crawl.learn()


def test_the_model_is_part_of_the_identity_of_pages(crawl: Crawl) -> None:
    model = crawl.learn().parts[0].blob
    bucket = crawl.bucket("html")
    params = Documents.model_validate({"extraction": "blocks"})
    made = [
        documents.run(crawl.ctx, "web", bucket, params, inventory(bucket, crawl.root), model=one)
        for one in (None, model)
    ]
    sizes = [one.stats["text_bytes"] for one in made]
    assert sizes[1] < 0.95 * sizes[0]
    facts = [one.params["sources"][0].get("extraction_model") for one in made]
    assert facts == [None, model.sha256]


def test_a_model_that_is_not_better_is_refused(tmp_path: Path) -> None:
    crawl = Crawl(tmp_path)
    crawl.fill(asides=0, pages=14)
    with pytest.raises(StageError, match="is not better than the default model") as error:
        crawl.learn()
    assert "gain +0.0000 [+0.0000, +0.0000]" in str(error.value.found)
    assert "use the default model" in str(error.value.remedy)


def test_intervals_are_over_sites() -> None:
    rows = [("a", TAUGHT, 0.5, 1.0, 0.5)] * 3 + [("b", TAUGHT, 0.5, 0.5, 1.0), ("c", "no_article", 0.0, 0.0, 0.25)]
    measured = pa.Table.from_pylist([dict(zip(AGREEMENTS.names, row, strict=True)) for row in rows], AGREEMENTS)
    assert agreements(measured) == {
        "agreement": 0.875, "agreement_low": 0.5, "agreement_high": 1.0,
        "default_agreement": 0.5, "default_agreement_low": 0.5, "default_agreement_high": 0.5,
        "gain": 0.375, "gain_low": 0.0, "gain_high": 0.5, "kept": 0.25,
    }  # fmt: skip


def test_limits_of_the_agreement() -> None:
    names = ("agreement", "default_agreement", "gain")
    facts = {f"{name}{end}": 0.8 for name in names for end in ("", "_low", "_high")}
    facts |= {"measured_articles": 30, "measured_sites": 9}
    require_agreement(facts, 0.8)
    with pytest.raises(StageError, match="agrees too little with the teacher") as error:
        require_agreement(facts, 0.81)
    assert "at least 0.81" in str(error.value.expected)
    with pytest.raises(StageError, match="is not better than the default model"):
        require_agreement(facts | {"gain_low": 0.0}, 0.8)


@pytest.mark.parametrize(
    ("form", "found"),
    [
        ({"sites": 1, "pages": 90}, " sites; other sampled pages: none"),
        ({"pages": 2}, "articles of"),
        ({"head": ""}, "0 articles of 0 sites; other sampled pages: no_article "),
    ],
)
def test_too_few_articles_or_sites_are_named(tmp_path: Path, form: dict[str, Any], found: str) -> None:
    crawl = Crawl(tmp_path)
    crawl.fill(**{"pages": 6, **form})
    with pytest.raises(StageError, match="too few articles are learned") as error:
        crawl.learn()
    assert found in str(error.value.found)
    assert "at least 50 articles of 5 sites" in str(error.value.expected)


def test_a_snapshot_that_no_source_has_is_named(crawl: Crawl) -> None:
    with pytest.raises(StageError, match="no source to sample") as error:
        crawl.learn(snapshots=["2020-01"])
    assert error.value.found == "2026-46"


def test_a_new_snapshot_keeps_the_model_if_snapshots_are_listed(crawl: Crawl) -> None:
    crawl.write("later/site1.example/1.html", article(random.Random(8)))
    (first,) = crawl.bucket("html").sources
    later = first.model_copy(update={"path": "later", "snapshot": "2026-51"})
    both = crawl.bucket("html").model_copy(update={"sources": (first, later)})
    listed = crawl.learn(bucket=both, snapshots=["2026-46"])
    assert listed.parts == crawl.learn().parts
    assert crawl.learn(bucket=both).parts != listed.parts


def test_a_page_that_is_too_slow_for_the_teacher_costs_itself(tmp_path: Path) -> None:
    crawl = Crawl(tmp_path)
    crawl.fill(pages=16)
    slow = article(random.Random(1)).replace("</article>", "<a href=x>x</a>" * 200_000 + "</article>")
    broken = b"\x00\xff\xfe" * 1000
    learned_site = next(f"site{n:02d}.example" for n in range(SITES) if not is_held_out(f"site{n:02d}.example", 0.4))
    crawl.write(f"html/{learned_site}/slow.html", slow)
    crawl.write(f"html/{learned_site}/broken.html", broken)
    made = crawl.learn(seconds=0.5)
    assert made.stats["not_taught"]["timeout"] == 1
    assert made.stats["learned_articles"] + made.stats["measured_articles"] == SITES * 16


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from plinth import fingerprint

    def none(*names: str) -> dict[str, str]:
        raise MissingError("lightgbm is not installed")

    monkeypatch.setattr(fingerprint, "libraries", none)
    with pytest.raises(MissingError) as error:
        learned.libraries()
    assert "plinth[extraction]" in str(error.value.remedy)


def test_lessons_are_numbers_without_text(crawl: Crawl) -> None:
    work = {"bucket": "web", "source": (bucket := crawl.bucket("html")).sources[0], "params": Documents()}
    group = next(groups(bucket, inventory(bucket, crawl.root), 400_000))
    task = SampleTask(work=FileGroupTask(group=group, **work), pages=40, held_out=0.4)
    (part,) = learn(crawl.ctx.store, task)
    table = read_table(crawl.ctx.store, part)
    assert set(table["outcome"].to_pylist()) == {TAUGHT}
    assert part.stats["blocks"] == sum(map(len, table["truth"].to_pylist())) / 8
    sites = Counter(table["site"].to_pylist())
    assert max(sites.values()) <= 4
    assert not any(is_held_out(site, 0.4) for site in sites)


def test_pages_of_illegal_text_are_not_learned_from(tmp_path: Path) -> None:
    crawl, site = Crawl(tmp_path), next(f"s{n}.example" for n in range(9) if not is_held_out(f"s{n}.example", 0.4))
    draw = random.Random(1)
    for number in range(3):
        page = article(draw).replace("<p>", "<p>Quetzalgroth, " if number == 1 else "<p>")
        crawl.write(f"html/{site}/{number}.html", page)
    crawl.write("lists/keywords.txt", "quetzalgroth\ttrade\n")
    lists = {"lists/illegal": lists_stage.run(crawl.ctx, "illegal", str(crawl.root / "lists"))}
    bucket = crawl.bucket("html")
    (group,) = groups(bucket, inventory(bucket, crawl.root), 400_000)
    work = FileGroupTask(bucket="web", source=bucket.sources[0], group=group, params=Documents())
    for gate, learned_from in ((None, 3), (illegal_gate.gate_of(Illegal(lists="illegal"), lists), 2)):
        task = SampleTask(work=work.model_copy(update={"gate": gate}), pages=40, held_out=0.4)
        (part,) = learn(crawl.ctx.store, task)
        assert part.rows == learned_from


def test_an_engine_without_a_model_is_refused() -> None:
    with pytest.raises(ValueError, match="the engine 'resiliparse' has no model"):
        Documents.model_validate({"extraction_model": {"buckets": ["web"]}})

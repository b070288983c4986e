"""A folder of WARCs becomes a curated, explained, deduplicated corpus: every filter on, and the truth known."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from tests import web_corpus
from tests.jobs.conftest import ROOT, answer, digests, plinth

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

RECIPE = ROOT / "tests" / "web.yaml"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    web_corpus.write(folder / "input")
    wanted = ("funnel", "dedup/index", "ledger", "data_card")
    plinth(folder, "run", "-r", RECIPE, *(word for name in wanted for word in ("--select", name)))
    return folder


@pytest.fixture(scope="module")
def pages(workspace: Path) -> dict[str, list[dict[str, Any]]]:
    """Decisions on the pages of the crawl, by what was planted in them."""
    ctx = Context(Workspace(workspace))
    found: dict[str, list[dict[str, Any]]] = {}
    documents, verdicts = ctx.refs.current("web/documents"), ctx.refs.current("web/verdicts")
    for part, judged in zip(documents.named("part-"), verdicts.named("part-"), strict=True):
        uris = read_table(ctx.store, part, ["uri", "text"]).to_pylist()
        for row, verdict in zip(uris, read_table(ctx.store, judged).to_pylist(), strict=True):
            found.setdefault(_kind(row["uri"]), []).append({**row, **verdict})
    return found


def _kind(uri: str) -> str:
    if "spam-farm" in uri:
        return "blocked_domain"
    if "casinobonus" in uri:
        return "blocked_words"
    return "good" if "/stories/" in uri else uri.rsplit("/", 2)[1].replace("-", "_")


def _curated(workspace: Path, bucket: str = "web") -> list[str]:
    ctx = Context(Workspace(workspace))
    parts = ctx.refs.current(f"{bucket}/curated").named("part-")
    return [text for part in parts for text in read_table(ctx.store, part, ["text"])["text"].to_pylist()]


def test_every_page_is_there_under_its_kind(pages: dict[str, list[dict[str, Any]]]) -> None:
    assert {kind: len(rows) for kind, rows in pages.items()} == {**web_corpus.PLANTED, "good": web_corpus.GOOD_PAGES}


@pytest.mark.parametrize(
    ("kind", "reasons", "share"),
    [
        ("blocked_domain", {"blocked_url"}, 1.0),
        ("blocked_words", {"blocked_url"}, 1.0),
        ("too_short", None, 1.0),
        ("repeated_lines", None, 1.0),
        ("noise", None, 1.0),
        ("german", None, 1.0),
        ("toxic", {"toxic"}, 0.9),
        ("secrets", {"secrets"}, 1.0),
        ("leaked", {"leaked"}, 0.9),
        ("mirror", {"leaked", "benchmark_source"}, 1.0),
        ("clickbait", None, 0.9),
        ("reordered", {"semantic_duplicate"}, 0.8),
    ],
)
def test_what_was_planted_is_dropped(
    pages: dict[str, list[dict[str, Any]]], kind: str, reasons: set[str] | None, share: float
) -> None:
    rows = [row for row in pages[kind] if row["decision"] != "heldout"]
    right = [row for row in rows if row["decision"] == "drop" and (reasons is None or row["reason"] in reasons)]
    assert len(right) >= share * len(rows), Counter((row["decision"], row["reason"]) for row in rows)


def test_good_pages_stay(pages: dict[str, list[dict[str, Any]]]) -> None:
    """The good pages that are lost are duplicates of planted copies and chance overlaps with the held-out set."""
    kept = [row for row in pages["good"] if row["decision"] in ("train", "heldout")]
    dropped = Counter(row["reason"] for row in pages["good"] if row["decision"] == "drop")
    assert len(kept) >= 0.85 * len(pages["good"]), dropped
    others = {*dropped} - {"exact_duplicate", "near_duplicate", "semantic_duplicate", "contaminated", "leaked"}
    assert sum(dropped[reason] for reason in others) <= 0.05 * len(pages["good"]), dropped


@pytest.mark.parametrize(("kind", "first"), [("exact_copy", 0), ("near_copy", 40)])
def test_of_copies_exactly_one_stays(pages: dict[str, list[dict[str, Any]]], kind: str, first: int) -> None:
    originals = {int(row["uri"].rsplit("/", 1)[1]): row for row in pages["good"]}
    lost = {"exact_duplicate", "near_duplicate", "semantic_duplicate"}
    for row in pages[kind]:
        pair = (row, originals[first + int(row["uri"].rsplit("/", 1)[1])])
        if any(one["decision"] == "drop" and one["reason"] not in lost for one in pair):
            continue  # the policy or the held-out set took it
        assert sum(one["decision"] != "drop" for one in pair) <= 1 + (web_corpus.APPEAL in pair[1]["text"])
        assert any(one["decision"] != "drop" for one in pair)


def test_what_may_not_be_learnt_is_in_no_curated_text(workspace: Path) -> None:
    text = "\n".join(_curated(workspace))
    assert "tidewater-house.net" not in text
    assert "AKIA" not in text
    assert "Lehrer erzählte den Kindern" not in text
    assert text.count(web_corpus.PASSAGE) <= 1
    assert text.count(web_corpus.APPEAL) <= 1


def test_the_funnel_loses_nothing_and_names_every_stage(workspace: Path) -> None:
    found: Any = answer(workspace, "funnel")
    stages = found["total"]["stages"]
    assert [row["stage"] for row in stages] == [
        "documents", "policy", "exact", "near", "semantic", "lines", "substring", "holdout", "contamination",
        "protected", "curated",
    ]  # fmt: skip
    for before, after in itertools.pairwise(stages):
        assert before["documents_out"] == before["documents_in"] - before["removed"] == after["documents_in"]
    assert stages[-1]["documents_out"] == found["total"]["trained"]["documents"] > 300


def test_a_changed_word_list_makes_only_what_rests_on_it(workspace: Path) -> None:
    before = digests(workspace)
    path = workspace / "input" / "lists" / "urls" / "domains.txt"
    path.write_text(path.read_text() + "nobody-is-here.example\n")
    plinth(workspace, "run", "-r", RECIPE, "--select", "funnel")
    after = digests(workspace)
    changed = {asset for asset in before if before[asset] != after[asset]}
    assert "lists/urls" in changed
    assert not changed & {"web/documents", "web/perplexity", "web/gopher_quality", "models/quality", "reference/pii"}


def test_it_can_be_explained_and_queried(workspace: Path, pages: dict[str, list[dict[str, Any]]]) -> None:
    toxic = next(row for row in pages["toxic"] if row["reason"] == "toxic")
    story = plinth(workspace, "explain", toxic["uri"]).stdout
    assert "toxic" in story
    assert "toxicity.final" in story
    leaked = next(row for row in pages["leaked"] if row["reason"] == "leaked")
    item = leaked["uri"].rsplit("/", 1)[1]  # the n-th page was given the n-th item
    told: Any = answer(workspace, "explain", leaked["uri"])["protected"]
    assert (told["reason"], told["set"], told["item"]) == ("leaked", "quiz", f"q{item}")
    assert told["shared"].removesuffix("…") in leaked["text"]
    assert told["item_text"].split()[0] in leaked["text"]
    assert f"q{item}" in plinth(workspace, "explain", leaked["uri"]).stdout
    near: Any = answer(workspace, "near", _curated(workspace)[0])
    assert near[0]["similarity"] == 1.0, near[0]
    shown = plinth(workspace, "corpus", "slices").stdout
    assert "toxicity" in shown


def test_the_data_card_says_what_is_screened_and_how_well(workspace: Path) -> None:
    card: Any = answer(workspace, "card")
    assert card["toxicity"] == "not screened in reference"
    page = plinth(workspace, "corpus", "card").stdout
    assert f"quiz, {web_corpus.ITEMS} items: " in page
    assert "generated text alone, which is no evidence" in page
    assert "removes of reference: 0 of 160 documents" in page
    rules = answer(workspace, "policy", "removal", "--samples", 0)["rules"]
    assert {row["reason"] for row in rules} == {"toxic", "low_quality"}
    assert all(row["buckets"]["web"]["fired"] > 0 for row in rules)

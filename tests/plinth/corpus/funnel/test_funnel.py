"""The funnel: what goes in comes out or is named, in every stage; factors hand-worked."""

import random
from collections.abc import Mapping
from copy import copy
from types import MappingProxyType
from typing import Any

import pytest

from plinth.compute.context import manifest
from plinth.corpus import funnel
from plinth.corpus.protected.parameters import Holdout
from plinth.records import Manifest, Step


@pytest.fixture(scope="module")
def tiny(shared_tiny: Any) -> Any:
    return shared_tiny


def words(picks: random.Random, count: int) -> str:
    return " ".join(f"w{picks.randrange(10**9)}" for _ in range(count))


def with_stats(made: Manifest, **stats: Any) -> Manifest:
    return made.model_copy(update={"stats": {**made.stats, **stats}})


def stats_only(asset: str, stats: Mapping[str, Any] = MappingProxyType({})) -> Manifest:
    return manifest(asset, Step(name="test", version="1"), {}, (), stats)


@pytest.fixture(scope="module")
def whole(tiny: Any) -> Any:
    picks = random.Random(1)
    buckets = {}
    for bucket in ("a", "b"):
        docs = [tiny.Doc(words(picks, 40), fired=("bad",) if i % 5 == 0 else ()) for i in range(40)]
        docs += [tiny.Doc(doc.text.upper(), name=f"{bucket}{i}") for i, doc in enumerate(docs[:10])]
        docs += [tiny.Doc(f"{docs[i].text} tail{i}", edits=((0, 3, "é"),)) for i in range(11, 16)]
        buckets[bucket] = [docs[:20], docs[20:]]
    corpus = tiny.corpus(buckets, holdout_params=Holdout(fraction=0.1))
    corpus.through_curated()
    corpus.documents["a"] = with_stats(corpus.documents["a"], rejects={"parser": 8, "empty": 2})
    return corpus


@pytest.fixture
def corpus(whole: Any) -> Any:
    """The corpus; a test may exchange its manifests of documents."""
    own = copy(whole)
    own.documents = dict(whole.documents)
    return own


def test_every_document_and_byte_is_accounted_for(tiny: Any, corpus: Any) -> None:
    made = funnel.run(tiny.ctx, corpus.documents, corpus.verdicts, corpus.curated)
    for account in (*made.stats["buckets"].values(), made.stats["total"]):
        names = [row["stage"] for row in account["stages"]]
        assert names == ["documents", "policy", "exact", "near", "holdout", "contamination", "curated"]
        for row, after in zip(account["stages"], account["stages"][1:], strict=False):
            assert (row["documents_out"], row["bytes_out"]) == (after["documents_in"], after["bytes_in"])
        for row in account["stages"][:-1]:
            assert row["documents_in"] - row["removed"] == row["documents_out"]
            assert row["removed"] == sum(reason["documents"] for reason in row["reasons"].values())
        for row in account["stages"][1:-1]:
            assert row["bytes_in"] - row["removed_bytes"] == row["bytes_out"]
            assert row["removed_bytes"] == sum(reason["bytes"] for reason in row["reasons"].values())
        last = account["stages"][-1]
        assert (last["documents_out"], last["bytes_out"]) == (
            account["trained"]["documents"],
            account["trained"]["bytes"],
        )
        assert account["held_out"]["documents"] > 0
    total = made.stats["total"]
    for stage, row in enumerate(total["stages"]):
        assert row["documents_in"] == sum(b["stages"][stage]["documents_in"] for b in made.stats["buckets"].values())
    assert total["stages"][1]["reasons"]["bad"]["documents"] == total["stages"][1]["removed"] > 0
    assert total["stages"][2]["removed"] > 0
    assert total["stages"][3]["removed"] > 0


def test_effective_budget_hand_worked(tiny: Any, corpus: Any) -> None:
    shards = {b: stats_only(f"{b}/shards", {"tokens": n}) for b, n in (("a", 1000), ("b", 500))}
    packing = {"targets": 100, "padding": 0, "masked": 10}
    mixture = stats_only("mixture", {"packing": {"r_pad": 0.05}, "buckets": {"a": {"packing": packing}}})
    made = funnel.run(tiny.ctx, corpus.documents, corpus.verdicts, corpus.curated, shards, mixture)
    for bucket, r_pad in (("a", 0.1), ("b", 0.0), (None, 0.05)):
        account = made.stats["buckets"][bucket] if bucket else made.stats["total"]
        found, rows = account["effective"], {row["stage"]: row for row in account["stages"]}
        assert found["r_pad"] == r_pad
        kept = rows["policy"]["bytes_out"]
        assert found["rho_quality"] == kept / rows["policy"]["bytes_in"]
        assert found["r_dup"] == pytest.approx(1 - rows["near"]["bytes_out"] / kept)
        product = found["nominal_bytes"] * found["rho_parse"] * found["rho_quality"] * (1 - found["r_dup"])
        assert product * found["rho_rest"] == pytest.approx(account["trained"]["bytes"])
        assert found["rho_rest"] < 1  # something is held out
        assert found["effective_bytes"] == pytest.approx(account["trained"]["bytes"] * (1 - r_pad))
        tokens = account["trained"]["tokens"]
        assert found["effective_tokens"] / (1 - r_pad) == pytest.approx(tokens)
    assert made.stats["buckets"]["a"]["effective"]["rho_parse"] == 55 / 63  # the empty ones do not count as failures
    assert made.stats["total"]["trained"]["tokens"] == 1500
    assert set(made.inputs) >= {"a/documents", "b/verdicts", "a/curated", "b/shards", "mixture"}


def test_an_empty_bucket_divides_by_nothing(tiny: Any) -> None:
    corpus = tiny.corpus({"a": [[tiny.Doc("x", fired=("bad",))]]})
    corpus.through_curated()
    effective = funnel.run(tiny.ctx, corpus.documents, corpus.verdicts, corpus.curated).stats["total"]["effective"]
    assert effective["effective_bytes"] == 0
    assert effective["rho_quality"] == 0


def test_before_there_is_curated_text(tiny: Any, corpus: Any) -> None:
    early = funnel.run(tiny.ctx, corpus.documents, corpus.verdicts).stats["total"]
    later = funnel.run(tiny.ctx, corpus.documents, corpus.verdicts, corpus.curated).stats["total"]
    assert early["stages"] == later["stages"][:-1]
    assert early["trained"]["documents"] == later["trained"]["documents"]
    assert early["trained"]["bytes"] == later["stages"][-2]["bytes_out"]
    # before edits are made, what they take cannot be known
    cut = early["trained"]["bytes"] / later["trained"]["bytes"]
    assert early["effective"]["effective_bytes"] == pytest.approx(later["effective"]["effective_bytes"] * cut)


def test_any_stage_that_the_verdicts_have_is_in_its_place(tiny: Any, corpus: Any) -> None:
    """Stages that a recipe switches on stand between near duplicates and the holdout, and count as duplicates."""
    plain = funnel.run(tiny.ctx, corpus.documents, corpus.verdicts).stats["buckets"]["a"]
    stats = dict(corpus.verdicts["a"].stats)
    stats["stages"] = stats["stages"] | {"substring": 2, "lines": 1, "look": 1}
    stats["stage_bytes"] = stats["stage_bytes"] | {"substring": 200, "lines": 100, "look": 50}
    stats["decisions"] = stats["decisions"] | {"train": stats["decisions"]["train"] - 4}
    stats["decision_bytes"] = stats["decision_bytes"] | {"train": stats["decision_bytes"]["train"] - 350}
    made = funnel.run(
        tiny.ctx, {"a": corpus.documents["a"]}, {"a": corpus.verdicts["a"].model_copy(update={"stats": stats})}
    ).stats["total"]
    names = [row["stage"] for row in made["stages"]]
    assert names == ["documents", "policy", "exact", "near", "lines", "substring", "look", "holdout", "contamination"]
    assert made["stages"][-1]["documents_out"] == stats["decisions"]["train"]
    assert made["stages"][5]["reasons"] == {"mostly_repeated": {"documents": 2, "bytes": 200}}
    kept = made["stages"][1]["bytes_out"]
    assert made["effective"]["r_dup"] == pytest.approx(plain["effective"]["r_dup"] + 350 / kept)


def test_a_stage_of_one_bucket_is_in_the_rows_of_all(tiny: Any, corpus: Any) -> None:
    """Only rewritten buckets have the stage `source`; figures draw the rows of all buckets next to each other."""
    own = corpus.verdicts["a"].stats
    one = with_stats(
        corpus.verdicts["a"], stages={**own["stages"], "source": 1}, stage_bytes={**own["stage_bytes"], "source": 9}
    )
    made = funnel.run(tiny.ctx, corpus.documents, {**corpus.verdicts, "a": one}).stats
    rows = {name: {row["stage"]: row for row in made["buckets"][name]["stages"]} for name in ("a", "b")}
    assert list(rows["a"]) == list(rows["b"]) == [row["stage"] for row in made["total"]["stages"]]
    assert (rows["a"]["source"]["removed"], rows["b"]["source"]["removed"]) == (1, 0)


def test_rules_fire_first_and_alone(tiny: Any) -> None:
    docs = [tiny.Doc("a b", fired=("x",)), tiny.Doc("c d e", fired=("x", "y")), tiny.Doc("f g h i"), tiny.Doc("j k")]
    corpus = tiny.corpus({"a": [docs]})
    corpus.through_curated()
    made = funnel.run(
        tiny.ctx, corpus.documents, corpus.verdicts, corpus.curated, {"a": stats_only("s", {"tokens": 6})}
    )
    total = made.stats["total"]
    assert total["rules"]["x"] == {"fired": 2, "only": 1, "only_bytes": 3, "first": 2, "first_bytes": 8}
    assert total["rules"]["y"] == {"fired": 1, "only": 0, "only_bytes": 0, "first": 0, "first_bytes": 0}
    policy = total["stages"][1]
    assert policy["reasons"]["x"] == {"documents": 2, "bytes": 8, "unique": 1, "unique_bytes": 3}
    rate = 6 / total["trained"]["bytes"]
    assert (policy["tokens_removed"], policy["tokens_out"]) == (round(8 * rate), round(10 * rate))
    assert total["stages"][0]["tokens_removed"] is None


def test_protected_sets_give_their_own_reasons(tiny: Any, corpus: Any) -> None:
    stats = dict(corpus.verdicts["a"].stats)
    stats["stages"] = stats["stages"] | {"protected": 3}
    stats["stage_bytes"] = stats["stage_bytes"] | {"protected": 30}
    stats["reasons"] = stats["reasons"] | {"in_gsm8k": 2, "bad": stats["reasons"]["bad"] + 1}
    stats["reason_bytes"] = stats["reason_bytes"] | {"in_gsm8k": 20, "bad": stats["reason_bytes"]["bad"] + 10}
    verdicts = corpus.verdicts["a"].model_copy(update={"stats": stats})
    made = funnel.run(tiny.ctx, {"a": corpus.documents["a"]}, {"a": verdicts}).stats["total"]["stages"][-1]
    assert made["stage"] == "protected"
    assert made["reasons"] == {"bad": {"documents": 1, "bytes": 10}, "in_gsm8k": {"documents": 2, "bytes": 20}}


def test_quarantine_is_removed_by_the_first_stage_and_is_no_failure_to_parse(tiny: Any, corpus: Any) -> None:
    corpus.documents["a"] = with_stats(corpus.documents["a"], rejects={"parser": 8, "empty": 2, "illegal_content": 5})
    account = funnel.run(tiny.ctx, corpus.documents, corpus.verdicts, corpus.curated).stats["buckets"]["a"]
    assert account["stages"][0]["removed"] == 15
    assert account["stages"][0]["reasons"]["illegal_content"]["documents"] == 5
    assert account["effective"]["rho_parse"] == 55 / 63  # the empty ones do not count as failures


def test_pages_captured_again_are_duplicates_and_no_failures(tiny: Any, corpus: Any) -> None:
    before = funnel.run(tiny.ctx, corpus.documents, corpus.verdicts, corpus.curated).stats["buckets"]["a"]["effective"]
    text = corpus.documents["a"].stats["text_bytes"]
    again = {"rejects": {"seen_before": 7}, "seen_before_bytes": text}
    corpus.documents["a"] = with_stats(corpus.documents["a"], **again)
    account = funnel.run(tiny.ctx, corpus.documents, corpus.verdicts, corpus.curated).stats["buckets"]["a"]
    after = account["effective"]
    assert account["stages"][0]["reasons"] == {"seen_before": {"documents": 7, "bytes": text, "damage": False}}
    assert after["rho_parse"] == 1.0
    assert after["nominal_bytes"] == 2 * text
    assert 1 - after["r_dup"] == pytest.approx((1 - before["r_dup"]) / 2)
    assert after["effective_bytes"] == pytest.approx(before["effective_bytes"])


def test_a_bucket_has_the_account_of_its_files_and_records(tiny: Any, corpus: Any) -> None:
    sources = {name: stats_only(f"{name}/sources", {"found": 3, "not_read": {".md": 1}}) for name in corpus.documents}
    documents = {**corpus.documents, "a": with_stats(corpus.documents["a"], files_read=2, records=65)}
    made = funnel.run(tiny.ctx, documents, corpus.verdicts, corpus.curated, sources=sources)
    assert made.stats["buckets"]["a"]["account"] == {
        "found": 3, "read": 2, "not_read": {".md": 1}, "records": 65, "documents": 55, "exclusions": {"empty": 2},
        "damage": {"parser": 8}, "repeats": 0, "repeated_ids": 0, "unread_dates": 0,
    }  # fmt: skip
    assert "account" not in made.stats["buckets"]["b"]  # documents of an earlier version, which did not count all of it
    assert made.inputs["a/sources"] == sources["a"].digest

"""What-ifs agree with the policy stage and with `plinth corpus policy try`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.corpus.policy import policy
from plinth.corpus.policy import whatif as try_command
from plinth.corpus.policy.expressions import syntax
from plinth.corpus.policy.parameters import Policy
from plinth.errors import MissingError, RecipeError, RequestError
from plinth.storage.parts import iter_batches
from plinth_extras.corpus_page import whatif
from plinth_extras.corpus_page.ledger import OpenLedger
from tests import judged_corpus
from tests.judged_corpus import PLANTED, POLICY, RIGHTS

POLICIES = dict.fromkeys(PLANTED, "default")
TEXTS = [
    ("too_few_words", "gopher_quality.word_count < 20"),
    ("too_few_words", "gopher_quality.word_count < 5"),
    ("too_few_words", "gopher_quality.word_count < 1000"),
    ("too_few_words", "not 12 <= gopher_quality.word_count < 31 and documents.licence == 'MIT'"),
    ("few_stop_words", "gopher_quality.stop_words < 3.5 or pii.email > 0"),
    ("few_stop_words", "gopher_quality.mean_word_characters / gopher_quality.word_count > 0.15"),
    ("few_stop_words", "licence.expression in ['MIT', 'GPL-3.0-only'] and licence.permitted is False"),
    ("few_stop_words", "documents.captured_at is None and gopher_quality.letter_words >= 0.9"),
]


def changed(reason: str, text: str) -> Policy:
    rules = [rule.model_copy(update={"drop": text}) if rule.reason == reason else rule for rule in POLICY.rules]
    return POLICY.model_copy(update={"rules": tuple(rules)})


@pytest.mark.parametrize(("reason", "text"), TEXTS)
def test_counts_are_those_of_the_policy_stage(ctx: Context, opened: OpenLedger, reason: str, text: str) -> None:
    rule = whatif.rule_of(whatif.rules(ctx, opened, POLICIES), "default", reason)
    assert rule.buckets == ("prose", "web")
    found, new = whatif.effect(ctx, opened, rule, text), changed(reason, text)

    published = {name: try_command.published_bucket(ctx, name) for name in PLANTED}
    tried = try_command.compare(ctx, published, dict.fromkeys(PLANTED, new), RIGHTS)[0]["total"]
    assert (found.documents, found.text_bytes) == (tried["documents"], tried["bytes"])
    assert (found.kept_after, found.kept_bytes_after) == (tried["kept"], tried["kept_bytes"])
    assert (found.dropped.documents, found.dropped.text_bytes) == (
        tried["newly_dropped"]["documents"], tried["newly_dropped"]["bytes"]
    )  # fmt: skip
    assert found.dropped.trained == tried["newly_dropped"]["decisions"].get("train", 0)
    assert found.dropped.representatives == tried["newly_dropped"]["survivors"]
    assert (found.kept.documents, found.kept.text_bytes) == (
        tried["newly_kept"]["documents"], tried["newly_kept"]["bytes"]
    )  # fmt: skip
    assert found.fired_after == tried["rules"][reason]["fires"]

    sides = {"dropped": set[tuple[str, int]](), "kept": set[tuple[str, int]]()}
    before = after = 0
    for bucket in PLANTED:
        scores = {name: ctx.refs.current(f"{bucket}/{name}") for name in judged_corpus.ANNOTATORS}
        judged = policy.run(ctx, bucket, new, ctx.refs.current(f"{bucket}/documents"), scores, RIGHTS)
        masks = [
            [keep for part in made.parts for batch in iter_batches(ctx.store, part, ["keep"])
             for keep in batch.column("keep").to_pylist()]
            for made in (ctx.refs.current(f"{bucket}/policy"), judged)
        ]  # fmt: skip
        before, after = before + sum(masks[0]), after + sum(masks[1])
        for row, (old, now) in enumerate(zip(*masks, strict=True)):
            if old != now:
                sides["dropped" if old else "kept"].add((bucket, row))
    assert (found.kept_before, found.kept_after) == (before, after)
    for name, side in (("dropped", found.dropped), ("kept", found.kept)):
        first = {bucket: [0] for bucket in PLANTED}
        for one in opened.parts:
            first[one.bucket].append(first[one.bucket][-1] + one.part.rows)
        listed = {
            (opened.parts[part].bucket, first[opened.parts[part].bucket][opened.parts[part].number] + row)
            for part, row in side.places
        }
        assert len(side.places) == min(len(sides[name]), whatif.SAMPLES)
        assert listed <= sides[name]


def test_another_seed_lists_other_documents(ctx: Context, opened: OpenLedger) -> None:
    rule = whatif.rule_of(whatif.rules(ctx, opened, POLICIES), "default", "too_few_words")
    lists = [
        whatif.effect(ctx, opened, rule, "gopher_quality.word_count < 99", seed).dropped.places for seed in (1, 1, 2)
    ]
    assert lists[0] == lists[1]
    assert set(lists[0]) != set(lists[2])


def test_rules_by_policy(ctx: Context, opened: OpenLedger) -> None:
    assert [(rule.policy, rule.reason) for rule in whatif.rules(ctx, opened, POLICIES)] == [
        ("default", "too_few_words"), ("default", "few_stop_words")
    ]  # fmt: skip
    own = whatif.rules(ctx, opened, {"web": "crawl"})
    assert [(rule.policy, rule.buckets) for rule in own if rule.reason == "too_few_words"] == [
        ("prose", ("prose",)), ("crawl", ("web",))
    ]  # fmt: skip
    assert whatif.fired(opened, own)["crawl", "too_few_words"] == PLANTED["web"][1]
    with pytest.raises(MissingError, match="crawl/few_stop_words"):
        whatif.rule_of(own, "crawl", "licence")


@pytest.mark.parametrize(
    "text", ["gopher_quality.word_count <", "gopher_quality.wrod_count < 5", "c4.lines < 5", "__import__('os')", ""]
)
def test_a_wrong_rule_is_refused_by_name(ctx: Context, opened: OpenLedger, text: str) -> None:
    rule = whatif.rule_of(whatif.rules(ctx, opened, POLICIES), "default", "too_few_words")
    with pytest.raises(RecipeError, match=r"corpus\.policies\.default"):
        whatif.effect(ctx, opened, rule, text)


def test_thresholds_of_a_rule() -> None:
    text = "not 3 <= a.b < 10 and -0.5 < a.c or a.x / a.y > 2 or a.é in ['ü', 'x'] and a.d == 1e3 or a.n > 5"
    text += " and a.t != 'x'"
    found = whatif.thresholds(text)
    assert [(one.column, one.sign, one.value) for one in found] == [
        ("a.b", "≥", 3), ("a.b", "<", 10), ("a.c", ">", -0.5), ("", ">", 2), ("a.d", "=", 1000), ("a.n", ">", 5)
    ]  # fmt: skip
    assert [text[one.start : one.end] for one in found] == ["3", "10", "-0.5", "2", "1e3", "5"]
    assert whatif.moved(text, {1: "12", 4: "7"}) == text.replace("10", "12").replace("1e3", "7")
    assert whatif.thresholds("(a.b\n > 5)")[0].value == 5


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2))
def test_a_moved_number_is_the_number(values: list[float]) -> None:
    text = whatif.moved("a.b < 1 and a.c > 2", {0: repr(values[0]), 1: repr(values[1])})
    assert [one.value for one in whatif.thresholds(text)] == values
    syntax(text)


@pytest.mark.parametrize("value", ["", "x", "1e400", "nan", "1_0", "1) or (True", "0x10"])
def test_what_is_not_a_number_is_refused(value: str) -> None:
    with pytest.raises(RequestError, match="not a threshold"):
        whatif.moved("a.b < 1", {0: value})
    with pytest.raises(RequestError, match="not a threshold"):
        whatif.moved("a.b < 1", {1: "5"})

"""A recipe is checked against what the annotators really offer: names, parameters, columns, the license gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plinth.corpus.annotate.base import ANNOTATORS
from plinth.recipe.column_checks import problems_of_columns
from plinth.recipe.extension_checks import problems_of_extensions

GATE = {"reason": "licence", "drop": "not licence.permitted"}


def corpus(**changes: Any) -> dict[str, Any]:
    base = {
        "annotate": {"language": {}, "licence": {}, "gopher_quality": {}, "pii": {}},
        "buckets": {"web": {}},
        "policies": {"default": {"rules": [GATE], "edits": [{"reason": "pii", "spans": "pii.spans"}]}},
    }
    return {"corpus": {**base, **changes}}


def rules(*given: dict[str, Any], **others: Any) -> dict[str, Any]:
    return corpus(policies={"default": {"rules": [GATE, *given], **others}})


def test_a_right_corpus_has_no_problem() -> None:
    assert list(problems_of_columns(corpus())) == []
    assert list(problems_of_columns(rules({"reason": "a", "drop": "gopher_quality.word_count < 50"}))) == []


@pytest.mark.parametrize(
    ("annotate", "key", "message", "hint"),
    [
        ({"gopher_qualty": {}}, "gopher_qualty", "no such annotator", "`gopher_quality`"),
        ({"language": {"tresholds": {}}}, "language.tresholds", "unknown parameter", "`thresholds`"),
        ({"language": {"thresholds": {"de": "0.7"}}}, "language.thresholds.de", "valid number", ""),
        ({"pii": {"kinds": 20}}, "pii.kinds", "valid array", ""),
        ({"c4_lines": {"profile": "other"}}, "c4_lines.profile", "input should be", ""),
    ],
)
def test_annotators_and_their_parameters(annotate: dict[str, Any], key: str, message: str, hint: str) -> None:
    data = corpus()
    data["corpus"]["annotate"] |= annotate
    ((where, what, advice),) = problems_of_columns(data)
    assert ".".join(map(str, where)) == f"corpus.annotate.{key}"
    assert message in what
    assert hint in advice


def test_nothing_follows_from_a_misspelt_annotator() -> None:
    data = corpus()
    data["corpus"]["annotate"]["langage"] = data["corpus"]["annotate"].pop("language")
    data["corpus"]["policies"]["default"]["rules"].append({"reason": "a", "drop": 'language.label != "en"'})
    ((where, what, hint),) = problems_of_columns(data)
    assert (where, what) == (("corpus", "annotate", "langage"), "no such annotator")
    assert "`language`" in hint


@pytest.mark.parametrize("name", ["language", "licence"])
def test_annotators_that_slices_and_gates_rest_on_are_required(name: str) -> None:
    data = corpus()
    del data["corpus"]["annotate"][name]
    problems = [what for where, what, _ in problems_of_columns(data) if where == ("corpus", "annotate")]
    assert problems == [f"`{name}` is missing"]


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        ("gopher_quality.word_cont < 50", "no column 'gopher_quality.word_cont'"),
        ("c4.sentences < 5", "no column 'c4.sentences'"),  # known, but not chosen in this recipe
        ("gopher_quality.word_count <", "cannot be read"),
        ("gopher_quality.word_count + 1", "is not a condition"),
        ("language.label < 3", "types do not match"),
        ("__import__('os').system('id')", "not part of the policy language"),
    ],
)
def test_expressions_are_read_before_anything_runs(drop: str, message: str) -> None:
    ((where, what, _),) = problems_of_columns(rules({"reason": "a", "drop": drop}))
    assert where == ("corpus", "policies", "default", "rules", 1, "drop")
    assert message in what
    assert not what.startswith("rule")


def test_a_column_typo_has_a_hint() -> None:
    ((_, _, hint),) = problems_of_columns(rules({"reason": "a", "drop": "gopher_quality.word_cont < 50"}))
    assert "gopher_quality.word_count" in hint


def test_two_rules_of_one_name() -> None:
    ((where, what, _),) = problems_of_columns(rules({"reason": "licence", "drop": "pii.email > 5"}))
    assert where[-2:] == (1, "reason")
    assert "more than one rule has the reason 'licence'" in what


def test_edits_need_a_column_of_spans() -> None:
    ((where, what, hint),) = problems_of_columns(rules(edits=[{"reason": "a", "spans": "pii.email"}]))
    assert where == ("corpus", "policies", "default", "edits", 0, "spans")
    assert "not a span column" in what
    assert "pii.spans" in hint


def test_a_use_that_an_owner_forbids_is_refused() -> None:
    terms = {"train": True, "redistribute": True, "commercial": False}
    buckets = {"web": {"sources": [{"terms": terms}]}}
    assert list(problems_of_columns(corpus(buckets=buckets, uses=["redistribute"]))) == []
    ((where, what, _),) = problems_of_columns(corpus(buckets=buckets, uses=["redistribute", "commercial"]))
    assert where == ("corpus", "buckets", "web", "sources", 0, "terms", "commercial")
    assert "forbid" in what


def test_what_annotators_and_models_rest_on_must_be_there() -> None:
    used = {"language": {}, "licence": {}, "pii": {}, "url": {"lists": "blocked"}, "perplexity": {}}
    found = {where[2]: (what, hint) for where, what, hint in problems_of_columns(corpus(annotate=used))}
    assert "needs lists/blocked" in found["url"][0]
    assert "needs models/perplexity" in found["perplexity"][0]
    models = {"perplexity": {"kind": "ngram", "reference": ["wed"]}}
    ((where, what, hint),) = problems_of_columns(corpus(annotate=used, models=models, lists={"blocked": "lists"}))
    assert where == ("corpus", "models", "perplexity")
    assert what == "there is no bucket 'wed'"
    assert hint == "did you mean `web`?"


def test_no_rule_has_to_name_the_licence() -> None:
    policies = {"default": {"rules": []}, "open": {"rules": [{"reason": "licence", "drop": "not licence.permitted"}]}}
    assert list(problems_of_columns(corpus(policies=policies, buckets={"web": {}, "b": {"policy": "open"}}))) == []


@pytest.mark.parametrize("data", [{}, {"corpus": 3}, {"corpus": {"annotate": [], "policies": 1, "buckets": None}}])
def test_shapeless_data_is_left_to_the_models(data: dict[str, Any]) -> None:
    assert list(problems_of_columns(data)) == []


def test_shapeless_policies_are_left_to_the_models() -> None:
    for policies in ([], {"default": None}, {"default": {"rules": {}}}, {"default": {"rules": [3, {"drop": 4}, GATE]}}):
        assert all(
            where[:3] == ("corpus", "policies", "default")
            for where, _, _ in problems_of_columns(corpus(policies=policies))
        )


def test_every_annotator_says_what_it_is() -> None:
    for annotator in ANNOTATORS.values():
        assert annotator.description.endswith(".")
        assert len(annotator.schema) > 0


@pytest.mark.parametrize(
    ("dedup", "key", "message"),
    [
        ({"lines": {"exclude": ["wb"]}}, ("lines", "exclude", 0), "no bucket 'wb'"),
        ({"substring": {"exclude": ["web", "code"]}}, ("substring", "exclude", 1), "no bucket 'code'"),
        ({"semantic": {"buckets": ["prose"]}}, ("semantic", "buckets", 0), "no bucket 'prose'"),
        ({"semantic": {"buckets": ["web"], "vectors": "mine"}}, ("semantic", "vectors"), "no list 'mine'"),
    ],
)
def test_buckets_and_lists_of_the_cascade_are_there(dedup: dict[str, Any], key: tuple[Any, ...], message: str) -> None:
    assert list(problems_of_columns(corpus(dedup={stage: {} for stage in dedup}))) == []
    ((where, what, _),) = problems_of_columns(corpus(dedup=dedup))
    assert where == ("corpus", "dedup", *key)
    assert message in what


def test_a_package_that_cannot_be_used_is_named_at_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "acme-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[plinth.annotators]\nshout = acme_nothing:SHOUT\nc4 = acme_nothing:C4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    data = {"corpus": {"annotate": {"language": {}, "licence": {}, "fineweb": {}, "shout": {}, "c4": {}}}}
    found = {key: message for key, message, _ in problems_of_columns(data)}
    assert set(found) == {("corpus", "annotate", "shout"), ("corpus", "annotate", "c4")}
    assert "the annotator 'shout' of acme 2.0 cannot be imported" in found["corpus", "annotate", "shout"]
    assert "the annotator 'c4' exists 2 times" in found["corpus", "annotate", "c4"]


@pytest.mark.parametrize(
    ("data", "key", "message"),
    [
        ({"training": {"launch": {"kind": "slurmm"}}}, "training.launch.kind", 'found "slurmm", no such launcher'),
        (
            {"training": {"launch": {"kind": "local", "options": {"a": 1}}}},
            "training.launch.options.a",
            "unknown parameter",
        ),
        (
            {"corpus": {"buckets": {"b": {"sources": [{"kind": "text", "options": {"a": 1}}]}}}},
            "corpus.buckets.b.sources.0.options.a",
            "unknown parameter",
        ),
    ],
)
def test_kinds_and_options_that_do_not_exist(data: dict[str, Any], key: str, message: str) -> None:
    ((found, says, _),) = problems_of_extensions(data)
    assert (".".join(map(str, found)), says) == (key, message)


def test_slices_of_the_evaluation_are_read_before_anything_runs() -> None:
    """Columns that only the ledger knows are left to it."""
    right = {"short": "gopher_quality.word_count < 50", "private": "pii.spans > 0", "label": "language.label",
             "licence": "documents.licence", "copied": "near.size > 1 and language.label == 'en'"}  # fmt: skip
    assert list(problems_of_columns(corpus() | {"evaluation": {"slices": right}})) == []
    wrong = {
        "typo": "gopher_quality.word_cont < 50",
        "number": "language.score",
        "half": "pii.spans >",
        "other": "a.b > 1",
    }
    found = {
        where: (what, hint) for where, what, hint in problems_of_columns(corpus() | {"evaluation": {"slices": wrong}})
    }
    assert set(found) == {("evaluation", "slices", name) for name in wrong}
    assert found["evaluation", "slices", "typo"][1] == "did you mean 'gopher_quality.word_count'?"
    assert "write a condition" in found["evaluation", "slices", "number"][1]
    assert "cannot be read" in found["evaluation", "slices", "half"][0]

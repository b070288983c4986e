"""Rules that rest on models need evidence from outside and text to be held against; generated sets are for tests."""

from pathlib import Path
from typing import Any

import pytest

from plinth.corpus.models.examples import line
from plinth.recipe.extension_checks import generated_lists, problems_of_evidence
from plinth.recipe.recipe import Recipe

TOXIC = [{"reason": "toxic", "drop": "toxicity.final > 0.5"}]
LEARNT = {"kind": "classifier", "labelled": ["mine"], "lexicon": "toxic"}
SHA = "0" * 64


def corpus(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "annotate": {"toxicity": {}},
        "buckets": {"web": {}, "books": {}},
        "policies": {"default": {"rules": TOXIC}},
        "models": {"toxicity": LEARNT},
        "reference_buckets": ["books"],
    }
    return {**base, **changes}


def what(**changes: Any) -> list[str]:
    return [f"{message} {hint}" for _, message, hint in problems_of_evidence(corpus(**changes))]


def test_a_gate_without_evidence_is_refused() -> None:
    (found,) = what()
    assert "rule toxic drops documents by toxicity, but no independent" in found
    assert "corpus.slices.toxicity.lists" in found
    assert "not screened" in found


@pytest.mark.parametrize(
    "changes",
    [
        {"slices": {"toxicity": {"lists": ["other"]}}},
        {"models": {"toxicity": {"kind": "given", "files": "kept", "of": "classifier", "sha256": SHA}}},
        {"policies": {"default": {"rules": []}}},  # scores, and drops nothing
        {"policies": {"default": {"rules": []}, "unused": {"rules": TOXIC}}},
        {"policies": {"default": {"rules": [{"reason": "listed", "drop": "toxicity.lexicon_hits > 9"}]}}},
    ],
)
def test_what_is_evidence_or_needs_none(changes: dict[str, Any]) -> None:
    assert what(**changes) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"slices": {"toxicity": {}}}, "no independent"),  # measured on generated text alone
        ({"slices": {"toxicity": {"lists": ["mine"]}}}, "no independent"),  # on its own training data
        ({"slices": {"quality": {"lists": ["other"]}}}, "no independent"),  # another gate's
        (
            {"slices": {"toxicity": {"lists": ["other"]}}, "lists": {"mine": "a.jsonl", "other": "a.jsonl"}},
            "no independent",  # the same file under another name
        ),
        ({"models": {"toxicity": {"kind": "given", "files": "kept", "of": "classifier"}}}, "has no digest"),
        ({"slices": {"toxicity": {"lists": ["other"]}}, "reference_buckets": []}, "no trusted reference"),
        ({"policies": {"default": {"rules": [{"reason": "a", "drop": "not 0.5 >= toxicity.score"}]}}}, "rule a drops"),
    ],
)
def test_what_is_no_evidence(changes: dict[str, Any], says: str) -> None:
    assert any(says in one for one in what(**changes))


@pytest.mark.parametrize(("of", "name"), [("fasttext", "fasttext_dclm"), ("transformer", "transformer_edu")])
def test_a_ready_model_of_others_is_evidence_by_its_digest(of: str, name: str) -> None:
    given = {"kind": "given", "of": of, "files": "ready"}
    own: dict[str, Any] = {
        "annotate": {name: {"model": "ready", "target": "hq"}},
        "policies": {"default": {"rules": [{"reason": "low", "drop": f"{name}.target_score < 0.02"}]}},
    }
    assert what(**own, models={"ready": {**given, "sha256": SHA}}) == []
    (found,) = what(**own, models={"ready": given})
    assert f"rule low drops documents by {name}, but models.ready has no digest" in found
    assert "add `sha256:` to corpus.models.ready" in found
    unproven = {"kind": "classifier", "labelled": ["mine"]}
    assert "use a ready model" in what(**own, models={"ready": unproven})[0]
    assert any("no trusted reference" in one for one in what(**own, reference_buckets=[]))


def test_languages_are_no_learned_rule() -> None:
    own = {
        "annotate": {"language": {"model": "glotlid"}},
        "policies": {"default": {"rules": [{"reason": "other", "drop": 'language.label != "eng_Latn"'}]}},
        "models": {"glotlid": {"kind": "given", "of": "fasttext", "files": "glotlid", "sha256": SHA}},
        "reference_buckets": [],
    }
    assert what(**own) == []


def test_a_model_of_real_buckets_is_held_against_its_reference() -> None:
    own = {
        "annotate": {"quality_classifier": {}},
        "policies": {"default": {"rules": [{"reason": "low", "drop": "quality_classifier.final < 0.1"}]}},
        "models": {"quality": {"kind": "classifier", "reference": ["books"], "random": ["web"]}},
        "reference_buckets": [],
    }
    assert what(**own) == []


def test_generated_sets_are_refused_but_in_a_test(tmp_path: Path) -> None:
    (tmp_path / "made.jsonl").write_text(line("text", "good", "plain") * 3)
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.jsonl").write_text('{"text": "a", "label": "bad"}\n' + line("text", "good", "plain"))
    (tmp_path / "real.jsonl").write_text('{"text": "generated", "label": "bad"}\n')
    lists = {"mine": "made.jsonl", "mixed": "mixed", "real": "real.jsonl", "absent": "absent.jsonl"}
    given = corpus(
        lists=lists,
        models={"toxicity": LEARNT},
        slices={"toxicity": {"lists": ["mixed", "real", "absent"]}},
        policies={},
        permitted_licences=[],
        buckets={"books": {"description": "", "owner": "a", "sources": [SOURCE]}},
    )
    recipe = Recipe.model_construct(test=False, corpus=_corpus(given))
    assert [key for key, _, _ in generated_lists(recipe, tmp_path)] == [
        ("corpus", "lists", "mine"),
        ("corpus", "lists", "mixed"),
    ]
    assert list(generated_lists(recipe.model_copy(update={"test": True}), tmp_path)) == []


SOURCE = {
    "kind": "text", "path": "a", "licence": "MIT", "terms": {"train": True, "redistribute": True, "commercial": True},
    "domain": "a.example", "snapshot": "1",
}  # fmt: skip


def _corpus(given: dict[str, Any]) -> Any:
    return Recipe.model_fields["corpus"].annotation.model_validate(given)  # type: ignore[union-attr]

"""Gates through their annotators: exact counts on a lexicon, lists and reviewers, rules of policies, refusals."""

import json
from typing import Any

import pytest

from plinth.corpus import lists
from plinth.corpus.policy.parameters import Policy, Rule
from plinth.corpus.slices import evaluate, generate
from plinth.corpus.slices.evaluate import require_apart
from plinth.corpus.slices.measured_gates import measured_gate, rule_of
from plinth.corpus.slices.rates import GateSlices
from plinth.corpus.slices.reviews import Review
from plinth.errors import MissingError, RecipeError, SourceError
from plinth.records import Manifest
from plinth.storage.parts import read_table

TERMS = generate.invented(0)
ALONE = {"toxicity": {"model": None}}
HITS = "toxicity.lexicon_hits > 0"


def listed(ctx: Any, name: str, content: str) -> Manifest:
    (ctx.workspace.input / name).write_text(content)
    return lists.run(ctx, name, name)


def measured(tiny: Any, documents: Any = None, labels: Any = (), more: Any = None, **params: Any) -> Manifest:
    given = GateSlices.model_validate({"removes": HITS, "documents_per_slice": 12, **params})
    rule = rule_of(measured_gate("toxicity"), given, {}, {"toxicity": {}})
    resources = {"lists/toxic": listed(tiny.ctx, "toxic", generate.lexicon_file(TERMS)), **(more or {})}
    return evaluate.run(tiny.ctx, "toxicity", given, rule, ALONE, resources, documents or {}, labels)


def test_a_lexicon_finds_all_and_takes_what_is_only_reported(tiny: Any) -> None:
    made = measured(tiny)
    assert made.asset == "slices/toxicity"
    for name in ("all", *generate.SLICES):
        row = made.stats["slices"][name]
        assert row["recall"] == 1.0
        assert row["false_positive"] == pytest.approx(1 / 3, abs=1e-6)  # every third good document reports a term
    assert made.stats["made_as"]["reported"] == {"bad": 0, "documents": 24, "removed": 24}
    assert made.stats["made_as"]["disguised"] == {"bad": 1, "documents": 24, "removed": 24}
    table = read_table(tiny.ctx.store, made.parts[0])
    assert table.schema == evaluate.SCHEMA
    assert table.num_rows == 2 * 12 * len(generate.SLICES)
    assert measured(tiny).digest == made.digest
    assert measured(tiny, seed=8).digest != made.digest


def test_lists_of_the_user(tiny: Any) -> None:
    word = TERMS[0].text
    rows = [("bad", word), ("bad", "fine"), ("good", word), ("good", "fine"), ("good", "fine too")]
    said = "".join(json.dumps({"text": text, "label": label, "slice": "mine"}) + "\n" for label, text in rows)
    more = {"lists/mine": listed(tiny.ctx, "mine", said)}
    made = measured(tiny, more=more, lists=["mine"], documents_per_slice=0)
    row = made.stats["slices"]["mine"]
    assert (row["recall"], row["false_positive"]) == (0.5, pytest.approx(1 / 3, abs=1e-6))
    assert made.stats["origins"] == {"list/mine": 5}
    wrong = {"lists/mine": listed(tiny.ctx, "mine", '{"text": "a", "label": "maybe"}')}
    with pytest.raises(SourceError, match="example 1 has an unknown label"):
        measured(tiny, more=wrong, lists=["mine"])
    with pytest.raises(MissingError, match="lists/other"):
        measured(tiny, lists=["other"])


def test_text_that_a_model_learns_from_is_no_evidence_about_it(tiny: Any) -> None:
    """Whatever its list is called, and whatever else is in it."""

    def labelled(name: str, numbers: range) -> dict[str, Manifest]:
        said = (json.dumps({"text": f"text  number {n}", "label": "good"}) for n in numbers)
        return {f"lists/{name}": listed(tiny.ctx, name, "\n".join(said))}

    learnt = labelled("mine", range(200))
    require_apart(tiny.ctx.store, labelled("other", range(199, 400)), learnt, "toxicity")  # one of 201
    with pytest.raises(SourceError, match=r"(?s)lists/copy.*3 of its 203 texts are in lists/mine"):
        require_apart(tiny.ctx.store, labelled("copy", range(197, 400)), learnt, "toxicity")


def test_what_reviewers_said_of_documents_of_the_corpus(tiny: Any) -> None:
    docs = [tiny.Doc(f"a {TERMS[0].text} here"), tiny.Doc("nothing here"), tiny.Doc(f"{TERMS[0].text} too")]
    documents = tiny.corpus({"web": [[docs[0]], [docs[1], docs[2]]]}).documents

    def said(doc: Any, label: str, reason: str = "toxicity") -> Review:
        return Review(id=doc.id.hex(), reason=reason, label=label, reviewer="ada", time="2026-01-01T00:00:00Z")

    unknown = Review(id="0" * 32, reason="toxicity", label="bad", reviewer="ada", time="2026-01-01T00:00:00Z")
    labels = [said(docs[0], "bad"), said(docs[1], "bad"), said(docs[2], "good"), said(docs[2], "bad", "spam"), unknown]
    made = measured(tiny, documents, labels, documents_per_slice=0)
    row = made.stats["slices"]["review/web"]
    assert (row["bad"], row["good"], row["recall"], row["false_positive"]) == (2, 1, 0.5, 1.0)
    assert made.stats["reviews_without_document"] == 1
    assert set(made.inputs) == {"lists/toxic", "web/documents"}
    assert measured(tiny, documents, labels, documents_per_slice=0, reviews=False).stats["slices"] == {}


def test_rules_come_from_the_policy() -> None:
    policies = {
        "default": Policy(
            rules=(
                Rule(reason="toxic", drop="toxicity.final > 0.5"),
                Rule(reason="mild", drop="toxicity.lexicon_hits > 9 and c4.sentences < 2"),
                Rule(reason="short", drop="c4.sentences < 3"),
            )
        )
    }
    rule = rule_of(measured_gate("toxicity"), GateSlices(), policies, {"toxicity": {}, "c4": {}})
    assert rule.reasons == ("toxic", "mild", "toxicity")
    assert rule.annotators == ("c4", "toxicity")


@pytest.mark.parametrize(
    ("params", "annotators", "what"),
    [
        ({}, ("c4",), "annotator is not in the recipe"),
        ({}, ("toxicity",), "no rule of policy default reads"),
        ({"policy": "strict"}, ("toxicity",), "no policy 'strict'"),
        ({"removes": "toxicity.finale > 1"}, ("toxicity",), "no column"),
        ({"removes": "toxicity.final > 0.5 and documents.mime == 'a'"}, ("toxicity",), "reads documents.mime"),
    ],
)
def test_gates_that_cannot_be_measured(params: dict[str, Any], annotators: tuple[str, ...], what: str) -> None:
    given = GateSlices.model_validate(params)
    with pytest.raises(RecipeError, match=what):
        rule_of(measured_gate("toxicity"), given, {"default": Policy()}, dict.fromkeys(annotators))
    with pytest.raises(RecipeError, match="did you mean 'toxicity'"):
        measured_gate("toxcity")

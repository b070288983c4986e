"""Removal rates of learned rules: exact counts on sidecars written by hand, the bound, and a gate that learned from its
own generator, measured on independent text."""

import importlib.metadata
import json
from typing import Any

import pyarrow as pa
import pytest

from plinth.compute.context import manifest
from plinth.corpus import annotate, lists, models
from plinth.corpus.annotate.learned import TOXICITY_SCHEMA
from plinth.corpus.models.examples import line, marked_rows
from plinth.corpus.policy.parameters import Policy, Rule
from plinth.corpus.slices import evaluate, generate, removal_rates
from plinth.corpus.slices.measured_gates import measured_gate, rule_of
from plinth.corpus.slices.rates import GateSlices
from plinth.corpus.slices.removal_rates import LearnedRule, learned_rules, trusted
from plinth.errors import RemovalRateError
from plinth.records import Manifest, Step
from plinth.storage.parts import write_table

KIND = "You are a kind friend and I hope you have a lovely day"
ANNOTATE: dict[str, dict[str, Any]] = {"toxicity": {}, "gopher_quality": {}, "perplexity": {}}


def rules(**drops: str) -> tuple[LearnedRule, ...]:
    policy = Policy(rules=tuple(Rule(reason=reason, drop=drop) for reason, drop in drops.items()))
    return learned_rules({"crawl": policy, "other": policy}, ANNOTATE)


def sidecar(tiny: Any, bucket: str, finals: list[list[float]]) -> Manifest:
    nothing = {"lexicon_hits": 0, "lexicon_density": 0.0, "label": "clean", "spans": []}
    parts = [
        write_table(
            tiny.ctx.store,
            f"part-{at:05d}.parquet",
            pa.Table.from_pylist([nothing | {"final": final} for final in some], TOXICITY_SCHEMA),
        )
        for at, some in enumerate(finals)
    ]
    return manifest(f"{bucket}/toxicity", Step(name="test", version="1"), {}, parts)


@pytest.fixture
def corpus(tiny: Any) -> Any:
    """Two buckets; the rule takes 3 of 6 documents of `web` and 1 of 4 of `books`, a long one."""
    texts = {"web": [["a", "bb", "ccc"], ["dddd", "e", "f"]], "books": [["g", "h", "i", "j" * 97]]}
    made = tiny.corpus({name: [[tiny.Doc(text) for text in part] for part in parts] for name, parts in texts.items()})
    finals = {"web": [[0.9, 0.1, 0.8], [0.7, 0.5, 0.2]], "books": [[0.1, 0.2, 0.3, 0.6]]}
    made.sides = {"toxicity": {name: sidecar(tiny, name, one) for name, one in finals.items()}}
    return made


def test_rules_that_rest_on_models_are_found() -> None:
    found = rules(
        toxic="toxicity.final > 0.5",
        listed="toxicity.lexicon_hits > 3",  # of a lexicon, which learns nothing
        short="gopher_quality.word_count < 5",
        tail='perplexity.band == "tail" and toxicity.score > 0.1',
    )
    assert [(rule.policy, rule.reason, rule.annotators) for rule in found] == [
        ("crawl", "toxic", ("toxicity",)),
        ("crawl", "tail", ("perplexity", "toxicity")),
        ("other", "toxic", ("toxicity",)),
        ("other", "tail", ("perplexity", "toxicity")),
    ]


def test_trusted_buckets_are_those_named_or_those_that_models_take() -> None:
    named = {"quality": {"reference": ["books", "wiki"]}, "perplexity": {"reference": ["wiki"]}, "toxicity": {}}
    assert trusted((), named) == ("books", "wiki")
    assert trusted(("web",), named) == ("web",)
    assert trusted((), {"toxicity": {"labelled": ["mine"]}}) == ()


def test_counts_by_bucket(tiny: Any, corpus: Any) -> None:
    made = removal_rates.run(tiny.ctx, rules(toxic="toxicity.final > 0.5"), corpus.documents, corpus.sides)
    (row,) = made.stats["rules"]  # of two policies with one rule
    assert (row["reason"], row["policies"]) == ("toxic", ["crawl", "other"])
    assert row["buckets"] == {
        "books": {"documents": 4, "fired": 1, "bytes": 100, "fired_bytes": 97},
        "web": {"documents": 6, "fired": 3, "bytes": 12, "fired_bytes": 1 + 3 + 4},
    }
    shown = removal_rates.samples(tiny.ctx, made, corpus.documents, corpus.sides, 0, ["web"], 10)
    assert {one["excerpt"]: one["values"] for one in shown} == {
        "a": {"toxicity.final": 0.9}, "ccc": {"toxicity.final": 0.8}, "dddd": {"toxicity.final": 0.7}
    }  # fmt: skip
    assert all(one["reason"] == "toxic" and one["label"] is None for one in shown)


@pytest.mark.parametrize(
    ("bucket", "bound", "stops"),
    [("books", 0.5, True), ("books", 0.97, False), ("web", 0.6, True), ("web", 0.67, False), ("books", 0.0, True)],
)
def test_the_bound_holds_for_documents_and_bytes(
    tiny: Any, corpus: Any, bucket: str, bound: float, stops: bool
) -> None:
    made = removal_rates.run(tiny.ctx, rules(toxic="toxicity.final > 0.5"), corpus.documents, corpus.sides)
    if not stops:
        return removal_rates.require_bound(tiny.ctx, made, corpus.documents, [bucket], bound)
    with pytest.raises(RemovalRateError, match=f"rule toxic .* of the bucket {bucket}") as caught:
        removal_rates.require_bound(tiny.ctx, made, corpus.documents, [bucket], bound)
    assert f"plinth corpus policy removal --reason toxic --bucket {bucket}" in str(caught.value.remedy)
    assert "for example" in str(caught.value.found)
    return None


def test_nothing_is_read_again(tiny: Any, corpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = removal_rates.run(tiny.ctx, rules(toxic="toxicity.final > 0.5"), corpus.documents, corpus.sides)
    monkeypatch.setattr(removal_rates, "_measure", None)
    again = removal_rates.run(tiny.ctx, rules(toxic="toxicity.final > 0.5"), corpus.documents, corpus.sides)
    assert again.digest == first.digest


def descriptions() -> list[str]:
    """Long descriptions and licenses of the installed packages."""
    found = []
    for one in importlib.metadata.distributions():
        texts = [str(one.metadata.get_payload() or "")]
        for file in one.files or ():
            if file.name.upper().startswith(("LICENSE", "COPYING", "README")) and ".dist-info" in str(file):
                texts.append(file.locate().read_text(encoding="utf-8", errors="replace"))
        found += [text for text in texts if len(text.split()) > 30]
    return sorted(set(found))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_gate_that_learnt_from_its_own_generator_is_stopped_by_text_that_nobody_here_wrote(tiny: Any) -> None:
    """It passes the slices of the same generator, and takes kind sentences and licenses for insults."""
    ctx, terms = tiny.ctx, generate.invented(0)
    ctx.workspace.input.mkdir(exist_ok=True)
    rows = generate.toxicity(1, 150, terms, "train")
    marked = "".join(line(row.text, "bad" if row.bad else "good", row.slice) for row in rows)
    (ctx.workspace.input / "toxic_set").write_text(marked)
    (ctx.workspace.input / "toxic").write_text(generate.lexicon_file(terms))
    assert marked_rows(ctx.workspace.input / "toxic_set", "toxic_set") == len(rows)
    given = {name: lists.run(ctx, name, name) for name in ("toxic_set", "toxic")}
    raw = {"kind": "classifier", "labelled": ["toxic_set"], "lexicon": "toxic", "window": 64}
    resources = {"models/toxicity": models.train(ctx, "toxicity", raw, {}, given), "lists/toxic": given["toxic"]}

    params = GateSlices(removes="toxicity.final > 0.5", documents_per_slice=40)
    rule = rule_of(measured_gate("toxicity"), params, {}, {"toxicity": {}})
    measured = evaluate.run(ctx, "toxicity", params, rule, {"toxicity": {}}, resources, {})
    assert measured.stats["slices"]["all"]["recall"] > 0.95
    assert measured.stats["slices"]["all"]["false_positive"] < 0.05
    assert measured.stats["real"] == {"good": 0, "bad": 0}

    texts = descriptions()
    assert len(texts) >= 100
    documents = tiny.corpus({"docs": [[tiny.Doc(text) for text in texts]], "said": [[tiny.Doc(KIND)]]}).documents
    sides = {"toxicity": {b: annotate.run(ctx, b, "toxicity", {}, one, resources) for b, one in documents.items()}}
    made = removal_rates.run(ctx, rules(toxic="toxicity.final > 0.5"), documents, sides)
    counts = made.stats["rules"][0]["buckets"]
    print(json.dumps(counts))
    assert counts["said"]["fired"] == 1
    for bucket in ("docs", "said"):
        with pytest.raises(RemovalRateError):
            removal_rates.require_bound(ctx, made, documents, [bucket], 0.01)

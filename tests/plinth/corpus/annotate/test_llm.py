"""Columns of a language model's answers."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.corpus import annotate
from plinth.corpus.annotate.base import available
from plinth.corpus.annotate.llm import LlmParams, parse
from plinth.corpus.llm.parameters import Endpoint
from plinth.corpus.policy import policy
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.slices.removal_rates import learned_columns
from plinth.errors import RecipeError, RejectRateError
from plinth.records import Manifest
from plinth.storage.parts import read_table
from tests.llm_server import MODEL, Answer, Llm, llm_server
from tests.plinth.corpus.llm.prompts import prompt_list
from tests.rights import MIT

COLUMNS = {
    "score": {"type": "integer", "minimum": 0, "maximum": 5},
    "length": {"type": "number"},
    "useful": {"type": "boolean"},
    "topic": {"type": "string", "enum": ["science", "other"]},
}
RAW = {"endpoint": "local", "model": MODEL, "prompt": "rate", "columns": COLUMNS, "max_reject_rate": 1.0}
GOOD = {"score": 4, "length": 1.5, "useful": True, "topic": "science"}


def sidecar(corpus: Any, llm: Llm, name: str = "llm", **changes: Any) -> Manifest:
    ctx = Context(corpus.ctx.workspace)
    endpoints = {"local": Endpoint(url=llm.url, backoff_s=0.0, attempts=2)}
    resources = {"lists/rate": prompt_list(ctx)}
    return annotate.run(ctx, "web", name, RAW | changes, corpus.documents["web"], resources, endpoints=endpoints)


ANSWERS: dict[str, tuple[Answer, str | None]] = {
    "good": (json.dumps(GOOD), None),
    "fenced": (f"```json\n{json.dumps(GOOD)}\n```", None),
    "whole number": (json.dumps(GOOD | {"score": 4.0, "length": 2}), None),
    "prose": ("The score is 4.", "not_json"),
    "html": ("<html><b>4</b></html>", "not_json"),
    "twice": ('{"score": 1, "score": 2}', "not_json"),
    "not a number": (json.dumps(GOOD | {"length": float("nan")}), "not_json"),
    "deep": ("[" * 20_000, "not_json"),
    "list": ("[4]", "not_json"),
    "too high": (json.dumps(GOOD | {"score": 6}), "schema"),
    "text": (json.dumps(GOOD | {"score": "4"}), "schema"),
    "true": (json.dumps(GOOD | {"score": True}), "schema"),
    "missing": ('{"score": 4}', "schema"),
    "more": (json.dumps(GOOD | {"why": "x"}), "schema"),
    "other topic": (json.dumps(GOOD | {"topic": "sports"}), "schema"),
    "infinite": (json.dumps(GOOD).replace("1.5", "1e999"), "schema"),
    "cut": ({"content": json.dumps(GOOD), "finish": "length"}, "truncated"),
}


def test_answers_become_typed_columns_and_others_have_a_reason(tiny: Any) -> None:
    names = list(ANSWERS)
    corpus = tiny.corpus({"web": [[tiny.Doc(name) for name in names[:7]], [tiny.Doc(name) for name in names[7:]]]})
    with llm_server(lambda prompt: ANSWERS.get(prompt[5:-1], ("x", None))[0]) as llm:
        made = sidecar(corpus, llm)
        form = llm.bodies[-1]["response_format"]["json_schema"]
        with pytest.raises(RejectRateError, match="82"):
            sidecar(corpus, llm, max_reject_rate=0.5)
    table = pa.concat_tables(read_table(corpus.ctx.store, part) for part in made.parts)
    assert [str(field.type) for field in table.schema] == ["int64", "double", "bool", "string", "string"]
    found = dict(zip(names, table.to_pylist(), strict=True))
    assert {name: row["reason"] for name, row in found.items()} == {name: why for name, (_, why) in ANSWERS.items()}
    assert found["good"] == found["fenced"] == GOOD | {"reason": None}
    assert found["whole number"] == GOOD | {"length": 2.0, "reason": None}
    assert all(row["score"] is None for row in found.values() if row["reason"])
    assert made.stats["columns"]["score"] == {"values": 3, "nulls": 14, "sum": 12.0, "min": 4, "max": 4, "mean": 4.0}
    assert made.stats["labels"]["reason"] == {"None": 3, "not_json": 6, "schema": 7, "truncated": 1}
    assert form["strict"] is True
    assert form["schema"]["properties"]["score"] == {"type": "integer", "minimum": 0, "maximum": 5}
    assert form["schema"]["required"] == list(COLUMNS)
    answers = corpus.ctx.refs.load(made.inputs["web/answers"])
    assert answers.stats["rejects"] == {"not_json": 6, "schema": 7, "truncated": 1}
    assert set(answers.inputs) == {"web/documents", "lists/rate"}


def test_a_policy_reads_the_columns_and_nulls_match_no_rule(tiny: Any) -> None:
    corpus = tiny.corpus({"web": [[tiny.Doc("high"), tiny.Doc("low"), tiny.Doc("broken")]]})
    scores = {"high": 5, "low": 1}

    def answer(prompt: str) -> str:
        score = scores.get(prompt[5:-1])
        return "no" if score is None else json.dumps(GOOD | {"score": score})

    with llm_server(answer) as llm:
        made = sidecar(corpus, llm, "llm_edu")
    assert made.asset == "web/llm_edu"
    rules = Policy.model_validate({"rules": [{"reason": "dull", "drop": "llm_edu.score < 3"}]})
    judged = policy.run(corpus.ctx, "web", rules, corpus.documents["web"], {"llm_edu": made}, MIT)
    rows = read_table(corpus.ctx.store, judged.parts[0]).to_pylist()
    assert [row["fired"] for row in rows] == [[], ["dull"], []]


def test_columns_are_known_from_the_recipe() -> None:
    ((name, schema),) = available({"llm": RAW})
    assert name == "llm"
    assert schema.names == [*COLUMNS, "reason"]
    assert learned_columns({"llm": RAW}) == {f"llm.{column}" for column in schema.names}
    assert available({"language": {}}) == ("language",)


@pytest.mark.parametrize(
    "columns",
    [{}, {"reason": {"type": "boolean"}}, {"Score": {"type": "integer"}}, {"topic": {"type": "string"}},
     {"score": {"type": "integer", "enum": ["a"]}}, {"ok": {"type": "boolean", "minimum": 0}},
     {"x": {"type": "array"}}],
)  # fmt: skip
def test_impossible_columns_are_refused(columns: Any) -> None:
    with pytest.raises(ValidationError):
        LlmParams.model_validate(RAW | {"columns": columns})


def test_an_unknown_endpoint_is_named(tiny: Any) -> None:
    corpus = tiny.corpus({"web": [[tiny.Doc("a")]]})
    with llm_server(str.upper) as llm, pytest.raises(RecipeError, match="no endpoint 'remote'"):
        sidecar(corpus, llm, endpoint="remote")


def test_integers_that_do_not_fit_are_rejects(tiny: Any) -> None:
    corpus = tiny.corpus({"web": [[tiny.Doc("a")]]})
    with llm_server(lambda prompt: '{"n": 9223372036854775808}') as llm:
        made = sidecar(corpus, llm, columns={"n": {"type": "integer"}})
    assert made.stats["labels"]["reason"] == {"schema": 1}
    assert parse('```json\n{"a": 1}```') == {"a": 1}

"""Endpoints, prompts, columns and rewritten buckets of a recipe are checked before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from plinth.errors import RecipeError
from plinth.recipe.load import check, load
from plinth_assets.catalog import stages
from tests.plinth.recipe.test_load import RIGHT

LLM = {"endpoint": "local", "model": "m", "prompt": "rate", "columns": {"score": {"type": "integer"}}}
TERMS = {"train": True, "redistribute": True, "commercial": True}
RETOLD = {
    "description": "Retold.",
    "owner": "corpus@example.org",
    "sources": [{"kind": "rewrite", "path": "web", "licence": "per-document", "terms": TERMS, "domain": "x",
                 "snapshot": "s", "options": {"endpoint": "local", "model": "m", "prompt": "rate"}}],
}  # fmt: skip


def recipe(**changes: Any) -> dict[str, Any]:
    """The right recipe with a model's labels, a rule over them, a student, and a rewritten bucket."""
    data: dict[str, Any] = yaml.safe_load(RIGHT)
    corpus = data["corpus"] | {"endpoints": {"local": {"url": "http://127.0.0.1:1/v1"}}, "lists": {"rate": "rate.md"}}
    corpus["annotate"] = corpus["annotate"] | {"llm": LLM, "student": {}}
    corpus["models"] = {"student": {"kind": "student", "buckets": ["web"], "positive": "llm.score >= 3"}}
    corpus["buckets"] = corpus["buckets"] | {"retold": RETOLD}
    corpus["reference_buckets"] = ["web"]
    corpus["policies"]["default"]["rules"] += [{"reason": "dull", "drop": "llm.score < 2 or student.score < 0.1"}]
    data["corpus"] = corpus | changes
    return data


def written(tmp_path: Path, data: dict[str, Any]) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def retold(**source: Any) -> dict[str, Any]:
    """Change the source of the rewritten bucket."""
    one = RETOLD | {"sources": [{**dict(RETOLD["sources"][0]), **source}]}  # type: ignore[arg-type]
    return {"buckets": recipe()["corpus"]["buckets"] | {"retold": one}}


def test_the_stages_follow_each_other(tmp_path: Path) -> None:
    path = written(tmp_path, recipe())
    assert check(path)[1] == []
    order = {stage.asset: number for number, stage in enumerate(stages(load(path)))}
    chain = ("lists/rate", "web/llm", "models/student", "web/student", "removal_rates", "web/policy", "retold/sampled",
             "retold/sources", "retold/documents", "retold/llm", "retold/verdicts")  # fmt: skip
    assert sorted(chain, key=order.__getitem__) == list(chain)
    assert order["web/verdicts"] < order["retold/verdicts"]
    by_name = {stage.asset: stage for stage in stages(load(path))}
    assert "endpoints" not in str([stage.params for stage in by_name.values()])
    other = recipe(endpoints={"local": {"url": "https://llm.example.org/v1", "concurrency": 99, "max_tokens": 5}})
    moved = {stage.asset: stage.code_version for stage in stages(load(written(tmp_path, other)))}
    assert moved == {name: stage.code_version for name, stage in by_name.items()}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "endpoint": ({"endpoints": {}}, "endpoint"),
    "prompt": ({"lists": {}}, "rate"),
    "key in clear": ({"endpoints": {"local": {"url": "http://llm.example.org/v1", "key": "MY_API_KEY"}}}, "TLS"),
    "other secret": ({"endpoints": {"local": {"url": "https://a.example/v1", "key": "AWS_SECRET_ACCESS_KEY"}}}, "key"),
    "free money": ({"endpoints": {"local": {"url": "http://127.0.0.1:1/v1", "max_money": 3}}}, "input_price"),
    "origin": (retold(path="wab"), "is not a bucket"),
    "own origin": (retold(path="retold"), "is itself rewritten"),
    "licence": (retold(licence="MIT"), "per-document"),
    "option": (retold(options={"endpoint": "local", "model": "m", "prompt": "other"}), "'other'"),
    "unknown option": (retold(options={"endpoint": "local", "model": "m", "prompt": "rate", "style": 1}), "style"),
    "reference": ({"reference_buckets": ["retold"]}, "reference"),
    "column": ({"policies": {"default": {"rules": [{"reason": "a", "drop": "llm.grade < 2"}]}}}, "llm.grade"),
    "type": ({"policies": {"default": {"rules": [{"reason": "a", "drop": "llm.score == 'x'"}]}}}, "score"),
    "annotator": ({"models": {"student": {"kind": "student", "buckets": ["web"], "positive": "lim.a > 1"}}}, "lim"),
    "circle": (
        {"models": {"student": {"kind": "student", "buckets": ["retold"], "positive": "llm.score > 1"}}},
        "need",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_named(tmp_path: Path, name: str) -> None:
    changes, found = WRONG[name]
    path = written(tmp_path, recipe(**changes))
    try:
        problems = [str(one) for one in check(path)[1]]
        if not problems:
            stages(load(path))
    except RecipeError as error:
        problems = [str(error)]
    assert any(found in one for one in problems), problems


def test_terms_pass_to_what_is_rewritten(tmp_path: Path) -> None:
    data = recipe()
    data["corpus"]["buckets"]["web"]["sources"][0]["terms"] = TERMS | {"commercial": False}
    assert "the terms of a source of web forbid it" in str(check(written(tmp_path, data))[1])
    data["corpus"]["buckets"]["retold"]["sources"][0]["terms"] = TERMS | {"commercial": False}
    assert check(written(tmp_path, data))[1] == []

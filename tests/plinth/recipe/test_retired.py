"""A recipe of 0.3 with a retired key gets one error that names the replacement."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from plinth.corpus.annotate.base import ANNOTATORS
from plinth.corpus.models import trainers
from plinth.launch.parameters import Launch
from plinth.recipe.extension_checks import ADVICE, MESSAGE, REMOVED, retired, without_defaults
from plinth.recipe.load import check, fingerprint, load, written
from plinth.recipe.recipe import Recipe
from plinth.recipe.reference import _inner
from plinth.records import is_internal
from plinth_jobs.recipes import FOLDER

LEARNT = {"kind": "classifier", "reference": ["web"], "random": ["prose"]}


def with_keys(tmp_path: Path, keys: dict[str, Any]) -> Path:
    """The tiny recipe with more keys."""
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"extends": "tiny.yaml", **keys}))
    return path


@pytest.mark.parametrize(
    ("keys", "key", "hint"),
    [
        ({"training": {"optimizer": {"warmup_tokens": 100}}}, "training.optimizer.warmup_tokens", "`warmup_fraction`"),
        ({"training": {"optimizer": {"eps": "x"}}}, "training.optimizer.eps", "the value is fixed at `1e-08`"),
        (
            {"training": {"batch_schedule": [{"from_tokens": 640, "global_batch_sequences": 16}]}},
            "training.batch_schedule",
            "`changes: [{from_step: …, global_batch_sequences: …}]`",
        ),
        ({"training": {"parallel": {"loss_scale": {"static": 1.0}}}}, "training.parallel.loss_scale", "its defaults"),
        ({"corpus": {"dedup": {"lines": {"edge_lines": 4}}}}, "corpus.dedup.lines.edge_lines", "remove this key"),
        ({"corpus": {"annotate": {"licence": {"permitted": ["MIT"]}}}}, "corpus.annotate.licence.permitted", "write `"),
        ({"corpus": {"annotate": {"language": {"min_score": 0.4}}}}, "corpus.annotate.language.min_score", "`0.5`"),
        (
            {"corpus": {"models": {"quality": {**LEARNT, "bits": 18}}}},
            "corpus.models.quality.bits",
            "fixed at `20`",
        ),
        (
            {"corpus": {"documents": {"extraction": {"engine": "trafilatura"}}}},
            "corpus.documents.extraction.engine",
            'write `extraction: "trafilatura"`',
        ),
        ({"training": {"guard": {"loss_spike": {"action": "skip"}}}}, "training.guard.loss_spike.action", "write"),
        ({"training": {"guard": {"loss_spike": {"sigmas": 7.0}}}}, "training.guard.loss_spike.sigmas", "at `6.0`"),
        ({"training": {"launch": {"ray": {"cpus": 4}}}}, "training.launch.ray.cpus", "`resources: {CPU: …}`"),
        ({"corpus": {"protected": {"families": {}}}}, "corpus.protected.families", "`deny`"),
    ],
)
def test_one_error_says_what_to_write(tmp_path: Path, keys: dict[str, Any], key: str, hint: str) -> None:
    _, problems = check(with_keys(tmp_path, keys), FOLDER)
    assert [(problem.key, problem.message) for problem in problems] == [(key, MESSAGE)]
    assert hint in problems[0].hint


def test_a_value_of_another_type_is_named_by_the_key_of_its_section(tmp_path: Path) -> None:
    wrong = {"corpus": {"documents": {"extraction": "boilerpipe"}}, "training": {"model": {"mup": 7}}}
    _, problems = check(with_keys(tmp_path, wrong), FOLDER)
    assert [problem.key for problem in problems] == ["corpus.documents.extraction", "training.model.mup"]


#: Keys that stand for parameters of other names or shapes.
SHORT = {
    "corpus": {
        "documents": {"extraction": "trafilatura"},
        "buckets": {
            "prose": {
                "description": "Articles.",
                "owner": "team",
                "sources": [
                    {
                        "kind": "jsonl",
                        "path": "a",
                        "licence": "MIT",
                        "terms": {"train": True, "redistribute": True, "commercial": True},
                        "domain": "a",
                        "snapshot": "1",
                        "suffixes": [".jsonl"],
                        "fields": {"text": "body", "uri": "meta.url"},
                    }
                ],
            }
        },
        "protected": {"sets": {"quiz": {"path": "q", "deny": ["quiz.example"]}}},
    },
    "training": {
        "model": {"mup": 64},
        "guard": {"loss_spike": "skip", "window_steps": 48},
        "stopping": {"plateau": 1000},
    },
}


def test_short_keys_fill_in_the_parameters(tmp_path: Path) -> None:
    recipe = load(with_keys(tmp_path, SHORT), FOLDER)
    source, guard = recipe.corpus.buckets["prose"].sources[0], recipe.training.guard
    assert (source.text_field, source.uri_field, source.date_field) == ("body", "meta.url", "")
    assert "fields" not in source.model_dump()
    assert recipe.corpus.protected.families["quiz"].deny == ("quiz.example",)
    assert recipe.corpus.documents.model_dump()["extraction"]["engine"] == "trafilatura"
    assert recipe.training.model.mup is not None
    assert recipe.training.model.mup.base_dim == 64
    assert (guard.loss_spike.action, guard.loss_spike.sigmas, guard.min_steps) == ("skip", 6.0, 12)
    assert recipe.training.stopping.plateau is not None
    assert recipe.training.stopping.plateau.window_tokens == 1000


@pytest.mark.parametrize("defaults", [True, False])
def test_short_keys_are_written_as_they_were_given(tmp_path: Path, defaults: bool) -> None:
    recipe = load(with_keys(tmp_path, SHORT), FOLDER)
    data = written(recipe, defaults=defaults)
    assert data["training"]["guard"]["loss_spike"] == "skip"
    again = tmp_path / "again.yaml"
    again.write_text(json.dumps(data))
    assert fingerprint(load(again)) == fingerprint(recipe)


def test_a_dump_by_0_3_is_a_recipe_again() -> None:
    old = {
        "corpus": {"documents": {"extraction": {"engine": "trafilatura", "seconds_per_page": 5.0}}},
        "training": {
            "guard": {"nonfinite": {"action": "stop", "confirmations": 1}, "loss_spike": {"sigmas": 7.0}},
            "launch": {"ray": {"cpus": 1.0, "gpus": 2.0}},
            "model": {"mup": None},
        },
    }
    assert without_defaults(Recipe, old) == {
        "corpus": {"documents": {"extraction": "trafilatura"}},
        "training": {
            "guard": {"nonfinite": "stop", "loss_spike": {"sigmas": 7.0}},  # refused: 7 is not the default
            "launch": {"ray": {"gpus": 2.0}},
            "model": {"mup": None},
        },
    }


def models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """A model and all that its fields hold."""
    inner = [found for field in model.model_fields.values() if (found := _inner(field.annotation)[0]) is not None]
    return [model, *(one for each in inner for one in models(each))]


def test_every_advice_is_about_an_internal_parameter() -> None:
    tops = [Recipe, *(one.params for one in ANNOTATORS.values()), *(one.params for one in trainers().values())]
    internal = {name for top in tops for one in models(top) for name, f in one.model_fields.items() if is_internal(f)}
    assert {key.rpartition(".")[2] for key in ADVICE} <= internal
    for section, name in (key.split(".") for key in REMOVED):
        fields = Launch.model_fields | {"release": Recipe.model_fields["release"]}
        model, _ = _inner(fields[section].annotation)
        assert model is not None
        assert name not in model.model_fields


def test_the_guides_set_no_key_that_is_gone() -> None:
    root = FOLDER.parents[2]
    seen = 0
    for page in (root / "README.md", *(root / "docs").glob("*.md")):
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), flags=re.DOTALL):
            try:
                data = yaml.safe_load(block)
            except yaml.YAMLError:  # a piece of a recipe, with an ellipsis
                continue
            seen += 1
            assert not list(retired(Recipe, data)), page.name
    assert seen > 20


def test_an_internal_parameter_stays_in_the_dump() -> None:
    recipe = load(FOLDER / "tiny.yaml")
    dump = recipe.model_dump(mode="json")
    assert dump["training"]["optimizer"]["warmup_tokens"] is None
    assert dump["corpus"]["contamination"]["ngram_words"] == 13
    assert dump["training"]["guard"]["loss_spike"]["confirmations"] == 2


@pytest.mark.parametrize("defaults", [True, False])
@pytest.mark.parametrize("name", ["tiny", "demo"])
def test_what_is_written_loads_as_the_same_recipe(tmp_path: Path, name: str, defaults: bool) -> None:
    recipe = load(FOLDER / f"{name}.yaml")
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps(written(recipe, defaults=defaults)))
    assert fingerprint(load(path)) == fingerprint(recipe)
    assert not list(retired(Recipe, written(recipe)))


def test_a_preset_is_written_as_what_it_stands_for(tmp_path: Path) -> None:
    keys = {"corpus": {"dedup": {"minhash": {"preset": "marin"}}}, "training": {"model": {"preset": "1m"}}}
    recipe = load(with_keys(tmp_path, keys), FOLDER)
    again = tmp_path / "again.yaml"
    again.write_text(json.dumps(written(recipe, defaults=False)))
    assert fingerprint(load(again)) == fingerprint(recipe)

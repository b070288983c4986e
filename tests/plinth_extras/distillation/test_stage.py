"""A recipe with a teacher: its stages in order, and what they make of real tokens, by the teacher's vocabulary."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.model.decoder import build
from plinth.model.parameters import Model
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.shards import shards
from plinth.training import initial
from plinth_assets.catalog import selected, stages
from plinth_extras.distillation.stored_logits import StoredLogits
from plinth_jobs.recipes import load
from tests.model_folder import byte_level, save_folder

RECIPE = Path(__file__).parents[3] / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"
TEACHER = Model(layers=1, dim=32, heads=4, kv_heads=2, ffn_dim=48, tied_embeddings=False)


def recipe(**distillation: object) -> Recipe:
    """The tiny recipe on prose alone, taught by a release."""
    given = load(RECIPE).model_dump(mode="json", exclude_unset=True)
    given["corpus"]["buckets"] = {"prose": given["corpus"]["buckets"]["prose"]}
    given["mixture"] |= {"total_tokens": 640, "phases": [{"name": "one", "fraction": 1, "weights": {"prose": 1}}]}
    given["mixture"]["max_epochs"] = 50
    given["training"]["distillation"] = distillation
    return Recipe.model_validate(given | {"tokenizer": {"kind": "teacher"}})


def test_a_student_keeps_its_teachers_vocabulary_and_learns_from_stored_logits(tmp_path: Path) -> None:
    asked = recipe(teacher="large@champion", top_k=4)
    ours = {stage.asset: stage for stage in stages(asked)}
    needed = [stage.asset for stage in selected(tuple(ours.values()), ("run",))]
    assert needed.index("teacher") < needed.index("tokenizer") < needed.index("teacher_logits") < needed.index("run")
    assert ours["tokenizer"].deps == ("teacher",)
    assert {"teacher", "teacher_logits"} <= set(ours["run"].deps)
    assert "teacher_logits" not in {stage.asset for stage in stages(recipe(teacher="large@champion"))}

    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    words, folder = [f"the river {n} and the bridge" for n in range(60)], tmp_path / "teacher"
    vocabulary = byte_level(words, 270)
    save_folder(folder, build(TEACHER, vocabulary.get_vocab_size(), 1), TEACHER, vocabulary, 64)
    made = {"teacher": initial.of_folder(ctx, folder, "MIT", "teacher")}
    made["tokenizer"] = ours["tokenizer"].make(ctx, made, print)
    assert made["tokenizer"].inputs == {"teacher": made["teacher"].digest}
    made["prose/shards"] = shards.run(ctx, "prose", asked.shards, made["tokenizer"], curated(ctx, words))
    made["mixture"] = mixture.run(ctx, asked.required_mixture(), {"prose": made["prose/shards"]})
    logits = ours["teacher_logits"].make(ctx, made, print)
    said = StoredLogits(ctx.store, logits).rows(0, 10)
    assert said.ids.shape == (10, 64, 4)
    assert int(said.ids.max()) < vocabulary.get_vocab_size()
    assert set(logits.inputs) == {"mixture", "tokenizer", "teacher"}


def curated(ctx: Context, texts: list[str]) -> Manifest:
    """A bucket of these texts."""
    rows = [
        dict.fromkeys(DOCUMENT_SCHEMA.names) | {"id": bytes([n] * 16), "text": text, "uri": f"test://{n}"}
        | {"snapshot": "", "licence": "MIT", "mime": "text/plain", "source_bytes": len(text), "extra": "{}"}
        for n, text in enumerate(texts)
    ]  # fmt: skip
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    return Manifest(asset="prose/curated", step="curate", version="1", params={}, inputs={}, parts=(part,))


def test_a_vocabulary_of_a_teacher_needs_one() -> None:
    given = recipe(teacher="large@champion").model_dump(mode="json", exclude_unset=True)
    given["training"].pop("distillation")
    with pytest.raises(ValueError, match="teacher needs"):
        Recipe.model_validate(given)

"""Attack: markup in a recipe or a document, which pages, Dagster and MLflow then show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.report.page import CardBucket, Screening, card
from plinth.storage.workspace import Workspace
from plinth.text import markdown_code, markdown_text
from plinth_assets import sources
from plinth_assets.framework.present import Code, table
from plinth_assets.measurements.evaluation_stage import _worst
from plinth_jobs.recipes import load
from plinth_ops.service_levels import export as level_export
from plinth_ops.service_levels.tallies import Objectives
from plinth_registry.registration import SCORES, scores_text, version_text

PAYLOADS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![x](https://evil.example/beacon.png)",
    "[click](javascript:alert(1))",
    "\\[click](javascript:alert(1))",  # the backslash of the escape would be escaped itself
    "\\\\![x](https://evil.example/beacon.png)",
    "[ref][1]\n\n[1]: https://evil.example",
    "| a | <b>cell</b>\\| more |",
    "a `code` ``` span",
    "line\n# heading\r\n- [item](data:text/html,x)",
    "\x1b]8;;https://evil.example\x07text\x1b]8;;\x07 \u202eabc",
    "<https://evil.example>",
    "[x]: <javascript:alert(1)>",
)
PAGE = "\u2028".join(PAYLOADS)


def live(text: str) -> list[str]:
    """Markup of a page of Markdown that takes effect: links, pictures, tags; code spans are taken out first."""
    text = re.sub(r"`[^`\n]*`", "", text)
    text = re.sub(r"\\[\\\[\]|]", "", text)  # escaped characters are none
    return re.findall(r"!?\[[^\]\n]*\]\s*[(\[:]|<[a-zA-Z/!?][^\n]*?>|[\x00-\x08\x0b-\x1f\u202a-\u202e]", text)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_foreign_text_in_markdown_is_text(payload: str) -> None:
    assert live(payload) or set("`|\\") & set(payload)  # what is searched for is found as it is
    assert live(markdown_text(payload)) == []
    assert not {"\n", "\r", "\u2028"} & set(markdown_text(payload) + markdown_code(payload))
    assert markdown_code(payload).count("`") == 2
    (row,) = table(["a", "b"], [[payload, Code(payload)]]).splitlines()[2:]
    assert live(row) == []
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3  # two cells


def test_a_recipe_in_the_data_card_and_in_dagster() -> None:
    buckets = [CardBucket(PAGE, PAGE, (PAGE,), 1, 1, 1)]
    page = card(PAGE, PAGE, buckets, [Screening(PAGE, {PAGE: (PAGE,)}, (PAGE,))])
    assert "evil.example" in page
    assert live(page) == []
    recipe = load(Path("jobs/plinth_jobs/recipes/tiny.yaml"))
    corpus = recipe.corpus
    changed = {name: bucket.model_copy(update={"description": PAGE}) for name, bucket in corpus.buckets.items()}
    made = recipe.model_copy(update={"corpus": corpus.model_copy(update={"buckets": changed})})
    shown = [stage.description for stage in sources.source_stages(made)]
    assert all("evil.example" in one for one in shown)
    assert [found for one in shown for found in live(one)] == []


def test_a_document_in_the_metadata_of_the_evaluation() -> None:
    row = {"uri": PAGE, "bucket": "web", "bytes": 1, "model": 1.0, "excess_bits": 1.0, "id": "ab" * 16}
    shown = _worst([row])
    assert live(shown) == []
    assert f"`plinth explain {'ab' * 16}`" in shown


def test_reasons_and_slices_in_mlflow() -> None:
    known = scores_text("c" * 64, {PAGE: {"bytes": 1, "model": 1.0}})
    tags = dict.fromkeys(("taint", "root", "mean", "gates", "policy", "trial", "trial.page"), PAGE)
    text = version_text(known, tags)
    assert SCORES in text
    assert "evil.example" in text
    assert live(text.replace(SCORES, "")) == []


def test_a_recipe_on_the_index_of_pages(tmp_path: Path) -> None:
    from plinth_jobs import workspace_index

    recipe = load(Path("jobs/plinth_jobs/recipes/tiny.yaml")).model_copy(update={"description": PAGE})
    space = Workspace(tmp_path / "<img src=x onerror=alert(1)>").ensure()
    text = workspace_index.write(Context(space), recipe).read_text()
    assert "<img src=x" not in text
    assert "<script>alert" not in text


def test_a_folder_name_in_views_of_sql(tmp_path: Path) -> None:
    """DuckDB runs the file when it starts: a quote or a line of the folder's name is a part of the name."""
    import duckdb

    planted = tmp_path / "o'b\n.shell touch planted\ncreate table planted (a int); --"
    level_export.export([], Objectives(), 1e9, planted)
    base = duckdb.connect()
    base.execute((planted / level_export.VIEWS).read_text())
    assert base.execute("select count(*) from tallies").fetchone() == (0,)
    assert "planted" not in {row[0] for row in base.execute("show tables").fetchall()}

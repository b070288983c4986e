"""Copies of removed text next to the content store are found, however a page or a database writes them."""

from __future__ import annotations

import html
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import markupsafe
import pytest

from plinth.compute.context import Context
from plinth.corpus import exclusions
from plinth.storage.workspace import Workspace
from plinth_audit.takedown import remaining, report
from plinth_audit.takedown.search import propose
from tests.taken_corpus import PAGE, Corpus, essay

TEXT = 'a short line\nThe "long" line of <this> page says Grüße & more, and nobody else has ever written it down.\n'


def as_page(path: Path) -> None:
    path.write_text(f"<p>{html.escape(TEXT)}</p>")


def as_template(path: Path) -> None:
    path.write_text(str(markupsafe.escape(TEXT)))


def as_json(path: Path) -> None:
    path.write_text(json.dumps({"sample": TEXT}))


def as_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("create table event_logs (event text)")
        database.execute("insert into event_logs values (?)", (json.dumps({"event": json.dumps({"md": TEXT})}),))


def across_chunks(path: Path) -> None:
    path.write_bytes(b" " * (remaining._CHUNK_BYTES - 40) + TEXT.encode())


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def named(ctx: Context) -> list[str]:
    found = remaining.traces(ctx, [TEXT])
    return [one.what.partition(":")[0] for one in found if "excerpt of the removed text" in one.what]


@pytest.mark.parametrize(
    ("place", "write"),
    [
        ("reports/demo.html", as_page),
        ("mlflow/artifacts/1/page.html", as_template),
        ("dagster/history/runs.db", as_database),
        ("runs/tiny-1/events.jsonl", as_json),
        ("runs/tiny-1/output.log", across_chunks),
        ("trials/demo/1.json", as_json),
        ("notes.txt", as_json),
    ],
)
def test_a_copy_is_found_where_it_is(ctx: Context, place: str, write: Callable[[Path], None]) -> None:
    assert named(ctx) == []
    path = ctx.workspace.root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path)
    assert named(ctx) == [place]
    path.unlink()
    assert named(ctx) == []


def test_content_weights_and_links_are_not_searched(ctx: Context, tmp_path: Path) -> None:
    """Content is known by its manifests; a link leads out of the workspace."""
    as_json(tmp_path / "outside.json")
    os.symlink(tmp_path / "outside.json", ctx.workspace.reports / "link.json")
    os.mkfifo(ctx.workspace.reports / "pipe.json")
    for place in ("store/blob", "input/raw.json", "runs/tiny-1/model.safetensors"):
        path = ctx.workspace.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        as_json(path)
    assert named(ctx) == []


def test_text_that_is_gone_or_has_no_long_line_is_not_called_absent(ctx: Context) -> None:
    for texts in ([], ["short\nlines\nonly", f"{'-' * 80}\n{'=+' * 40}\n"]):
        whole = [one for one in remaining.traces(ctx, texts) if one.what.startswith("pages, MLflow")]
        assert [(one.state, "not searched" in one.where) for one in whole] == [("may still hold the text", True)]


def test_the_report_lists_pages_that_still_show_the_text(corpus: Corpus) -> None:
    """A page that quotes the removed document, and the step cache, are in the signed table until they are gone."""
    fields: dict[str, Any] = dict(propose(corpus.ctx, "url", PAGE, "a letter").fields)
    exclusions.append(corpus.ctx, **fields)
    corpus.build()
    page = corpus.ctx.workspace.reports / "samples.html"
    page.write_text(html.escape(essay(0)))
    listed = report.facts(corpus.ctx, report.prove(corpus.ctx))["remains"]
    (held,) = [one for one in listed if one["what"].startswith("reports/samples.html")]
    assert (held["state"], "plinth report" in held["until"]) == ("still holds the text", True)
    assert any("step cache" in one["what"] and "plinth ops gc --delete" in one["until"] for one in listed)
    page.unlink()
    listed = report.facts(corpus.ctx, report.prove(corpus.ctx))["remains"]
    assert not [one for one in listed if "samples.html" in one["what"]]

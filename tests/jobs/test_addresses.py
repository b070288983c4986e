"""A link to a server is written while its process lives, and never to a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.storage import running
from plinth.storage.workspace import Workspace
from plinth_assets.framework.present import money, page_value
from plinth_jobs import workspace_index


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "w").ensure())


def test_pages_are_linked_while_the_server_lives(ctx: Context, tmp_path: Path) -> None:
    page = ctx.workspace.reports / "demo-candidate-1.html"
    assert running.known(ctx.workspace) is None
    assert page_value(ctx, page).value == str(page)
    assert "Run <code>plinth up</code> to start" in workspace_index.write(ctx, None).read_text()
    running.note(ctx.workspace, "http://127.0.0.1:3000/", "http://127.0.0.1:3001/")
    assert page_value(ctx, page).value == "http://127.0.0.1:3001/reports/demo-candidate-1.html"
    assert page_value(ctx, tmp_path / "elsewhere.html").value == str(tmp_path / "elsewhere.html")
    index = workspace_index.write(ctx, None).read_text()
    assert '<a href="http://127.0.0.1:3000/">Dagster</a>' in index
    assert ">Corpus</a>" not in index
    running.note(ctx.workspace, "http://127.0.0.1:3000/", "http://127.0.0.1:3001/", "http://127.0.0.1:3011/")
    assert '<a href="http://127.0.0.1:3011/">Corpus</a>' in workspace_index.write(ctx, None).read_text()
    path = running.folder(ctx.workspace) / running.FILE
    ended = running.Addresses.model_validate_json(path.read_bytes())
    gone = ended.process.model_copy(update={"started_at_s": 1.0})
    path.write_text(ended.model_copy(update={"process": gone}).model_dump_json())
    assert page_value(ctx, page).value == str(page)
    path.write_text("{")
    assert running.known(ctx.workspace) is None


@pytest.mark.parametrize(
    ("amount", "shown"), [(0.0, "0.00"), (5.782306566666635e-06, "< 0.01"), (0.005, "0.01"), (1234.5, "1,234.50")]
)
def test_costs_have_two_decimals(amount: float, shown: str) -> None:
    assert money(amount) == shown

"""Statements of a provider: signed by compliance, the newest counts, changed ones are refused with an error."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.errors import RecipeError, SignatureError
from plinth.storage.workspace import Workspace
from plinth.trust import dsse
from plinth.trust.root import Trust
from plinth_audit.papers import provider
from plinth_audit.papers.provider import ProviderStatement
from plinth_jobs.cli import call
from plinth_registry import audit_log

FILE = """
release: demo
provider: Example GmbH
placed_on_the_market: {"2": 2026-11-20}
crawlers: None of our own.
"""


@pytest.fixture
def ctx(tmp_path: Path, own_trust: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def test_the_newest_statement_counts_and_says_what_it_was_given(
    ctx: Context, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "provider.yaml").write_text(FILE)
    provider.sign(ctx, ProviderStatement(release="demo", provider="Example"))
    provider.sign(ctx, ProviderStatement(release="other", provider="Somebody else"))
    for _ in range(2):  # the second changes nothing
        assert (
            call(["release", "provider", str(tmp_path / "provider.yaml"), "--json", "-w", str(ctx.workspace.root)]) == 0
        )
    shown = json.loads(capfd.readouterr().out.split("}\n{")[0] + "}")
    assert shown["by"] == "compliance"
    assert len(list((ctx.workspace.root / "providers").glob("*.json"))) == 3
    found = provider.current(ctx, "demo")
    assert found is not None
    assert found.statement.placed_on_the_market == {"2": date(2026, 11, 20)}
    said = {one.subject: one.text for one in provider.said(found, "2")}
    assert said == {"provider": "Example GmbH", "date of placement on the market": "2026-11-20",
                    "crawlers, their purposes and behaviour": "None of our own."}  # fmt: skip
    assert "date of placement on the market" not in {one.subject for one in provider.said(found, "1")}
    assert provider.current(ctx, "third") is None
    assert [one.action for one in audit_log.entries(ctx)] == ["provider"] * 3


def test_every_field_has_its_subject() -> None:
    assert set(provider.SUBJECTS) == set(ProviderStatement.model_fields) - {"release"}


def test_a_statement_that_was_changed_or_removed_is_refused(ctx: Context) -> None:
    made = provider.sign(ctx, ProviderStatement(release="demo", provider="Example"))
    content = dsse.unverified(dsse.envelope_of(made.path), "statement")
    dsse.write(made.path, content, Trust.of(ctx.workspace).signer("promoter"))
    with pytest.raises(SignatureError, match="is invalid"):
        provider.current(ctx, "demo")
    made.path.unlink()
    with pytest.raises(SignatureError, match="the newest records of providers/ are missing"):
        provider.current(ctx, "demo")


def test_a_wrong_file_is_refused_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "provider.yaml"
    path.write_text("release: demo\nproviders: Example\nplaced_on_the_market: {'1': soon}\n")
    with pytest.raises(RecipeError, match="2 problems in the provider declaration") as error:
        provider.load(path)
    assert "yaml:2  providers: Extra" in str(error.value)
    assert "yaml:3  placed_on_the_market.1: " in str(error.value)

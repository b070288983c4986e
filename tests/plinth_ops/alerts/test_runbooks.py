"""Every alert has its runbook, and every command that a runbook or playbook names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plinth_jobs.cli import cli
from plinth_ops.alerts.conditions import duration
from plinth_ops.alerts.table import alerts, pages, require_sound
from plinth_ops.metrics.table import METRICS
from tests.command_lines import in_blocks, in_text, resolve

DOCS = Path(__file__).resolve().parents[3] / "docs"
RUNBOOKS = DOCS / "runbooks"
PAGES = [*sorted(RUNBOOKS.glob("*.md")), *sorted((DOCS / "playbooks").glob("*.md")), DOCS / "alerts.md"]
#: Programs of the system that pages name.
OTHERS = {"grep", "tail", "df", "du", "curl", "promtool", "amtool", "prometheus", "prometheus-alertmanager"}


def test_every_alert_has_its_page_and_no_page_is_left_over() -> None:
    found = alerts()
    require_sound(found, pages(RUNBOOKS))
    assert pages(RUNBOOKS) == {one.runbook for one in found}


def test_the_head_of_a_page_is_what_the_table_says() -> None:
    for one in alerts():
        lines = (RUNBOOKS / f"{one.runbook}.md").read_text().splitlines()
        assert lines[0] == f"# {one.name}"
        assert lines[2].startswith(f"{one.severity} · {one.owner} · within "), one.name
        if one.name != "MetricAbsent":
            assert lines[2].endswith(f"within {duration(one.promised_s)}"), one.name
        assert [line for line in lines if line.startswith("## ")] == ["## Diagnose", "## Mitigate", "## Resolve"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_can_be_copied(page: Path) -> None:
    """A command copied at night must not fail with "Missing option"."""
    text = page.read_text()
    found = [*in_blocks(text), *in_text(text)]
    assert found
    for line in found:
        assert line.split()[0] in {"plinth", *OTHERS}, line
        if line.startswith("plinth "):
            resolve(cli, line)


def test_every_metric_that_a_page_names_is_in_the_table() -> None:
    for page in PAGES:
        for name in re.findall(r"plinth_(?!ops\b)[a-z_]+[a-z]", page.read_text()):
            assert name in METRICS, f"{page.name}: {name}"

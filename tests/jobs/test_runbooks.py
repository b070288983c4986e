"""Every alert has its runbook, and every command that a runbook or playbook names exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from jobs.cli.root import cli
from plinth.operation.alerts.alert import pages, require_sound
from plinth.operation.alerts.conditions import duration
from plinth.operation.alerts.table import alerts
from plinth.operation.metrics.table import METRICS

DOCS = Path(__file__).resolve().parents[2] / "docs"
RUNBOOKS = DOCS / "runbooks"
PAGES = [*sorted(RUNBOOKS.glob("*.md")), *sorted((DOCS / "playbooks").glob("*.md")), DOCS / "alerts.md"]
#: Programs of the system that pages name.
OTHERS = {"tail", "df", "du", "curl", "promtool", "amtool", "prometheus", "prometheus-alertmanager"}


def commands(page: Path) -> Iterator[str]:
    """Command lines of a page's blocks, and `plinth …` in its text."""
    text = page.read_text()
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            command = line.partition("  #")[0].strip()
            yield from (one.strip() for one in command.split("&&") if one.strip())
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`(plinth [^`]+)`", " ".join(prose.split()))


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
        assert [line for line in lines if line.startswith("## ")] == ["## See", "## Do", "## Over"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_exists(page: Path) -> None:
    found = list(commands(page))
    assert found
    for line in found:
        words = shlex.split(line.replace("…", ""))
        assert words[0] == "plinth" or words[0] in OTHERS, line
        if words[0] == "plinth":
            _resolve(words[1:], line)


def _resolve(words: list[str], line: str) -> None:
    """Follow the words down to a command, and see that it has the options that are given, and is given what it needs:
    whoever copies a line in the night learns nothing from "Missing option"."""
    command: click.Command = cli
    context = click.Context(cli, info_name="plinth")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        assert inner is not None, line
        command, context, words = inner, click.Context(inner, info_name=words[0], parent=context), words[1:]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= options, line
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.required:
            assert set(parameter.opts) & set(words), f"{line}: {parameter.opts[-1]} is required"
    if isinstance(command, click.Group):
        assert command.invoke_without_command, line
    else:
        arguments = [one for one in command.params if isinstance(one, click.Argument)]
        if not arguments:
            positional = [word for word, before in zip(words, ["", *words], strict=False)
                          if not word.startswith("-") and not before.startswith("-")]  # fmt: skip
            assert positional == [], line


def test_every_metric_that_a_page_names_is_in_the_table() -> None:
    for page in PAGES:
        for name in re.findall(r"plinth_[a-z_]+[a-z]", page.read_text()):
            assert name in METRICS, f"{page.name}: {name}"


def test_a_command_that_does_not_exist_is_seen() -> None:
    for line in ("plinth nothing", "plinth job explode RUN", "plinth sli --nothing", "plinth funnel web",
                 "plinth promote --by ada", "plinth probes"):
        with pytest.raises((AssertionError, click.UsageError)):
            _resolve(line.split()[1:], line)

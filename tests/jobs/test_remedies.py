"""Every command that the source or a page tells a person to type exists, and is given what it needs."""

from __future__ import annotations

import re

import click
import pytest

from jobs.cli.root import cli
from tests import command_lines
from tests.command_lines import ROOT, CommandLine, resolve

PAGES = sorted({*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")} - {ROOT / "CHANGELOG.md"})


def refused(found: list[CommandLine]) -> list[str]:
    """Command lines that the command line does not take, with the place and the reason."""
    said = []
    for one in found:
        try:
            resolve(cli, one.text, whole=one.instruction)
        except (click.UsageError, ValueError) as error:
            said.append(f"{one.where}: `{one.text}`: {error}")
    return said


def test_every_command_in_the_source_can_be_typed() -> None:
    found = list(command_lines.in_source())
    assert sum(one.instruction for one in found) > 100
    assert refused(found) == []


def test_every_command_of_a_page_can_be_typed() -> None:
    found = [
        CommandLine(line, page.name, whole)
        for page in PAGES
        for lines, whole in ((command_lines.in_text, False), (command_lines.in_blocks, True))
        for line in lines(re.sub(r"\n> ?", "\n", page.read_text()))
        if line.startswith("plinth ")
    ]
    assert len(found) > 400
    assert refused(found) == []


@pytest.mark.parametrize(
    "line",
    [
        "plinth nothing", "plinth consumer enrol", "plinth job explode RUN", "plinth sli --nothing",
        "plinth funnel web", "plinth promote --by ada", "plinth probes", "plinth run --select",
        "plinth gates waive 3 cost",
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_typed_is_seen(line: str) -> None:
    with pytest.raises(click.UsageError):
        resolve(cli, line)


def test_placeholders_pipes_and_mentions_are_understood() -> None:
    for line in ("plinth batch latest 10 --json | jq -r '.[]'", "plinth check readiness", "plinth check NAME",
                 "plinth taint DIGEST --by A --reason …", "plinth -w s3://bucket/x status"):  # fmt: skip
        resolve(cli, line)
    resolve(cli, "plinth takedown find --url", whole=False)
    assert list(command_lines.in_text("see `plinth\nstatus`\n```\n`plinth no`\n```\n")) == ["plinth status"]
    block = "```bash\nplinth run && plinth promote --reason 'a; b' | jq .  # plinth no\n```\n"
    assert list(command_lines.in_blocks(block)) == ["plinth run", "plinth promote --reason VALUE", "jq ."]

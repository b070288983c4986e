"""Every command that the source or a page tells a person to type exists, and is given what it needs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import pytest

from plinth_jobs.cli import cli
from plinth_jobs.cli.nouns import COMMANDS, RENAMED, installed
from plinth_jobs.cli.run import _next
from plinth_jobs.pipeline import RunSummary
from tests import command_lines
from tests.command_lines import ROOT, CommandLine, resolve
from tests.jobs.cli.conftest import plinth

__all__ = ["plinth"]

#: Without what the site's build writes from the code.
WRITTEN = {*(ROOT / "docs" / "reference").rglob("*.md"), ROOT / "CHANGELOG.md"}
PAGES = sorted({*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")} - WRITTEN)


def refused(found: Iterable[CommandLine]) -> list[str]:
    """Command lines that the command line does not take, with the place and the reason."""
    said = []
    for one in found:
        try:
            resolve(cli, one.text, whole=one.instruction)
        except (click.UsageError, ValueError) as error:
            said.append(f"{one.where}: `{one.text}`: {error}")
    return said


def test_every_command_in_the_source_can_be_typed() -> None:
    found = command_lines.in_source()
    assert sum(one.instruction for one in found) > 100
    assert refused(found) == []


def test_a_command_in_a_sentence_is_in_backticks() -> None:
    """Else no test sees it, and no reader sees where it ends."""
    assert list(command_lines.unquoted((*COMMANDS, *RENAMED, *installed()))) == []


def test_every_command_of_a_page_can_be_typed() -> None:
    found = [
        CommandLine(line, page.name, whole)
        for page in PAGES
        for lines, whole in ((command_lines.in_text, False), (command_lines.in_blocks, True))
        for line in lines(re.sub(r"\n> ?", "\n", page.read_text()))
        if line.startswith("plinth ")
    ]
    assert len(found) > 550
    assert refused(found) == []


#: Values for placeholders of commands that are executed in a workspace without anything in it.
VALUES = {
    "PERSON": "ada@example.org", "NAME": "ada", "TEXT": "'a reason in a sentence'", "DATE": "2999-01-01",
    "RUN": "latest", "STEP": "1", "AMOUNT": "5", "WHOSE": "all", command_lines.FILLED: "1",
}  # fmt: skip
#: Commands that decide, look up or write small things: none trains, starts a server or imports a framework.
CHEAP = re.compile(
    r"plinth (gates|keys"
    r"|ops (backup|cost|gameday|gc|incident|people)"
    r"|release (consumer|impact|log|papers|taint)"
    r"|corpus (review|sample|takedown|trace))\b"
)


def executable() -> list[str]:
    """Instructions of the source that are cheap to execute, with values for their placeholders."""
    found = {one.text for one in command_lines.in_source() if one.instruction and CHEAP.match(one.text)}
    found = {re.split(r" (?:\||&&|<) ", line)[0] for line in found if f"--{command_lines.FILLED}" not in line}
    return sorted({re.sub(r"\b[A-Z]+\b(?!\.)", lambda word: VALUES.get(word[0], word[0]), line) for line in found})


@pytest.mark.slow
def test_instructions_executed_for_real_answer_by_name(
    plinth: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends well or with a named error in a workspace without anything in it: never as wrong usage or a defect."""
    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "trust"))
    assert plinth("keys", "init", "--demo").code == 0
    for name in ("FILE", "KEY.pub", "FILE.jsonl"):  # exist, and are nothing that a command can use
        (tmp_path / name).write_text("{}\n")
    lines = executable()
    assert len(lines) > 30
    for name in {word for line in lines for word in shlex.split(line) if re.fullmatch(r"[\w/-]+\.(yaml|jsonl)", word)}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    ran = {line: plinth(*shlex.split(line)[1:]) for line in lines}
    assert {line: one.err for line, one in ran.items() if one.code == 70 or "Usage:" in one.err} == {}


@pytest.mark.parametrize(
    ("release", "named"),
    [
        ({}, []),
        ({"release": "demo version 1", "alias": "champion"}, ["verify"]),
        ({"waiting": "version 2: approvals pending"}, ["approve"]),  # nothing is released, and nothing to verify
        ({"release": "demo version 1", "alias": "champion", "waiting": "version 2"}, ["verify", "approve"]),
        ({"release": "demo: no version", "alias": "none"}, []),
    ],
)
def test_what_a_run_says_to_do_next_can_be_typed_and_is_there(release: dict[str, Any], named: list[str]) -> None:
    made = ("funnel", "run", "evaluation")
    found = _next(RunSummary(done=made, fresh=(), seconds=1.0, release=release))
    for command, rest, _ in found:
        resolve(cli, f"plinth {command} -w other{rest}")
    assert [command for command, _, _ in found] == ["status", "corpus funnel", "run batch", *named, "up"]


@pytest.mark.parametrize(
    "line",
    [
        "plinth nothing", "plinth release consumer enrol", "plinth run job explode RUN", "plinth ops sli --nothing",
        "plinth corpus funnel web", "plinth release promote --by ada", "plinth model probes", "plinth run --select",
        "plinth gates waive 3 cost",
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_typed_is_seen(line: str) -> None:
    with pytest.raises(click.UsageError):
        resolve(cli, line)


def test_placeholders_pipes_and_mentions_are_understood() -> None:
    for line in ("plinth run batch latest 10 --json | jq -r '.[]'", "plinth ops check readiness", "plinth ops check "
    "NAME",
                 "plinth release taint DIGEST --by A --reason …", "plinth -w s3://bucket/x status"):  # fmt: skip
        resolve(cli, line)
    resolve(cli, "plinth corpus takedown find --url", whole=False)
    assert list(command_lines.in_text("see `plinth\nstatus`\n```\n`plinth no`\n```\n")) == ["plinth status"]
    block = "```bash\nplinth run && plinth release promote --reason 'a; b' | jq .  # plinth no\n```\n"
    assert list(command_lines.in_blocks(block)) == ["plinth run", "plinth release promote --reason VALUE", "jq ."]

"""Reference pages of the site, written from the code into docs/reference/ at each build.

    commands/NAME.md   every command with its options and examples, from the command tree
    gates.md           gates with their parameters in a gate policy
    alerts.md          alerts with their runbooks
    metrics.md         metrics with labels and source
    NAME.md            pages of the repository that are outside docs/

docs/recipe.md is the exception: it is committed, because messages name it.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from plinth.evaluation.measurement import GATES
from plinth_jobs.cli import cli

#: Options that every command takes; the overview has them.
SHARED = {"--workspace", "--debug"}
#: Pages outside docs/ that are part of the site: name in docs/reference/ -> file.
OUTSIDE = {
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
    "changelog": "CHANGELOG.md",
    "infrastructure": "infra/README.md",
    "text-kernels": "platform/plinth_text/README.md",
}


def write(folder: Path) -> None:
    """Write all pages; those of an earlier build are removed."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, lines in pages():
        path = folder / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def pages() -> Iterator[tuple[str, Iterable[str]]]:
    """Name and lines of every page."""
    root = click.Context(cli, info_name="plinth")
    names = cli.list_commands(root)
    yield "commands", _overview(root, names)
    for name in names:
        yield f"commands/{name}", _command(cli, root, name, 1)
    yield "gates", _gates()
    yield "alerts", _alerts()
    yield "metrics", _metrics()
    for name, file in OUTSIDE.items():
        docs = "../" * file.count("/") + "docs/"
        yield name, [f"```{{include}} ../../{file}", f":relative-docs: {docs}", ":relative-images:", "```"]


# ---- commands -------------------------------------------------------------------------------------


def _overview(root: click.Context, names: list[str]) -> Iterator[str]:
    shown = cli.get_help(root).partition("\n\n  Examples")[0]
    yield from ("# Commands", "", "Every command takes `--workspace` and `--debug`.", "", "```text", shown, "```", "")
    yield from ("```{toctree}", ":hidden:", "", *(f"commands/{name}" for name in names), "```")


def _command(group: click.Group, parent: click.Context, name: str, level: int) -> Iterator[str]:
    """Format a command and its subcommands."""
    command = group.get_command(parent, name)
    assert command is not None, name
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from (f"{'#' * min(level, 4)} {context.command_path}", "", *_prose(command.help or ""), "")
    yield from ("```text", usage, "```", "")
    options = [one.get_help_record(context) for one in command.params if not SHARED & {*one.opts}]
    if any(options):
        yield from ("| option | meaning |", "|---|---|")
        yield from (f"| {_cell(f'`{record[0]}`')} | {_cell(record[1])} |" for record in options if record)
        yield ""
    if examples := re.findall(r"^ *(plinth .+)$", inspect.cleandoc(command.epilog or ""), re.MULTILINE):
        yield from ("```bash", *(re.sub(r" {2,}", "  # ", line, count=1) for line in examples), "```", "")
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            yield from _command(command, context, below, level + 1)


def _prose(text: str) -> Iterator[str]:
    """Format the help of a command as Markdown: a block that click does not wrap stays as it is."""
    for block in inspect.cleandoc(text).replace("\f", "").split("\n\n"):
        if block.startswith("\b"):
            yield from ("```text", block.removeprefix("\b").strip("\n"), "```", "")
        else:
            yield from (_cell(block), "")


def _cell(text: object) -> str:
    """Text in one line of Markdown, in which only backticks have a meaning."""
    parts = " ".join(str(text).split()).split("`")
    parts[::2] = [re.sub(r"([*_<>\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|")


# ---- tables ---------------------------------------------------------------------------------------


def _listed(*words: str) -> list[dict[str, Any]]:
    """Return the rows that a command prints with --json."""
    done = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def _gates() -> Iterator[str]:
    yield from ("# Gate parameters", "", "[Gates](../gates.md) explains states, waivers and policies.", "")
    for gate in GATES.values():
        needs = ", ".join(f"`{name}`" for name in gate.needs)
        key = f"`{gate.section}`" if gate.section else "" if gate.always else f"`extensions.{gate.name}`"
        yield from (f"## {gate.name}", "", _cell(gate.description), "")
        facts = {"Key in the policy": key, "Evidence": needs, "Always required": "yes" if gate.always else ""}
        yield from (f"- {title}: {value}" for title, value in facts.items() if value)
        if gate.params.model_fields:
            yield from ("", "| parameter | default | meaning |", "|---|---|---|")
        for name, field in gate.params.model_fields.items():
            default = "**required**" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
            yield f"| `{name}` | {default} | {_cell(field.description or '')} |"
        yield ""


def _alerts() -> Iterator[str]:
    yield from ("# Alerts and runbooks", "", "[Metrics and alerts](../alerts.md) has the commands.", "")
    yield from ("| alert | severity | owner | within | fires when |", "|---|---|---|---|---|")
    for one in _listed("ops", "alerts", "list"):
        within, summary = f"{one['promised_s'] / 60:g} min", re.sub(r"\{\{.*?\}\}", "…", one["summary"])
        link = f"[{one['name']}](../runbooks/{one['runbook']}.md)"
        yield f"| {link} | {one['severity']} | {one['owner']} | {within} | {_cell(summary)} |"
    yield from ("", "```{toctree}", ":hidden:", ":glob:", "", "../runbooks/*", "```")


def _metrics() -> Iterator[str]:
    yield from ("# All metrics", "", "[Metrics and alerts](../alerts.md) has the commands.", "")
    yield from ("| metric | labels | meaning | source |", "|---|---|---|---|")
    for one in _listed("ops", "metrics", "list"):
        yield f"| `{one['name']}` | {', '.join(one['labels'])} | {_cell(one['meaning'])} | {_cell(one['source'])} |"

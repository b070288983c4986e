"""`plinth doctor`: check this machine. Imports nothing heavy."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared
from plinth_jobs.cli.start.machine import MachineFinding

#: Characters of the last column: the table fits 80.
WORDS_WIDTH = 50
COLOURS = {"ok": "green", "warn": "yellow", "missing": "red"}


@click.command(
    epilog=examples(
        "plinth doctor",
        "plinth doctor --security",
        "plinth doctor --json | jq '.[] | select(.state != \"ok\")'",
    ),
    short_help="Check this machine: packages, memory, GPU, ports.",
)
@click.option("--security", is_flag=True, help="The security checklist instead: `plinth ops check security`.")
@shared
@json_option
def doctor(settings: Settings, security: bool, as_json: bool) -> int:
    """Check this machine: packages, memory, GPU, ports.

    `missing` marks a requirement of every run: the exit code is then 1. `warn` marks something slow or optional;
    the last column has the remedy.
    """
    from plinth_jobs.cli import output

    if security:
        from plinth_jobs.cli.nouns import Below

        check, words = Below("ops")["check"], ["security", *(["--json"] if as_json else [])]
        with check.make_context("check", words, parent=click.get_current_context(), obj=settings) as below:
            check.invoke(below)
        return 0
    findings = list(examine(settings.workspace))
    if as_json:
        output.emit_json([asdict(finding) for finding in findings])
    else:
        rows = [
            (finding.name, output.coloured(finding.state, COLOURS[finding.state]), _words(finding))
            for finding in findings
        ]
        output.table(("check", "state", "found"), rows)
        lacking = [finding.name for finding in findings if finding.state == "missing"]
        output.say(f"Needed and missing: {', '.join(lacking)}." if lacking else "Everything that a run needs is here.")
    return 1 if any(finding.state == "missing" for finding in findings) else 0


def examine(path: Path) -> Iterator[MachineFinding]:
    """Every finding, in the order in which to fix them."""
    from plinth_jobs.cli.start import machine

    checks: tuple[Callable[[], MachineFinding], ...] = (
        machine.python,
        machine.packages,
        machine.cores,
        machine.memory,
        lambda: machine.workspace(path),
        lambda: machine.disk(path),
        machine.shared_memory,
        machine.compiler,
        machine.deep_learning,
        machine.cuda,
        machine.bf16,
        machine.manuals,
        machine.chromium,
        lambda: machine.dagster(3000),
        lambda: machine.mlflow(path),
        lambda: machine.servers(path),
    )
    for check in checks:
        yield check()
    yield from machine.extensions()


def _words(finding: MachineFinding) -> str:
    shown = [finding.found, finding.advice] if finding.advice and finding.state != "ok" else [finding.found]
    return "\n".join(textwrap.fill(text, WORDS_WIDTH, break_long_words=False) for text in shown)

"""`plinth doctor`: what this machine has and lacks, in plain words. Imports nothing heavy to find out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import click

from jobs.cli.options import Settings, examples, json_option, shared
from jobs.cli.start.machine import Finding

COLOURS = {"ok": "green", "warn": "yellow", "missing": "red"}


@click.command(
    epilog=examples("plinth doctor", "plinth doctor --json | jq '.[] | select(.state != \"ok\")'"),
    short_help="What this machine has and lacks.",
)
@shared
@json_option
def doctor(settings: Settings, as_json: bool) -> int:
    """Look at this machine and say what Plinth can do on it.

    `missing` is something that a run needs: the exit code is then 1. `warn` is slower, thinner or
    optional; the last column says what to do.
    """
    from jobs.cli import output

    findings = list(examine(settings.workspace))
    if as_json:
        output.emit_json([asdict(finding) for finding in findings])
    else:
        rows = [
            (finding.name, output.coloured(finding.state, COLOURS[finding.state]), _words(finding))
            for finding in findings
        ]
        output.table(("what", "state", "found"), rows)
        lacking = [finding.name for finding in findings if finding.state == "missing"]
        output.say(f"Needed and missing: {', '.join(lacking)}." if lacking else "Everything that a run needs is here.")
    return 1 if any(finding.state == "missing" for finding in findings) else 0


def examine(workspace: Path) -> Iterator[Finding]:
    """Every finding, in the order in which a person would mend them."""
    from jobs.cli.start import machine

    looks: tuple[Callable[[], Finding], ...] = (
        machine.python,
        machine.packages,
        machine.cores,
        machine.memory,
        lambda: machine.workspace(workspace),
        lambda: machine.disk(workspace),
        machine.shared_memory,
        machine.compiler,
        machine.deep_learning,
        machine.cuda,
        machine.bf16,
        machine.manuals,
        machine.chromium,
        lambda: machine.dagster(3000),
        lambda: machine.mlflow(workspace),
    )
    for look in looks:
        yield look()


def _words(finding: Finding) -> str:
    return f"{finding.found}\n{finding.advice}" if finding.advice and finding.state != "ok" else finding.found

"""The same options on every command, and completion in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from plinth_jobs.cli import cli

PLINTH = Path(sys.executable).with_name("plinth")


def commands(command: click.Command, words: str = "plinth") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that can be executed, with its words."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield words, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            if found := command.get_command(ctx, name):
                yield from commands(found, f"{words} {name}")


def test_every_command_takes_workspace_and_recipe() -> None:
    found = dict(commands(cli))
    assert len(found) > 140
    for words, command in found.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert words == "plinth export DIRECTORY" or {"-w", "--workspace"} <= options, words
        recipe = {"-r", "--recipe"} <= options or any(one.name == "recipe" for one in command.params)
        assert words == "plinth export DIRECTORY" or recipe, words


def test_a_recipe_that_a_command_does_not_need_is_accepted(plinth, tmp_path: Path) -> None:
    refused = plinth("corpus", "sample", "-r", "tiny", "--reason", "language", "-w", tmp_path / "none")
    assert "no workspace at" in refused.err
    assert "--recipe" not in plinth("corpus", "sample", "--help").out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("plinth ", "corpus"),
        ("plinth corpus fu", "funnel"),
        ("plinth run --sel", "--select"),
        ("plinth run bat", "batch"),
    ],
)
def test_a_shell_completes_commands_and_options(typed: str, offered: str) -> None:
    words = typed.split()
    env = {
        **os.environ,
        "_PLINTH_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - (not typed.endswith(" "))),
    }
    done = subprocess.run([PLINTH], env=env, capture_output=True, text=True, check=True)
    assert f"plain,{offered}" in done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str) -> None:
    env = {**os.environ, "_PLINTH_COMPLETE": f"{shell}_source"}
    done = subprocess.run([PLINTH], env=env, capture_output=True, text=True, check=True)
    assert "_PLINTH_COMPLETE" in done.stdout

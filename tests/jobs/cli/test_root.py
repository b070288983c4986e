"""Errors become messages and exit codes; options work on either side of the command's name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from plinth import errors
from plinth.entry_points import OWN
from plinth.storage.workspace import Workspace
from plinth_jobs import cli as root
from plinth_jobs.cli import cli
from plinth_jobs.cli.nouns import COMMANDS, SECTIONS, find, installed
from plinth_jobs.cli.options import Settings, shared

Plinth = Callable[..., Any]
BRANCHES = {
    errors.RecipeError: 2,
    errors.MissingError: 3,
    errors.SourceError: 4,
    errors.DiskFullError: 5,
    errors.CheckFailedError: 6,
    errors.CheckpointError: 7,
    errors.GateError: 8,
    errors.RegistryError: 9,
}


#: Commands of the core and of the ring.
BUILT_IN = sorted(
    {name for name, (module, _) in COMMANDS.items() if module}
    | {name for name, entry in installed().items() if entry.distribution == OWN}
)


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `plinth status` raise an error."""

    def arrange(error: BaseException) -> None:
        @click.command()
        @shared
        def status(settings: Settings) -> None:
            raise error

        monkeypatch.setattr(root.Plinth, "get_command", lambda self, ctx, name: status)

    return arrange


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_command_teaches_with_an_example(plinth: Plinth, name: str) -> None:
    shown = plinth(*name.split(), "--help")
    assert shown.code == 0
    assert "Examples:" in shown.out
    assert f"plinth {name}" in shown.out.split("Examples:")[1]
    assert max(map(len, shown.out.splitlines())) <= 100


def test_help_lists_daily_commands_and_then_nouns(plinth: Plinth) -> None:
    lines = plinth("--help").out.splitlines()
    expected = []
    for title, commands in SECTIONS.items():
        expected.append(f"{title}:")
        expected += [" ".join((name, line)) for name, (_, line) in commands.items()]
    listed = [" ".join(line.split()) for line in lines[lines.index("Commands:") :] if line]
    assert listed[: len(expected)] == expected
    assert len(cli.list_commands(click.Context(cli))) <= 22


@pytest.mark.parametrize(("kind", "code"), BRANCHES.items())
def test_our_errors_are_words_with_their_branchs_code(plinth: Plinth, raising: Any, kind: type, code: int) -> None:
    raising(kind("it failed", found="3", expected="4", remedy="add one"))
    outcome = plinth("status")
    assert outcome.code == code
    assert outcome.out == ""
    assert outcome.err == "plinth: it failed\n  found:    3\n  expected: 4\n  do:       add one\n"


def test_a_defect_is_one_line_and_70(plinth: Plinth, raising: Any) -> None:
    raising(ZeroDivisionError("division\nby zero"))
    outcome = plinth("status")
    assert outcome.code == 70
    assert outcome.err.splitlines() == [
        "plinth: internal error: ZeroDivisionError: division by zero (--debug shows the traceback)"
    ]


@pytest.mark.parametrize("args", [("--debug", "status"), ("status", "--debug")])
def test_debug_shows_the_traceback(plinth: Plinth, raising: Any, args: tuple[str, ...]) -> None:
    raising(ZeroDivisionError("by zero"))
    outcome = plinth(*args)
    assert outcome.code == 70
    assert "Traceback (most recent call last)" in outcome.err


def test_interrupt_is_130_without_a_traceback(plinth: Plinth, raising: Any) -> None:
    raising(KeyboardInterrupt())
    outcome = plinth("status")
    assert outcome.code == 130
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(("words", "nearest"), [(("stauts",), "plinth status"), (("keys", "shwo"), "plinth keys show")])
def test_unknown_command_names_the_nearest(words: tuple[str, ...], nearest: str, plinth: Plinth) -> None:
    outcome = plinth(*words)
    assert outcome.code == 2
    assert f"Did you mean `{nearest}`?" in outcome.err


def test_groups_list_whole_sentences(plinth: Plinth) -> None:
    groups = [name for name in BUILT_IN if isinstance(find(name), click.Group)]
    assert len(groups) > 20
    for name in groups:
        lines = plinth(*name.split(), "--help").out.partition("Commands:")[2].partition("Examples:")[0]
        assert lines.strip(), name
        assert "..." not in lines, name


def test_options_work_before_and_after_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    @click.command()
    @shared
    def probe(settings: Settings) -> None:
        seen.append(settings)

    monkeypatch.setattr(root.Plinth, "get_command", lambda self, ctx, name: probe)
    monkeypatch.setenv("PLINTH_WORKSPACE", "from-environment")
    for args in (["status"], ["-w", "a", "status"], ["status", "-w", "b"], ["-w", "a", "status", "-w", "b"]):
        assert root.call(args) == 0
    assert [str(settings.workspace) for settings in seen] == ["from-environment", "a", "b", "b"]


@pytest.mark.parametrize("words", [("export", "restore", "abc", "out"), ("down",)])
def test_commands_refuse_an_absent_workspace_by_name(plinth: Plinth, tmp_path: Path, words: tuple[str, ...]) -> None:
    outcome = plinth(*words)
    assert outcome.code == 3
    assert "no workspace at workspace" in outcome.err
    assert not (tmp_path / "workspace").exists()


def test_version(plinth: Plinth) -> None:
    import plinth as package

    assert plinth("--version").out.strip() == f"plinth {package.__version__}"


@pytest.mark.parametrize("words", [["recipe", "schema"], ["ops", "metrics", "list"]])
def test_broken_pipe_is_quiet(words: list[str]) -> None:
    code = f"from plinth_jobs.cli import main; main({words})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    process.stdout.close()  # the reader leaves before the first byte
    assert process.stderr.read() == b""
    assert process.wait() == root.BROKEN_PIPE


def test_ctrl_c_of_a_real_process_is_130(tmp_path: Path) -> None:
    code = (
        "import click, signal, time\nfrom plinth_jobs import cli as root\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job begins without
        "@click.command()\ndef slow():\n    print('started', flush=True); time.sleep(600)\n"
        "root.Plinth.get_command = lambda self, ctx, name: slow\nroot.main(['status'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_the_end_of_a_command_collects_nothing_that_was_imported() -> None:
    code = (
        "import atexit, gc\nfrom plinth_jobs import cli as root\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000))\nroot.main(['--version'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "True"


def test_a_command_that_takes_long_is_shown_by_its_name_until_it_ends(tmp_path: Path) -> None:
    Workspace(tmp_path).ensure()
    with click.Context(click.Command("status"), info_name="status"):
        shown = [Settings(tmp_path).context(waits=waits).progress for waits in (False, True)]
        assert [[meter.label for meter in one._open] for one in shown] == [["status"], []]  # type: ignore[attr-defined]
    assert shown[0]._open == []  # type: ignore[attr-defined]


def test_commands_exist_under_their_names() -> None:
    for name in BUILT_IN:
        command = find(name)
        assert command is not None
        assert command.name == name.rpartition(" ")[2]

"""Commands below nouns: those of packages, those of a ring that is absent, earlier names."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from plinth import entry_points
from plinth_jobs.cli.nouns import COMMANDS, GROUP, RENAMED, SECTIONS, find
from tests.plinth.test_extensions import Site, site

__all__ = ["site"]

Plinth = Callable[..., Any]
CLICKS = """
import click

@click.command()
@click.argument("word")
def shout(word):
    \"\"\"Say a word loudly.\"\"\"
    click.echo(word.upper())

@click.group()
def voices():
    \"\"\"Voices of all kinds.\"\"\"

voices.add_command(shout)
"""


@pytest.fixture
def voices(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a distribution with commands: entries such as `corpus.shout = voices:shout`."""
    monkeypatch.delitem(sys.modules, "voices", raising=False)
    site.module("voices.py", CLICKS)

    def install(*entries: str, distribution: str = "acme-voices") -> None:
        name, _, value = "\n".join(entries).partition(" = ")
        site.install(distribution, name, value, group="plinth.commands")

    return install


@pytest.mark.parametrize("words", ["corpus shout", "shout", "keys shout", "run shout", "zoo lion shout"])
def test_a_package_adds_a_command(words: str, plinth: Plinth, voices: Callable[..., None]) -> None:
    voices(f"{words.replace(' ', '.')} = voices:shout")
    *noun, name = words.split()
    assert plinth(*words.split(), "hello").out == "HELLO\n"
    assert f"{name} Say a word loudly." in [" ".join(line.split()) for line in plinth(*noun, "--help").out.splitlines()]
    assert f"Did you mean `plinth {words}`?" in plinth(*noun, f"{name}s").err


def test_a_package_adds_a_group_and_commands_below_it(plinth: Plinth, voices: Callable[..., None]) -> None:
    voices("zoo = voices:voices", "zoo.loudly = voices:shout")
    assert plinth("zoo", "shout", "hello").out == plinth("zoo", "loudly", "hello").out == "HELLO\n"
    shown = plinth("zoo", "--help").out
    assert "Voices of all kinds." in shown
    assert "loudly" in shown
    assert "Other packages:\n  zoo" in plinth("--help").out


def test_a_built_in_command_stays(plinth: Plinth, voices: Callable[..., None]) -> None:
    voices("status = voices:shout", "corpus.funnel = voices:shout", "funnel = voices:shout", "corpus = voices:shout")
    for words in ("status", "corpus funnel", "funnel", "corpus"):
        assert "WORD" not in plinth(*words.split(), "--help").out
    assert "Other packages" not in plinth("--help").out


def test_a_command_that_cannot_be_used_breaks_no_other(plinth: Plinth, voices: Callable[..., None]) -> None:
    voices("corpus.gone = nothing_here:gone", "corpus.odd = voices:CLICKS", "corpus.shout = voices:shout")
    assert plinth("corpus", "shout", "hello").out == "HELLO\n"
    assert plinth("corpus", "--help").code == plinth("--help").code == 0
    refused = plinth("corpus", "gone")
    assert refused.code == 2
    assert "`plinth corpus gone` of acme-voices 2.0 cannot be imported: ModuleNotFoundError" in refused.err
    assert "`plinth corpus odd` of acme-voices 2.0 cannot be imported: AttributeError" in plinth("corpus", "odd").err


def test_two_packages_with_one_command_are_named(plinth: Plinth, voices: Callable[..., None]) -> None:
    voices("corpus.shout = voices:shout")
    voices("corpus.shout = voices:voices", distribution="other-voices")
    refused = plinth("corpus", "shout", "hello")
    assert refused.code == 2
    assert "acme-voices 2.0 (voices:shout), other-voices 2.0 (voices:voices)" in refused.err


def test_a_command_of_the_ring_is_built_in_or_names_its_package(plinth: Plinth, voices: Callable[..., None]) -> None:
    voices("corpus.shout = voices:shout", "corpus.whisper = plinth_nothing.whisper:whisper", distribution="plinth")
    voices("corpus.shout = nothing_here:gone")
    assert plinth("corpus", "shout", "hello").out == "HELLO\n"
    assert "whisper" not in plinth("corpus", "--help").out
    refused = plinth("corpus", "whisper")
    assert refused.code == 2
    assert "`plinth corpus whisper` needs the package plinth_nothing, which is not installed" in refused.err


@pytest.mark.parametrize("words", [["zoo"], ["zoo", "shout", "hello"], ["zoo", "--help"]])
def test_a_group_of_the_ring_is_listed_when_it_is_there(
    words: list[str], plinth: Plinth, voices: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, "zoo", (GROUP, "Animals."))
    monkeypatch.setitem(SECTIONS["Commands"], "zoo", (GROUP, "Animals."))
    voices("zoo = plinth_nothing.zoo:zoo", distribution="plinth")
    assert "zoo" not in plinth("--help").out
    refused = plinth(*words)
    assert refused.code == 2
    assert "`plinth zoo` needs the package plinth_nothing" in refused.err
    monkeypatch.setattr(entry_points, "_absent", lambda path: frozenset())
    entry_points._usable.cache_clear()
    assert re.search(r"zoo +Animals\.", plinth("--help").out)


def test_nothing_is_imported_before_it_is_called(plinth: Plinth, voices: Callable[..., None]) -> None:
    voices("corpus.shout = voices:shout", "model.shout = voices:shout")
    for words in (["--help"], ["corpus", "funnel", "--help"], ["model", "compare", "--help"]):
        assert plinth(*words).code == 0
    assert "voices" not in sys.modules


def test_a_command_that_is_known_reads_no_metadata() -> None:
    code = (
        "from plinth import entry_points\nfrom plinth_jobs.cli import call\n"
        "entry_points._entries = None\n"
        "words = (['status'], ['corpus', 'funnel'], ['run'], ['run', 'batch'], ['keys', 'show'], ['recipe', 'check'])\n"
        "print([call([*each, '--nothing']) for each in words])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert shown == f"{[2] * 6}\n"


@pytest.mark.parametrize(("name", "words"), [("funnel", "corpus funnel"), ("batch", "run batch"), ("gc", "ops gc")])
def test_an_earlier_name_answers_with_the_new_one(plinth: Plinth, name: str, words: str) -> None:
    earlier, now = plinth(name, "--help"), plinth(*words.split(), "--help")
    assert earlier.out == now.out
    assert earlier.err == f"plinth {name} is now: plinth {words}\n"
    assert f"  {name} " not in plinth("--help").out
    assert f"Did you mean `plinth {words}`?" in plinth(f"{name}x").err


def test_every_earlier_name_is_a_command() -> None:
    assert not set(RENAMED) & set(COMMANDS)
    assert all(find(words) for words in RENAMED.values())


def test_options_of_a_command_are_refused_before_one_below_it(plinth: Plinth) -> None:
    refused = plinth("run", "--workers", "2", "batch", "latest", "1")
    assert refused.code == 2
    assert "--workers is an option of `plinth run`, not of its subcommands" in refused.err
    assert "no workspace at elsewhere" in plinth("run", "-w", "elsewhere", "batch", "latest", "1").err

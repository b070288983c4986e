"""The glossary gives one word per thing, and its retired words are out of use."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from plinth_jobs.cli import cli

ROOT = Path(__file__).resolve().parents[1]
CODE = [ROOT / "platform" / "plinth", ROOT / "registry", ROOT / "assets", ROOT / "jobs"]
#: Names that use a retired word in another, ordinary sense: room for bytes, the patience of a rule, a line of text.
ORDINARY_IN_NAMES = {"room", "patience", "line"}
#: The same in prose; `realised` is a key of published JSON.
ORDINARY_IN_PROSE = {"endings", "opening", "pace", "patience", "course", "widen", "lanes", "room", "realised"}


def entries() -> list[tuple[str, str]]:
    """Rows of the glossary's tables: word, meaning."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    return [(word, meaning) for word, meaning in rows if word != "word"]


#: Words that had the meaning of an entry before; no name, help text or README uses them.
RETIRED = (
    "course",
    "course of run",
    "dedup facts",
    "disguise",
    "endings",
    "firing",
    "hollow",
    "house",
    "lanes",
    "opening",
    "pace",
    "patience",
    "realised",
    "realized",
    "recipe model",
    "room",
    "roster",
    "ruled",
    "sighting",
    "sightings",
    "the line",
    "veto",
    "whole line",
    "widen",
)


def names(path: Path) -> Iterator[str]:
    """The name of a module and of its classes and functions, as words between underscores."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node.name).strip("_").lower()


@functools.cache
def all_names() -> list[tuple[str, str]]:
    """Every name of the four packages with the file that has it."""
    paths = [path for folder in CODE for path in sorted(folder.rglob("*.py"))]
    return [(str(path.relative_to(ROOT)), name) for path in paths for name in names(path)]


def bears(name: str, retired: str) -> bool:
    return f"_{retired.replace(' ', '_')}_" in f"_{name}_"


def helps(command: click.Command, context: click.Context) -> Iterator[str]:
    """The help of a command and of all below it."""
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from helps(inner, click.Context(inner, info_name=name, parent=context))


def test_one_entry_for_a_word() -> None:
    words = Counter(word for entry, _ in entries() for word in entry.split(", "))
    assert len(words) >= 60
    assert [word for word, times in words.items() if times > 1 and word != "step"] == []


def test_a_retired_word_is_no_entry() -> None:
    assert set(RETIRED) & {word for entry, _ in entries() for word in entry.split(", ")} == set()


@pytest.mark.parametrize("word", sorted(set(RETIRED) - ORDINARY_IN_NAMES))
def test_no_name_bears_a_retired_word(word: str) -> None:
    assert len(all_names()) > 3000
    assert [f"{path}: {name}" for path, name in all_names() if bears(name, word)] == []


def test_readme_and_help_use_no_retired_word() -> None:
    texts = [(ROOT / "README.md").read_text(), *helps(cli, click.Context(cli, info_name="plinth"))]
    assert len(texts) > 40
    words = set(RETIRED) - ORDINARY_IN_PROSE
    assert [
        (word, text[max(0, at.start() - 40) : at.end() + 40])
        for text in texts
        for word in words
        for at in re.finditer(rf"\b{word}\b", text, re.IGNORECASE)
    ] == []


@pytest.mark.parametrize(
    ("name", "found"), [("make_room", True), ("rooms", False), ("classroom", False), ("room", True)]
)
def test_a_retired_word_would_be_found(name: str, found: bool) -> None:
    assert bears(name, "room") is found

"""Command lines that the source and the pages tell people to type, and whether the command line would take them."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import click

from plinth_jobs.cli.nouns import RENAMED

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("registry", "assets", "jobs", "platform")
#: Stands for a value that is filled in when the sentence is printed.
FILLED = "VALUE"
_TICKED = re.compile(r"`(plinth [^`]+)`")
_WHOLE = re.MULTILINE | re.DOTALL
_BARE = re.compile(r"plinth [a-z-]+(?:[ \n]|$)")


class CommandLine(NamedTuple):
    """A command line, where it is written, and whether it is an instruction (a remedy or next step) or a mention."""

    text: str
    where: str
    instruction: bool


@cache
def in_source() -> tuple[CommandLine, ...]:
    """Every `plinth …` in a string of the source; `remedy` arguments and lines of checklists are instructions."""
    found = list[CommandLine]()
    for path, tree in _trees():
        told = set(_instructions(tree))
        for node, text in _strings(tree):
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            found += (CommandLine(line, where, id(node) in told) for line in _lines(text))
    return tuple(found)


def unquoted(names: Iterable[str]) -> Iterator[str]:
    """Commands of these names inside a sentence of the source, without backticks."""
    command = re.compile(rf"(?<![`\w./:-])plinth ({'|'.join(names)})\b(?!, recipe )")  # a run's origin in MLflow
    for path, tree in _trees():
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node, text in _strings(tree):
            if id(node) not in docstrings and not _BARE.match(text) and command.search(re.sub(r"`[^`]*`", "", text)):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {text}"


def in_text(text: str) -> Iterator[str]:
    """Every `plinth …` of a Markdown text, outside its code blocks."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from _TICKED.findall(" ".join(prose.split()))


def in_blocks(text: str) -> Iterator[str]:
    """Every command line of the shell blocks of a Markdown text, and of blocks without a language.

    In a `console` block only what follows `$ ` is typed. In a block without a language two spaces begin an explanation.
    """
    for kind, block in re.findall(r"^```([^\n]*)\n(.*?)^```", text, _WHOLE):
        if kind not in ("bash", "console", ""):
            continue
        for line in re.sub(r" *\\\n *", " ", re.sub(r"<<'EOF'\n.*?^EOF$", "", block, flags=_WHOLE)).splitlines():
            if line.startswith("$ ") or kind != "console":
                typed = re.split(r"\s#", re.sub(r"'[^']*'|\"[^\"]*\"", FILLED, line.removeprefix("$ ")))[0]
                command = typed if kind else re.split(r"\s{2,}", typed.strip())[0]
                yield from (one.strip() for one in re.split(r"&&|\|\||[|;<>()]", command) if one.strip())


def resolve(root: click.Command, line: str, *, whole: bool = True) -> None:
    """Parse a command line against the real commands, without running it.

    Args:
        whole: also require what the command requires: a copied line must not answer "Missing option".

    Raises:
        click.UsageError: no such command or option, or something required is missing.
    """
    words = shlex.split(re.split(r" (?:[|<>]|&&) ", line.removesuffix("\\").replace("…", FILLED))[0])
    command, context = root, click.Context(root, info_name="plinth", obj=SimpleNamespace())
    assert words.pop(0) == "plinth", line
    while isinstance(command, click.Group) and words and words != ["--help"]:
        context.args = []
        command.parse_args(context, words)
        words = [*context._protected_args, *context.args]
        if not words or words[0].isupper():  # a placeholder
            return
        if command is root and words[0] in RENAMED:
            raise click.UsageError(f"{line!r} has an earlier name: {RENAMED[words[0]]}")
        name, inner, words = command.resolve_command(context, words)
        assert inner is not None, line
        command, context = inner, click.Context(inner, info_name=name, parent=context)
    if isinstance(command, click.Group):
        if whole and words != ["--help"] and not command.invoke_without_command:
            raise click.UsageError(f"{line!r} names no command of the group")
        return
    if f"--{FILLED}" in words:  # which option it is shows only when the sentence is printed
        return
    if not whole and words and words[-1].startswith("-"):
        words = [*words, *[FILLED] * _takes(command, words[-1])]  # a mention of an option
    given, rest, _ = command.make_parser(context).parse_args(args=words)
    required = [one for one in command.params if one.required and not _is_given(given.get(one.name or ""))]
    if whole and "help" not in given and (required or rest):
        lacking = ", ".join(one.human_readable_name for one in required)
        raise click.UsageError(f"{line!r}: missing {lacking or 'nothing'}, unexpected {rest}")


def _is_given(value: object) -> bool:
    """True for a parsed value: click has None or a sentinel of its own for what is absent."""
    return isinstance(value, str | bool | int) or (isinstance(value, tuple | list) and any(map(_is_given, value)))


def _takes(command: click.Command, option: str) -> int:
    """Number of values that an option takes."""
    found = [one for one in command.params if isinstance(one, click.Option) and option in one.opts]
    return sum(one.nargs for one in found if not one.is_flag and not one.count)


@cache
def _trees() -> tuple[tuple[Path, ast.Module], ...]:
    """Files of the source that mention a command, parsed."""
    paths = (path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py")))
    return tuple((path, ast.parse(text)) for path in paths if _BARE.search(text := path.read_text()))


def _instructions(tree: ast.Module) -> Iterator[int]:
    """Ids of the nodes inside a remedy, a line of a checklist, or what a command prints."""
    for node in ast.walk(tree):
        inside: list[ast.AST] = []
        if isinstance(node, ast.keyword) and node.arg in ("remedy", "hint", "command", "note"):
            inside = [node.value]
        elif isinstance(node, ast.Call) and re.search(r"(^Check|^examples|\bsay|\bline)$", ast.unparse(node.func)):
            inside = list(node.args)  # a line of a checklist, an example, or what a command prints
        elif isinstance(node, ast.FunctionDef) and re.search(r"remedy|next", node.name):
            inside = list(node.body[1:] if ast.get_docstring(node) else node.body)
        elif isinstance(node, ast.Assign) and any(re.search("REMEDY|remedy", ast.unparse(one)) for one in node.targets):
            inside = [node.value]
        for one in inside:
            yield from (id(each) for each in ast.walk(one))


def _strings(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts_of = (str(one.value) if isinstance(one, ast.Constant) else FILLED for one in node.values)
            yield node, "".join(parts_of)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node, node.value


def _lines(text: str) -> Iterator[str]:
    """Commands in backticks, and a string that is a command itself; its comment after two spaces goes."""
    if _BARE.match(text) and "`" not in text:
        yield re.split(r"\s{2,}|\s#", text.strip())[0]
    yield from _TICKED.findall(" ".join(text.split()))

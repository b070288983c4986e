"""YAML parser that records the position (file and line) of every key and list item.

Scalars follow YAML 1.2: only `true` and `false` are booleans (so that `no` stays a language code), dates stay
text, `1_000_000` and `3e-3` are numbers. Duplicate keys, custom tags and merge keys are reported as problems.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.cyaml import CParser
from yaml.resolver import Resolver

#: Path of a value in the data: mapping keys and list positions from the top.
Key = tuple[str | int, ...]

MAX_NODES = 100_000  # aliases may multiply a small file; real recipes are far smaller


@dataclass(frozen=True)
class Position:
    """Position in a file. Lines are counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Problem:
    """Problem in a recipe, with its position."""

    mark: Position
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.mark}  {self.key}: {self.message}" if self.key else f"{self.mark}  {self.message}"
        return f"{text} ({self.hint})" if self.hint else text


@dataclass
class Lined:
    """Parsed data of one file, or of several merged files.

    Args:
        data: keys and values.
        marks: position of every mapping key and list item.
        problems: problems found while reading.
        incomplete: True if a file is missing or unreadable, so absent keys are not reported.
    """

    data: dict[str, Any] = field(default_factory=dict)
    marks: dict[Key, Position] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    incomplete: bool = False

    def mark(self, key: Key, default: Position) -> Position:
        """Return the position of a key, or of the closest enclosing key or list in the file."""
        for end in range(len(key), 0, -1):
            if key[:end] in self.marks:
                return self.marks[key[:end]]
        return default


def dotted(key: Key) -> str:
    """Return a key in the form `corpus.buckets.web.sources[0].kind`."""
    text = ""
    for step in key:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def parse(text: str, file: str) -> Lined:
    """Parse one YAML text. Problems are recorded in the result instead of raised."""
    lined = Lined()
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return _unread(Position(file, mark.line + 1 if mark else 1), f"not YAML: {error.problem}")
    except yaml.YAMLError as error:  # the YAML reader found a character that YAML does not allow
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        return _unread(Position(file, line), f"not YAML: {getattr(error, 'reason', error)}")
    except UnicodeEncodeError as error:  # an unpaired surrogate, which no UTF-8 file contains
        return _unread(Position(file, text.count("\n", 0, error.start) + 1), "not YAML: unpaired surrogate")
    except RecursionError:
        return _unread(Position(file, 1), "nested too deeply for a recipe")
    if not isinstance(node, yaml.MappingNode):
        found = "nothing" if node is None else f"a {node.id}"
        return _unread(Position(file, 1), f"found {found}, expected a mapping of keys to values")
    lined.data = _Builder(loader, lined, file).mapping(node, ())
    return lined


def read(path: Path, file: str) -> Lined:
    """Read one YAML file. An unreadable file is recorded as a problem in the result."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"), file)
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        return _unread(Position(file, line), f"not UTF-8: {error.reason}")
    except OSError as error:
        return _unread(Position(file, 1), f"cannot be read: {error.strerror or error}")


def _unread(mark: Position, message: str) -> Lined:
    return Lined(problems=[Problem(mark, "", message)], incomplete=True)


def merge(parent: Lined, child: Lined) -> Lined:
    """Merge the child over the parent: mappings merge key by key, other values are replaced, `null` removes a key."""
    marks = dict(parent.marks)
    data = _merge(parent.data, child.data, (), marks, child.marks)
    return Lined(data, marks, parent.problems + child.problems, parent.incomplete or child.incomplete)


def _merge(
    old: dict[str, Any], new: dict[str, Any], at: Key, marks: dict[Key, Position], own: dict[Key, Position]
) -> Any:
    merged = dict(old)
    for name, value in new.items():
        key = (*at, name)
        if isinstance(value, dict) and isinstance(old.get(name), dict):
            merged[name] = _merge(old[name], value, key, marks, own)
            marks[key] = own[key]
            continue
        for gone in [known for known in marks if known[: len(key)] == key]:
            del marks[gone]
        if value is None and name in old:
            del merged[name]
            continue
        merged[name] = value
        marks.update({known: mark for known, mark in own.items() if known[: len(key)] == key})
    return merged


class _Loader(Composer, CParser, SafeConstructor, Resolver):  # type: ignore[misc]
    """Safe loader with YAML 1.2 scalars. libyaml scans the text, and Python composes the nodes.

    `yaml.CSafeLoader` composes in C, where deeply nested text crashes the process.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}  # noqa: RUF012 -- replaces the base's table

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)


_DIGITS = list("-+0123456789")
for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|)$", ["~", "n", ""]),
    ("bool", r"^(?:true|false)$", ["t", "f"]),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$", _DIGITS),
    ("float", r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)$", _DIGITS),
    ("merge", r"^<<$", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


class _Builder:
    """Converter from nodes to data that records positions and problems."""

    def __init__(self, loader: _Loader, lined: Lined, file: str) -> None:
        self.loader, self.lined, self.file = loader, lined, file
        self.nodes = 0
        self.open: set[int] = set()

    def mapping(self, node: yaml.MappingNode, at: Key) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, child in self._entries(node, at):
            key = (*at, name)
            if name in result:
                self._problem(child, key, f"written twice; first on line {self.lined.marks[key].line}")
                continue
            result[name] = None  # set before the value is read, so that a problem inside does not hide a duplicate key
            self.lined.marks[key] = Position(self.file, child[0].start_mark.line + 1)
            result[name] = self.value(child[1], key)
        return result

    def value(self, node: yaml.Node, at: Key) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or id(node) in self.open:
            if self.nodes <= MAX_NODES + 1:
                self._problem((node, node), at, "an alias refers to itself, or makes the recipe too large")
            self.nodes = MAX_NODES + 2 if self.nodes > MAX_NODES else self.nodes
            return None
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, at)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, at)
            return self._scalar(node, at)
        finally:
            self.open.discard(id(node))

    def _entries(self, node: yaml.MappingNode, at: Key) -> Iterator[tuple[str, tuple[yaml.Node, yaml.Node]]]:
        for name_node, value_node in node.value:
            pair = (name_node, value_node)
            name = self.loader.construct_object(name_node, deep=True) if _is_text(name_node) else None
            if isinstance(name, str):
                yield name, pair
            elif name_node.tag.endswith(":merge"):
                self._problem(pair, at, "merge keys (`<<`) are not supported", "use `extends: other.yaml`")
            else:
                self._problem(pair, at, f"the key {name_node.value!r} is not text", "quote it")

    def _sequence(self, node: yaml.SequenceNode, at: Key) -> list[Any]:
        for index, item in enumerate(node.value):
            self.lined.marks[(*at, index)] = Position(self.file, item.start_mark.line + 1)
        return [self.value(item, (*at, index)) for index, item in enumerate(node.value)]

    def _scalar(self, node: yaml.Node, at: Key) -> Any:
        try:
            value = self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, TypeError):
            value = node
        if isinstance(value, str | int | None) or (isinstance(value, float) and math.isfinite(value)):
            return value
        self._problem((node, node), at, f"{node.value!r} is not text, a number, true, false or null")
        return None

    def _problem(self, pair: tuple[yaml.Node, yaml.Node], key: Key, message: str, hint: str = "") -> None:
        mark = Position(self.file, pair[0].start_mark.line + 1)
        self.lined.problems.append(Problem(mark, dotted(key), message, hint))


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str"


# Follow `extends:` from file to file, and merge the files.
#
# The base is searched next to the recipe that extends it, then among the packaged recipes. A base that begins with
# `./` or `../`, or is absolute, is always a file.

SUFFIX = ".yaml"


def follow(path: Path, packaged: Path | None = None) -> Lined:
    """Return the keys of a recipe merged over the files that it extends.

    Args:
        path: path of the recipe.
        packaged: folder of the recipes that can be found by name.
    """
    return _follow(path, packaged, ())


def files(path: Path, packaged: Path | None = None) -> tuple[Path, ...]:
    """Return the files of a recipe and of all recipes that it extends."""
    found: list[Path] = []
    at: Path | None = path
    while at is not None and at not in found:
        found.append(at)
        base = read(at, shown(at)).data.get("extends")
        at = _base(base, at, packaged) if isinstance(base, str) else None
    return tuple(found)


def named(name: str, beside: Path, packaged: Path | None) -> Path | None:
    """Return the file for a recipe name, from the folder `beside` or else from the packaged recipes.

    The suffix `.yaml` is optional.
    """
    return next((path for path in _candidates(name, beside, packaged) if path.is_file()), None)


def shown(path: Path) -> str:
    """Return the path relative to the working directory if the file is below that directory, otherwise unchanged."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _candidates(name: str, beside: Path, packaged: Path | None) -> Iterator[Path]:
    yield beside / name
    if packaged is not None and Path(name).name == name and not name.startswith("./"):
        yield packaged / name
        if not name.endswith(SUFFIX):
            yield packaged / f"{name}{SUFFIX}"


def _follow(path: Path, packaged: Path | None, chain: tuple[Path, ...]) -> Lined:
    lined = read(path, shown(path))
    mark = lined.marks.get(("extends",), Position(shown(path), 1))
    if "extends" not in lined.data:
        return lined
    base = lined.data.pop("extends")
    chain = (*chain, path.resolve())
    target = _base(base, path, packaged) if isinstance(base, str) else None
    if not isinstance(base, str):
        message, hint = f"found {base!r}, expected the name or path of another recipe", ""
    elif target is None:
        message, hint = f"no file {shown(path.parent / base)}", _hint(packaged)
    elif target.resolve() in chain:
        circle = " -> ".join(shown(link) for link in (*chain[chain.index(target.resolve()) :], target))
        message, hint = f"circular `extends`: {circle}", ""
    else:
        return merge(_follow(target, packaged, chain), lined)
    lined.problems.append(Problem(mark, "extends", message, hint))
    lined.incomplete = True
    return lined


def _base(base: str, path: Path, packaged: Path | None) -> Path | None:
    """Return the file of `extends: base` in `path`. A recipe that extends its own name extends the packaged recipe."""
    found = [one for one in _candidates(base, path.parent, packaged) if one.is_file()]
    others = [one for one in found if one.resolve() != path.resolve()]
    return next(iter([*others, *found]), None)


def _hint(packaged: Path | None) -> str:
    names = sorted(one.name for one in packaged.glob(f"*{SUFFIX}")) if packaged else []
    known = f", or one of the packaged recipes: {', '.join(names)}" if names else ""
    return f"a path relative to the recipe that extends it{known}"

"""Save a changed rule into the user's recipe file. Comments, the order of keys and all other bytes are kept.

The rule's text is replaced where the file sets it. If the rule comes from a profile or from a recipe that the file
extends, it is added to the file. The new text is written only if it loads as the old recipe with just this rule
changed.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

from plinth.corpus.policy.parameters import Rule
from plinth.errors import ConflictError, MissingError, RecipeError, RequestError
from plinth.recipe.load import fingerprint
from plinth.recipe.recipe import Recipe
from plinth.recipe.yaml_lines import Position, follow, read, shown
from plinth.storage.atomic import named_failures, write_bytes
from plinth_jobs.recipes import FOLDER, load, notes_folder

#: Text that needs no quotes in YAML, in a block and in a flow collection.
_BARE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_ .<>=()+/-]*")


def current(recipe: Recipe, policy: str, reason: str) -> str:
    """Return the text of a rule in a recipe.

    Raises:
        MissingError: the recipe has no such rule.
    """
    for rule in recipe.corpus.policies[policy].rules if policy in recipe.corpus.policies else ():
        if rule.reason == reason:
            return rule.drop
    raise MissingError(f"the recipe has no rule {policy}/{reason}", remedy="add the rule to the recipe's policy")


def require_editable(path: Path, workspace: Path) -> None:
    """Check that a recipe file belongs to the user.

    Raises:
        RequestError: the file is packaged with Plinth, or is a private copy of a recipe in the workspace.
    """
    folder = path.resolve().parent
    if folder == FOLDER.resolve() or folder == notes_folder(workspace).resolve():
        raise RequestError(
            f"{path.name} is not a recipe of yours",
            found="a recipe that is packaged with Plinth, or a copy of a recipe with overrides",
            expected="a recipe file outside of the workspace",
            remedy=f"write a file with the line `extends: {path.name}`, and name it with -r FILE",
        )


def save(path: Path, policy: str, reason: str, before: str, text: str) -> Position:
    """Set the text of a rule in a recipe file, and return the position of the rule in the file.

    Args:
        before: the rule's text as the user saw it.

    Raises:
        ConflictError: the rule in the file is not `before` any more.
        RecipeError: the recipe is wrong with the new text, or the file cannot be edited without other changes.
    """
    recipe = load(path)
    found = current(recipe, policy, reason)
    if found != before:
        what = f"the rule {reason} in {path} has changed since the page was opened"
        raise ConflictError(what, found=found, expected=before, remedy="reload the page")
    with named_failures(path):
        source = path.read_bytes().decode()
        mode = path.stat().st_mode & 0o777
    made = edited(source, policy, reason, text, _inherited(path, policy))
    with named_failures(path):  # of the file next to it
        _require_only_change(path, made, recipe, policy, Rule(reason=reason, drop=text))
    write_bytes(path.resolve(), made.encode(), mode=mode)
    lined = read(path, shown(path))
    listed = lined.data["corpus"]["policies"][policy]["rules"]
    number = next(at for at, rule in enumerate(listed) if rule["reason"] == reason)
    return lined.marks["corpus", "policies", policy, "rules", number]


def _inherited(path: Path, policy: str) -> list[dict[str, Any]]:
    """Return the policy's own rules as plain data, from the file or from the recipes that it extends."""
    given = follow(path, FOLDER).data.get("corpus", {}).get("policies", {}).get(policy, {})
    return list(given.get("rules") or ())


def _require_only_change(path: Path, made: str, before: Recipe, policy: str, rule: Rule) -> None:
    """Load the new text next to the file, so that `extends:` finds the same files, and compare."""
    own = before.corpus.policies[policy]
    rules = tuple(rule if one.reason == rule.reason else one for one in own.rules)
    policies = {**before.corpus.policies, policy: own.model_copy(update={"rules": rules})}
    wanted = before.model_copy(update={"corpus": before.corpus.model_copy(update={"policies": policies})})
    with tempfile.NamedTemporaryFile("wb", dir=path.resolve().parent, prefix=".", suffix=".yaml") as stream:
        stream.write(made.encode())
        stream.flush()
        after = load(Path(stream.name))
    if fingerprint(after) != fingerprint(wanted):
        raise RecipeError(
            f"{path} cannot be edited without changing more than the rule {rule.reason}",
            expected=f"corpus.policies.{policy}.rules as a list of its own",
            remedy=f"write it by hand: {item(rule.reason, rule.drop)}",
        )


def edited(source: str, policy: str, reason: str, text: str, inherited: list[dict[str, Any]]) -> str:
    """Return a recipe's YAML text with a rule set.

    Args:
        inherited: the policy's own rules, which are written out if the file has no list of its own.
    """
    node, rest = _deepest(yaml.compose(source, yaml.SafeLoader), ("corpus", "policies", policy, "rules"))
    if isinstance(node, yaml.SequenceNode) and not rest:
        scalar = _drop(node, reason)
        if scalar is not None:
            return _replaced(source, scalar, text)
        return _appended(source, node, [item(reason, text)])
    if not isinstance(node, yaml.MappingNode) or not rest:
        raise RecipeError("the recipe's policy is not a mapping with a list of rules", remedy="edit the file by hand")
    pairs = {str(rule["reason"]): str(rule["drop"]) for rule in inherited} | {reason: text}
    items = [item(*pair) for pair in pairs.items()]
    if node.flow_style:
        nested = f"[{', '.join(items)}]"
        for key in reversed(rest[1:]):
            nested = f"{{{key}: {nested}}}"
        return _appended(source, node, [f"{rest[0]}: {nested}"])
    indent = " " * (node.value[0][0].start_mark.column if node.value else 0)
    lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate(rest)]
    lines += [f"{'  ' * len(rest)}- {one}" for one in items]
    return _after(source, _end(node), [indent + line for line in lines])


def item(reason: str, text: str) -> str:
    """Return a rule as a YAML flow mapping."""
    return f"{{reason: {reason}, drop: {_scalar(text, '')}}}"


def _deepest(node: yaml.Node | None, path: tuple[str, ...]) -> tuple[yaml.Node | None, tuple[str, ...]]:
    """Return the last node on a path of keys that exists, and the remaining keys."""
    for key, value in node.value if path and isinstance(node, yaml.MappingNode) else ():
        if key.value == path[0]:
            return _deepest(value, path[1:])
    return node, path


def _drop(rules: yaml.SequenceNode, reason: str) -> yaml.ScalarNode | None:
    for rule in rules.value:
        keys = {key.value: value for key, value in rule.value} if isinstance(rule, yaml.MappingNode) else {}
        if "reason" in keys and keys["reason"].value == reason and isinstance(keys.get("drop"), yaml.ScalarNode):
            return keys["drop"]
    return None


def _replaced(source: str, node: yaml.ScalarNode, text: str) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    own = source[start:end]
    closing = own[len(own.rstrip()) :]  # a block scalar includes its line end and empty lines
    return source[:start] + _scalar(text, node.style or "") + closing + source[end:]


def _scalar(text: str, style: str) -> str:
    if style == "'" and "\n" not in text:
        return "'" + text.replace("'", "''") + "'"
    bare = style == "" and _BARE.fullmatch(text) and not text.endswith(" ")
    return text if bare else json.dumps(text, ensure_ascii=False)


def _appended(source: str, node: yaml.CollectionNode, items: list[str]) -> str:
    """Return the text with entries at the end of a list or of a flow mapping."""
    if node.flow_style:
        end = node.end_mark.index - 1  # before the bracket
        if node.value:
            end = _end(node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1])
        return source[:end] + ", " * bool(node.value) + ", ".join(items) + source[end:]
    first = node.value[0].start_mark
    start = first.index - first.column
    indent = re.match(r"[ ]*", source[start:])
    assert indent is not None
    return _after(source, _end(node), [f"{indent[0]}- {one}" for one in items])


def _end(node: yaml.Node) -> int:
    """Return the end of a node's own text, without comments and empty lines after it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _after(source: str, at: int, lines: list[str]) -> str:
    """Return the text with lines after the line that contains a position."""
    newline = "\r\n" if "\r\n" in source else "\n"
    if at and source[at - 1] != "\n":  # a block scalar ends at the beginning of the next line
        found = source.find("\n", at)
        source, at = (source, found + 1) if found >= 0 else (source + newline, len(source) + len(newline))
    return source[:at] + "".join(line + newline for line in lines) + source[at:]

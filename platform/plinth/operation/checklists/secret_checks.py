"""Lines about secrets: none is written into recipes, settings or the configurations of runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from plinth.errors import RecipeError
from plinth.operation.checklists.check import Check, CheckAnswer, failed, not_applicable, passed
from plinth.operation.checklists.scope import CheckScope

#: Password in the authority of a URL.
_URL_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]+:([^/\s@]+)@")
#: A value that names where a secret is, instead of being one.
_REFERENCE = re.compile(r"\$\{?\w+\}?|<[^>]*>|\*+")
_SETTINGS = ("objectives.yaml", "checklists.yaml", "budget/settings.yaml")


def no_literals(scope: CheckScope) -> CheckAnswer:
    """Recipe with all that it extends, settings of the workspace, environments of its runs."""
    places = dict(_places(scope))
    if not places:
        return not_applicable("no recipe and no settings")
    found = [f"{where}: {key}" for where, data in places.items() for key in _secrets(data)]
    return failed("; ".join(found)) if found else passed(f"none in {', '.join(sorted(places))}")


def _places(scope: CheckScope) -> Iterator[tuple[str, Any]]:
    from plinth.recipe.extends import follow

    root = scope.ctx.workspace.root
    if scope.recipe_path is not None:
        try:
            yield scope.recipe_path.name, follow(scope.recipe_path, _packaged(scope.recipe_path)).data
        except RecipeError:  # extends one that is packaged elsewhere: what was resolved is what counts
            assert scope.recipe is not None
            yield scope.recipe_path.name, scope.recipe.model_dump(mode="json")
    for name in _SETTINGS:
        if (root / name).is_file():
            yield name, yaml.safe_load((root / name).read_text(encoding="utf-8"))
    for config in scope.runs:
        yield f"runs/{config.run_id}", {"environment": dict(config.launch.environment)}


def _packaged(path: Path) -> Path:
    """Where `extends:` finds packaged recipes: beside the file, too, when it is one."""
    return path.parent


def _secrets(data: Any, key: str = "") -> Iterator[str]:
    """Keys of a nested value that hold a secret: never the secret itself."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _secrets(value, f"{key}.{name}" if key else str(name))
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from _secrets(value, f"{key}.{index}")
    elif isinstance(data, str) and _secret(key.rpartition(".")[2], data):
        yield key


def _secret(name: str, value: str) -> bool:
    from plinth.corpus.annotate.pii import keys

    raw = value.encode(errors="replace")
    url = _URL_PASSWORD.search(value)
    if url and not _REFERENCE.fullmatch(url[1]):
        return True
    if keys.PEM.search(raw) or keys.JWT.search(raw) or any(form.search(raw) for _, _, form in keys.FORMS):
        return True
    named = keys.SECRET_NAME.search(name.encode()) and not keys.OPEN_NAME.search(name.encode())
    return bool(named and len(value) >= 8 and not _REFERENCE.fullmatch(value) and not value.startswith(("/", "file:")))


CHECKS = (
    Check(
        "secret-literals", "recipes, settings and environments of runs hold no secrets", "security",
        ("preproduction", "security"), "take it out, give it by the environment or a secret store, and exchange it",
        no_literals,
    ),
)  # fmt: skip

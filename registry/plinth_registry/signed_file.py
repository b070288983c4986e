"""A YAML file that somebody signs, read as a record: every problem with its line and key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from plinth.errors import RecipeError
from plinth.recipe import yaml_lines
from plinth.records import Frozen

M = TypeVar("M", bound=Frozen)


def load(
    path: Path,
    record: type[M],
    what: str,
    page: str,
    more: Callable[[M], Iterable[Exception]] = lambda _: (),
    unknown: Callable[[str], str] = lambda _: "",
) -> M:
    """The record in a file.

    Args:
        what: names the kind of file in errors, `page` the document that describes its keys.
        more: problems that the record itself cannot see.
        unknown: why the record has no such key, where there is more to say.

    Raises:
        RecipeError: it cannot be read or is wrong; lists every problem with its line and key.
    """
    lined = yaml_lines.read(path, str(path))
    problems = [str(problem) for problem in lined.problems]
    if not problems:
        try:
            found = record.model_validate(lined.data)
        except ValidationError as error:
            problems = [_problem(lined, path, detail, unknown) for detail in error.errors(include_url=False)]
        else:
            problems = [str(error) for error in more(found)]
    if problems:
        raise RecipeError(
            f"{len(problems)} problem{'s' * (len(problems) > 1)} in the {what} {path}\n"
            + "\n".join(f"  {one}" for one in problems),
            remedy=f"correct the lines above; {page} describes every key",
        )
    return found


def _problem(lined: yaml_lines.Lined, path: Path, detail: Any, unknown: Callable[[str], str]) -> str:
    key = tuple(step for step in detail["loc"] if step != "[key]")
    mark = lined.mark(key, yaml_lines.Position(str(path), 1))
    dotted = yaml_lines.dotted(key)
    why = unknown(dotted) if detail["type"] == "extra_forbidden" else ""
    return f"{mark}  {dotted}: {why or detail['msg']}"

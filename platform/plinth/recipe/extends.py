"""Follow `extends:` from file to file, and merge what the files say.

A base is looked for beside the recipe that names it, then among the packaged recipes. A base that begins
with `./` or `../`, or is absolute, is always a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from plinth.recipe.yaml_lines import Lined, Position, Problem, merge, read

SUFFIX = ".yaml"


def follow(path: Path, packaged: Path | None = None) -> Lined:
    """The keys of a recipe merged over the files that it extends.

    Args:
        path: the recipe.
        packaged: folder of the recipes that are found by name from anywhere.
    """
    return _follow(path, packaged, ())


def files(path: Path, packaged: Path | None = None) -> tuple[Path, ...]:
    """The file of a recipe and those of the recipes that it extends."""
    found: list[Path] = []
    at: Path | None = path
    while at is not None and at not in found:
        found.append(at)
        base = read(at, shown(at)).data.get("extends")
        at = _base(base, at, packaged) if isinstance(base, str) else None
    return tuple(found)


def named(name: str, beside: Path, packaged: Path | None) -> Path | None:
    """The file that a name means: one in the folder `beside`, else a packaged recipe; `.yaml` may be left out."""
    return next((path for path in _candidates(name, beside, packaged) if path.is_file()), None)


def shown(path: Path) -> str:
    """The path relative to the working directory, where it lies below it."""
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
        message, hint = f"found {base!r}, expected the name or the path of another recipe", ""
    elif target is None:
        message, hint = f"no file {shown(path.parent / base)}", _hint(packaged)
    elif target.resolve() in chain:
        circle = " -> ".join(shown(link) for link in (*chain[chain.index(target.resolve()) :], target))
        message, hint = f"recipes extend each other in a circle: {circle}", ""
    else:
        return merge(_follow(target, packaged, chain), lined)
    lined.problems.append(Problem(mark, "extends", message, hint))
    lined.incomplete = True
    return lined


def _base(base: str, path: Path, packaged: Path | None) -> Path | None:
    """The file that `extends: base` means in `path`. A recipe that extends its own name extends the packaged one."""
    found = [one for one in _candidates(base, path.parent, packaged) if one.is_file()]
    others = [one for one in found if one.resolve() != path.resolve()]
    return next(iter([*others, *found]), None)


def _hint(packaged: Path | None) -> str:
    names = sorted(one.name for one in packaged.glob(f"*{SUFFIX}")) if packaged else []
    known = f", or one of the packaged recipes: {', '.join(names)}" if names else ""
    return f"a path relative to the recipe that names it{known}"

"""Lines about the code that runs here: what it unpickles, which commit it is of, whether the pinned versions are in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Final

import plinth
from plinth.operation.checklists.check import (
    Check,
    CheckAnswer,
    failed,
    passed,
    undetermined,
    warned,
)
from plinth.operation.checklists.scope import CheckScope

#: Modules that may unpickle, and what: a process's own pipes to children that it started.
MAY_UNPICKLE: Final = {"plinth/compute/engine.py": "messages of its own worker processes"}

_PACKAGES = ("plinth", "plinth_registry", "plinth_assets", "plinth_jobs")
#: Modules whose `load` and `loads` run what they read.
_UNPICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
_READING = {"load", "loads", "Unpickler", "open"}
#: A module without any of these has no such call under any alias; the others are parsed.
_MAY_BE = re.compile(
    rb"\b(?:c?[pP]ickle|_pickle|dill|cloudpickle|joblib|shelve|marshal|jsonpickle)(?:[.,]|\s+(?:as|import)\b|\s*\n)|"
    rb"read_pickle|\b(?:np|numpy|torch|yaml)\.[\w.]*load|"
    rb"from\s+(?:numpy|torch|yaml)[\w.]*\s+import\s+(?:\(|[^\n]*load)|"
    rb"import\s+(?:numpy|torch|torch\.serialization|yaml)\s+as\s+(?!np\b)"
)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)")


def nothing_unpickled(scope: CheckScope) -> CheckAnswer:
    """No module of the four packages unpickles, but those of `MAY_UNPICKLE`. Read from the source, nothing is run."""
    files = [(name, path) for name in _PACKAGES for path in sorted(_folder(name).rglob("*.py"))]
    found = [
        f"{shown}:{line} {call}"
        for name, path in files
        if (shown := f"{name}/{path.relative_to(_folder(name))}") not in MAY_UNPICKLE
        for line, call in unpickling(path.read_bytes())
    ]
    return failed("; ".join(found)) if found else passed(f"{len(files)} files; {', '.join(MAY_UNPICKLE)} may")


def unpickling(source: bytes) -> Iterator[tuple[int, str]]:
    """Line and name of the calls of a module that may run what they read.

    Found by name: `pickle.load` and its like under any alias, `torch.load` without `weights_only=True`,
    `numpy.load(allow_pickle=True)`, `pandas.read_pickle`, `yaml.load` without a safe loader.
    """
    if not _MAY_BE.search(source):
        return
    tree = ast.parse(source)
    aliases = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Attribute):
            called = node.func if isinstance(node, ast.Call) else node
            name = _dotted(called, aliases)
            given = {k.arg: ast.unparse(k.value) for k in node.keywords} if isinstance(node, ast.Call) else {}
            if _runs_what_it_reads(name, given, isinstance(node, ast.Call)):
                yield node.lineno, name


def _runs_what_it_reads(name: str, given: dict[str | None, str], called: bool) -> bool:
    module, _, last = name.rpartition(".")
    if module.partition(".")[0] in _UNPICKLING and last in _READING:
        return called or last != "open"
    if not called:
        return False
    if name in ("torch.load", "torch.serialization.load"):
        return given.get("weights_only") != "True"
    if name in ("numpy.load", "numpy.lib.npyio.load"):
        return given.get("allow_pickle", "False") != "False"
    if name in ("yaml.load", "yaml.load_all"):
        return "Safe" not in given.get("Loader", "")
    return last == "read_pickle" or name in ("yaml.unsafe_load", "yaml.full_load")


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield one.asname or one.name.partition(".")[0], one.name if one.asname else one.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                yield one.asname or one.name, f"{node.module}.{one.name}"


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([aliases.get(node.id, node.id), *reversed(parts)])


def commit_known(scope: CheckScope) -> CheckAnswer:
    """The code is a commit without changes."""
    from plinth.training.attempts.host import commit_of

    found = commit_of(Path(plinth.__file__).resolve().parent)
    if not found.get("commit"):
        return undetermined(str(found.get("no_commit")))
    shown = f"commit {str(found['commit'])[:12]}"
    return warned(f"{shown}, and files differ from it") if found["dirty"] else passed(shown)


def pins_installed(scope: CheckScope) -> CheckAnswer:
    """Installed distributions have the versions of `constraints.txt`."""
    path = Path(plinth.__file__).resolve().parents[2] / "constraints.txt"
    if not path.is_file():
        return undetermined(f"no {path.name} beside the code")
    pins = {match[1].lower(): match[2] for line in path.read_text().splitlines() if (match := _PIN.match(line.strip()))}
    other = [
        f"{name} {found}, pinned {pins[name]}"
        for name, found in _installed(pins)
        if found.partition("+")[0] != pins[name].partition("+")[0]  # a build for one device is that version, too
    ]
    return warned("; ".join(other)) if other else passed(f"{len(pins)} pins")


def _installed(pins: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name in pins:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _folder(package: str) -> Path:
    (location,) = util.find_spec(package).submodule_search_locations  # type: ignore[union-attr, misc]
    return Path(location).resolve()


CHECKS = (
    Check(
        "unpickling", "nothing is unpickled but messages of a process's own children", "security", ("security",),
        "read safetensors, Parquet, JSON or NumPy without objects instead; a name in MAY_UNPICKLE needs a reason",
        nothing_unpickled, waivable=False,
    ),
    Check(
        "code-commit", "the code that runs here is a commit without changes", "platform",
        ("preproduction", "security"), "commit, or check the commit out that was reviewed", commit_known,
    ),
    Check(
        "pins", "what is installed has the pinned versions", "platform", ("preproduction", "security"),
        "`make setup` in a checkout; an image is built again", pins_installed,
    ),
)  # fmt: skip

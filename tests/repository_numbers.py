"""Sizes of the source tree: `python -m tests.repository_numbers [CHECKOUT]`.

For each package: files, lines of code without docstrings, comments and blanks, modules with one importer, late imports
of our own modules, functions above 40 lines.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FOLDERS = {
    **{name: f"platform/{name}" for name in ("plinth_text", "plinth")},
    **{name: f"platform/{name}" for name in ("plinth_ops", "plinth_lab", "plinth_audit", "plinth_extras")},
    "plinth_registry": "registry/plinth_registry",
    "plinth_assets": "assets/plinth_assets",
    "plinth_jobs": "jobs/plinth_jobs",
}
LONG_FUNCTION_LINES = 40
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def modules(root: Path) -> dict[str, Path]:
    """Every module of a checkout by its dotted name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = [package, *path.relative_to(root / folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def code_lines(source: str) -> int:
    """Lines with code: no blank line, no line with a comment alone, no docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def long_functions(tree: ast.AST) -> int:
    """Functions of more than `LONG_FUNCTION_LINES` lines."""
    functions = (node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS))
    return sum((node.end_lineno or 0) - node.lineno + 1 > LONG_FUNCTION_LINES for node in functions)


def imported(tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    """Our own modules that a tree imports, wherever in it; packages are left out where a module of theirs is meant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known or node.module in known:
                    yield full if full in known else node.module


def late(tree: ast.AST, known: dict[str, Path]) -> int:
    """Imports of our own modules inside functions."""
    functions = (node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS))
    found = {id(inner): inner for outer in functions for inner in ast.walk(outer)}
    imports = [node for node in found.values() if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum(any(imported(ast.Module([node], []), known)) for node in imports)


def measure(root: Path) -> dict[str, Counter[str]]:
    """Numbers by package: the four, and those of the library one by one."""
    known = modules(root)
    trees = {name: ast.parse(path.read_text()) for name, path in known.items()}
    importers: Counter[str] = Counter()
    for name, tree in trees.items():
        importers.update(set(imported(tree, known)) - {name})
    found: dict[str, Counter[str]] = {}
    for name, path in known.items():
        parts = name.split(".")
        package = ".".join(parts[:2]) if parts[0] == "plinth" and len(parts) > 1 else parts[0]
        found.setdefault(package, Counter()).update(
            {
                "files": 1,
                "code": code_lines(path.read_text()),
                "one importer": int(importers[name] == 1 and path.name != "__init__.py"),
                "late imports": late(trees[name], known),
                "functions > 40": long_functions(trees[name]),
            }
        )
    return found


def main() -> None:
    """Print the table."""
    found = measure(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])
    found["all"] = sum(found.values(), Counter())
    columns = ("files", "code", "one importer", "late imports", "functions > 40")
    print(f"{'package':<22}" + "".join(f"{column:>16}" for column in columns))
    for package, row in found.items():
        print(f"{package:<22}" + "".join(f"{row[column]:>16,}" for column in columns))


if __name__ == "__main__":
    main()

"""The threat model names tests that exist, in every row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 25
    assert [f"{path}::{name}" for path, name in named if name not in functions(ROOT / path)] == []


def test_every_row_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    assert [row for row in rows if "::test_" not in row] == []


def test_the_page_stays_short() -> None:
    words = [word for word in re.sub(r"`tests/[^`]+`", "", PAGE).split() if word.strip("|,")]
    assert len(words) <= 3000  # a row for each attack

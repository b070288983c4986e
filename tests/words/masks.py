"""Mask everything in a file but its prose, at the same length and lines, so that a match has its place in the file."""

from __future__ import annotations

import ast
import re
from itertools import accumulate

SUFFIXES = {".py", ".md", ".j2", ".c", ".h", ".yaml", ".toml", ".sh", ".conf", ""}
HASH = {".yaml", ".toml", ".sh", ".conf", ""}  # comments run from `#` to the end of the line
# Masked at the same length: the seam of two literals, code and format fields, markup, examples.
SEAM = re.compile(r"""["']\s+[rbfRBF]{0,2}["']|\\\n|\\n""")
CODE = re.compile(r"``?[^`\n]*(?:\n[^`\n]+)?``?|\{[^{}\n]*\}|https?://\S+")
MARKUP = re.compile(r"\{[{%#].*?[}%#]\}|<style>.*?</style>|<[^>]*>|\]\([^)\s]*\)", re.DOTALL)
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def blank(text: str, what: re.Pattern[str]) -> str:
    """Mask matches at the same length and lines; seams become spaces, so that phrases continue across them."""
    return what.sub(lambda found: re.sub(r"[^\n]", " " if what is SEAM else "\0", found[0]), text)


def prose(suffix: str, source: str) -> str:
    """Mask everything but the prose of a file that is not Python."""
    if suffix in (".c", ".h"):
        comments = re.compile(r"(/\*.*?\*/|//[^\n]*|\n)|.", re.DOTALL)
        return comments.sub(lambda found: found[1] or "\0", source)
    if suffix in HASH:
        return blank(source, re.compile(r"^(?:(?!(?<!\S)#).)*#*", re.MULTILINE))
    return blank(blank(blank(source, FENCE), MARKUP), CODE)


def python(source: str, messages: bool) -> tuple[str, str, list[int]]:
    """Return two masks of a module, its prose and its public names, and where docstrings and descriptions begin."""
    lines = source.encode().splitlines(keepends=True)
    starts = list(accumulate((len(line.decode()) for line in lines), initial=0))
    shown, names, openings, literals = ["\0"] * len(source), ["\0"] * len(source), list[int](), list[ast.expr]()
    docstrings, fields, pieces = set[ast.AST](), set[ast.AST](), set[ast.AST]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(node.value)
        elif isinstance(node, ast.keyword) and node.arg in ("help", "description", "short_help") and messages:
            fields.add(node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and messages and not node.name.startswith("_"):
            begin = source.index(f"def {node.name}", starts[node.lineno - 1]) + 4
            names[begin : begin + len(node.name)] = node.name.replace("_", " ")
        elif isinstance(node, ast.JoinedStr | ast.Constant) and node not in pieces:
            literals += [node] * isinstance(getattr(node, "value", ""), str | bytes)
            pieces.update(ast.walk(node))
    code = list(source)
    for node in literals:
        begin, end = (
            starts[line - 1] + len(lines[line - 1][:column].decode())
            for line, column in ((node.lineno, node.col_offset), (node.end_lineno or 1, node.end_col_offset or 0))
        )
        code[begin:end] = "\0" * (end - begin)
        if node in docstrings or (messages and " " in source[begin:end]):
            shown[begin:end] = blank(blank(source[begin:end], SEAM), CODE)
        if node in docstrings or node in fields:
            openings.append(begin)
    before = -1
    for comment in re.finditer(r"(?:^[ \t]*)?#[^\n]*\n?", "".join(code), re.MULTILINE):
        begin, end = comment.span()
        shown[begin:end] = blank(comment[0].replace("#", " "), CODE)
        if comment[0].lstrip().startswith("#:") and before != begin:
            openings.append(begin)  # the description of an attribute
        before = end
    return "".join(shown), "".join(names), openings

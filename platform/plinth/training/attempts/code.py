"""Digests of the code that runs: Plinth's library, registry, assets and jobs, as their files are now.

Python files and the C of the kernels. A package that is not installed has none: a machine that only trains needs the
library alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import plinth

#: The packages, in the order in which they import each other.
PACKAGES = ("plinth", "plinth_registry", "plinth_assets", "plinth_jobs")
#: Files that are code.
SUFFIXES = (".py", ".c", ".h")


def code_digests() -> dict[str, str]:
    """SHA-256 by package, over the names and bytes of its files of code; read anew at every call."""
    return {name: _of_tree(root) for name, root in _roots()}


@cache
def code_version() -> dict[str, str]:
    """The library's version, and one SHA-256 over the digests of all packages that are installed."""
    return {"version": plinth.__version__, "sha256": together(code_digests())}


def together(digests: Mapping[str, str]) -> str:
    """One SHA-256 over the digests of several packages."""
    listed = "".join(f"{name}:{digest}\n" for name, digest in digests.items())
    return hashlib.sha256(listed.encode()).hexdigest()


def _roots() -> Iterator[tuple[str, Path]]:
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:  # a folder without `__init__.py` is somebody else's
            yield name, Path(spec.origin).parent


def _of_tree(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root).as_posix()}:{content}\n".encode())
    return digest.hexdigest()

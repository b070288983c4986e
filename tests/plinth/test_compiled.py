"""A cached kernel is compiled anew when what it calls or reads has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plinth import compiled

CALLER = """
from plinth.compiled import njit
from plinth.middle import plus

@njit(cache=True)
def answer(value):
    return plus(value)
"""
MIDDLE = """
from plinth.compiled import njit
from plinth.room import (
    table as numbers,  # a name of ours
)

@njit(inline="always")
def plus(value):
    return value + numbers.STEP
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of the same name with a kernel, what it calls, and the constant that this reads."""
    folder = tmp_path / "plinth"
    (folder / "room").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "caller": CALLER,
        "middle": MIDDLE,
        "room/__init__": "",
        "room/table": "STEP = 1\n",
    }.items():
        (folder / f"{name}.py").write_text(text)
    shutil.copy(compiled.__file__, folder / "compiled.py")
    return folder


def test_a_kernel_follows_what_it_calls(package: Path) -> None:
    assert _answer(package) == ["41", "0"]
    assert _answer(package) == ["41", "1"]  # from the cache
    (package / "room" / "table.py").write_text("STEP = 2\n")
    assert _answer(package) == ["42", "0"]
    (package / "unrelated.py").write_text("STEP = 3\n")
    assert _answer(package) == ["42", "1"]


PAIR = """
from typing import NamedTuple

class {name}(NamedTuple):
    left: int
    right: int
"""
TAKER = """
from plinth.compiled import njit
from plinth.pair import {name}

@njit(cache=True)
def total(pair):
    return pair.left + pair.right

def answer(value):
    return total({name}(value, 1))

answer.stats = total.stats
"""


def test_a_cache_that_names_a_class_that_is_gone_is_compiled_anew(package: Path) -> None:
    for name in ("Old", "New"):
        (package / "pair.py").write_text(PAIR.format(name=name))
        (package / "caller.py").write_text(TAKER.format(name=name))
        assert _answer(package) == ["41", "0"]
        assert _answer(package) == ["41", "1"]
    indexes = [file.name for file in (package / "__pycache__").glob("caller.*.nbi")]
    assert len(indexes) == 1  # what the older version left is gone


def _answer(package: Path) -> list[str]:
    """What the kernel says in a process of its own, and how often it came from the cache."""
    script = "from plinth.caller import answer; print(answer(40), sum(answer.stats.cache_hits.values()))"
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_what_a_file_rests_on() -> None:
    found = {file.name for file in compiled.imported(compiled.ROOT / "text" / "similarity" / "signatures.py")}
    assert {"compiled.py", "simd_minhash.py"} <= found

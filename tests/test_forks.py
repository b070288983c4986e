"""Modules run in children of a process of pytest-xdist: a new one once the last is large; nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plinth import processes
from tests import peers

CONFTEST = """
import os, pytest
from tests import forks
forks.GROWN_MIB = {limit}

def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(forks.Forks())

def wrote(line):
    with open("lines", "a") as stream:
        stream.write(line + chr(10))

@pytest.fixture(scope="session", autouse=True)
def session_thing():
    yield
    wrote(f"{{os.getpid()}} ends")

@pytest.fixture(autouse=True)
def where(request):
    wrote(f"{{os.getpid()}} {{request.node.name}}")
"""
TESTS = {
    "test_a.py": "def test_one(): pass\ndef test_two(): raise ValueError('seen')\n",
    "test_b.py": "import warnings\ndef test_three(): warnings.warn('heard')\n",
}


def run(folder: Path, limit: int, tests: dict[str, str]) -> tuple[str, list[list[str]]]:
    """Return pytest's output, and for each process the names of its tests and the end of its session."""
    for name, text in {"conftest.py": CONFTEST.format(limit=limit), "pytest.ini": "[pytest]\n", **tests}.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadscope", "-p", "no:cacheprovider"]
    command += ["--max-worker-restart", "0", "--basetemp", "own"]
    done = subprocess.run(command, cwd=folder, env=processes.environment(), capture_output=True, text=True)
    by_process: dict[str, list[str]] = {}
    for line in (folder / "lines").read_text().splitlines():
        number, name = line.split()
        by_process.setdefault(number, []).append(name)
    return done.stdout + done.stderr, list(by_process.values())


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0, [["test_one", "test_two", "ends"], ["test_three", "ends"]]),
        (100_000, [["test_one", "test_two", "test_three", "ends"]]),
    ],
)
def test_a_module_after_a_large_child_runs_in_another(tmp_path: Path, limit: int, expected: list[list[str]]) -> None:
    printed, ran = run(tmp_path, limit, TESTS)
    assert ran == expected
    for text in ("ValueError: seen", "UserWarning: heard", "1 failed, 2 passed, 1 warning"):
        assert text in printed


@pytest.mark.parametrize("line", ["os._exit(9)", "atexit.register(os._exit, 9)"], ids=["in the test", "at the end"])
def test_a_child_that_fails_fails_its_test(tmp_path: Path, line: str) -> None:
    printed, _ = run(tmp_path, 0, {"test_it.py": f"import atexit, os\ndef test_dies(): {line}\n"})
    assert "crashed while running 'test_it.py::test_dies'" in printed
    assert "1 failed" in printed


def test_no_large_library_is_imported_by_the_collection() -> None:
    assert set() == peers.COLLECTED

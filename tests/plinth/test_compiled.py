"""A cached kernel is compiled anew when what it calls or reads has changed."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plinth import compiled, errors, private

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
    for module in (compiled, errors, private):
        shutil.copy(str(module.__file__), folder)
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
    older, newer = sorted((package.parent / "private").rglob("caller.*.nbi"), key=lambda file: file.stat().st_mtime)
    (package / "caller.py").write_text(TAKER.format(name="Old"))
    (package / "pair.py").write_text(PAIR.format(name="Old"))
    assert _answer(package) == ["41", "1"]  # another checkout may still have the older version
    os.utime(newer, (0, 0))  # nobody has used it for long
    assert _answer(package) == ["41", "1"]
    assert older.exists()
    assert not newer.exists()


def test_a_cache_that_cannot_be_written_is_used(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    name = f"caller.plus-1.py311-{compiled._mark(str(package / 'caller.py'))}.nbi"
    (tmp_path / name).touch()
    monkeypatch.setattr(os, "utime", refuse)
    compiled._sweep(tmp_path, str(package / "caller.py"))
    assert (tmp_path / name).exists()


def test_a_copy_elsewhere_shares_what_is_compiled(package: Path, tmp_path: Path) -> None:
    assert _answer(package) == ["41", "0"]
    copy = shutil.copytree(package, tmp_path / "elsewhere" / "plinth")
    shared = {private.VARIABLE: str(package.parent / "private")}
    script = "from plinth.caller import answer; print(answer(40), sum(answer.stats.cache_hits.values()))"
    assert _run(copy, script, **shared).stdout.split() == ["41", "1"]


def _answer(package: Path) -> list[str]:
    """What the kernel says in a process of its own, and how often it came from the cache."""
    script = "from plinth.caller import answer; print(answer(40), sum(answer.stats.cache_hits.values()))"
    return _run(package, script).stdout.split()


def _environment(package: Path, **variables: str) -> dict[str, str]:
    own = {"PYTHONPATH": str(package.parent), private.VARIABLE: str(package.parent / "private")}
    others = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return others | own | variables | {"PYTHONDONTWRITEBYTECODE": "1"}


def _started(package: Path, script: str) -> subprocess.Popen[str]:
    pipe, command = subprocess.PIPE, [sys.executable, "-c", script]
    return subprocess.Popen(command, env=_environment(package), stdin=pipe, stdout=pipe, text=True)


def _run(package: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = _environment(package, **variables)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    if not variables:
        assert done.returncode == 0, done.stderr
    return done


def test_processes_that_start_together_compile_a_kernel_once(package: Path) -> None:
    """All hold the same module before the first of them calls its kernel."""
    script = "from plinth.caller import answer; print(0, flush=True); input()"
    script += "; print(answer(40), *answer.stats.cache_hits)"
    children = [_started(package, script) for _ in range(4)]
    assert [child.stdout.readline() for child in children] == ["0\n"] * 4
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    said = sorted(child.communicate(timeout=600)[0] for child in children)
    assert said == ["41\n"] + ["41 (int64,)\n"] * 3  # the signature that came from the cache


def test_a_process_that_is_suspended_while_it_compiles_stops_no_other(package: Path) -> None:
    assert _answer(package) == ["41", "0"]
    (lock,) = (package.parent / "private").rglob("*answer.lock")
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        impatient = "from plinth import compiled; compiled.WAIT_S = 0.2"
        assert _run(package, f"{impatient}; from plinth.caller import answer; print(answer(1))").stdout == "2\n"


#: Runs a kernel and reports every compiled or pickled file that was opened, and every class that was unpickled.
WATCHED = """
import sys
opened, found = [], []
def watch(event, args):
    if event == "open" and str(args[0]).endswith((".nbi", ".nbc", ".pkl", ".pt")):
        opened.append(str(args[0]))
    if event == "pickle.find_class":
        found.append(args[0])
sys.addaudithook(watch)
from plinth.caller import answer
answer(40)
import json
print(json.dumps({"opened": opened, "found": sorted(set(found))}))
"""


class Payload:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_what_lies_beside_the_source_is_not_unpickled(package: Path, tmp_path: Path) -> None:
    """Whoever can write the source tree's caches runs no code: an index that looks right is not opened."""
    assert _answer(package) == ["41", "0"]
    cache = package / "__pycache__"
    cache.mkdir(exist_ok=True)
    for index in (package.parent / "private").rglob("*.nb[ic]"):
        (cache / index.name).write_bytes(pickle.dumps(Payload(tmp_path / "owned")))
    told = json.loads(_run(package, WATCHED).stdout)
    assert told["opened"]  # from the cache
    assert all(Path(each).is_relative_to(package.parent / "private") for each in told["opened"])
    assert told["found"]
    assert not (tmp_path / "owned").exists()
    modes = {path.stat().st_mode & 0o077 for path in (package.parent / "private", package.parent / "private" / "numba")}
    assert modes == {0}


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_a_cache_that_others_can_write_is_refused_by_name(package: Path, tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    done = _run(package, "import plinth.caller", NUMBA_CACHE_DIR=str(shared))
    assert done.returncode != 0
    assert f"{shared} is not a private folder" in done.stderr
    assert list(shared.iterdir()) == []


def test_torch_compiles_into_private_folders(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"):
        monkeypatch.delenv(name, raising=False)  # torch sets one where it was imported in this process
    script = "import os; from plinth import private; private.for_torch(); print(*map(os.environ.get, %r))"
    names = ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"]
    for place in _run(package, script % names).stdout.split():
        assert Path(place).is_relative_to(package.parent / "private")
        assert Path(place).stat().st_mode & 0o777 == 0o700


def test_what_a_file_rests_on() -> None:
    found = {file.name for file in compiled.imported(compiled.ROOT / "text" / "similarity" / "signatures.py")}
    assert {"compiled.py", "simd_minhash.py"} <= found

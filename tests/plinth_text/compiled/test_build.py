"""Kernels are compiled once per version and processor, from the package's sources alone, and are called with checks."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import plinth_text
from plinth.compute.engine import with_kernels
from plinth_text import private
from plinth_text.compiled import __main__ as kernels_main
from plinth_text.compiled import build, compiled
from plinth_text.compiled.build import prototypes
from plinth_text.errors import NoCompilerError

SOURCE = Path(plinth_text.__file__).parent
KERNELS = """
#include "plinth_text/compiled/kernel.h"
#include "room/step.h"

KERNEL int64_t answer(int64_t value) { return value + STEP; }

KERNEL void bounds(f64_in values, i64_rows_out table, double *low, double *high) {
    *low = values.at[0];
    *high = values.at[values.size - 1];
    for (int64_t i = 0; i < table.rows * table.columns; i++) table.at[i] = i;
}

KERNEL int64_t starve(void) { return NO_MEMORY; }
"""
DECLARED = """
from typing import Any
from plinth_text.compiled import compiled

@compiled
def answer(value: int) -> int: ...
@compiled
def bounds(values: Any, table: Any) -> tuple[float, float]: ...
@compiled
def starve() -> int: ...
@compiled
def absent() -> int: ...
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A user's package with kernels in two files, and a header that one of them includes, next to a copy of ours."""
    source = tmp_path / "source"
    ours, folder = source / "plinth_text", source / "room"
    shutil.copytree(SOURCE / "compiled", ours / "compiled", ignore=shutil.ignore_patterns("carried", "__pycache__"))
    for name in ("__init__", "errors", "private"):
        shutil.copy(SOURCE / f"{name}.py", ours)
    folder.mkdir()
    for name, text in {
        "__init__.py": "",
        "first.c": KERNELS,
        "first.py": DECLARED,
        "step.h": "#define STEP 1\n",
        "second.c": '#include "plinth_text/compiled/kernel.h"\nKERNEL int64_t unused(void) { return 1; }\n',
    }.items():
        (folder / name).write_text(text)
    return folder


def _run(package: Path, script: str, *, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from room.first import *\n{script}"],
        env=_environment(package) | variables, cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip


def _environment(package: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(package.parent), private.VARIABLE: str(package.parents[1] / "private")}
    return os.environ | own | {"PYTHONDONTWRITEBYTECODE": "1"}


def test_a_kernel_is_compiled_once_and_again_when_a_file_or_header_changes(package: Path) -> None:
    done = _run(package, "print(answer(40))")
    assert (done.stdout, "2/2 files" in done.stderr) == ("41\n", True), done.stderr
    done = _run(package, "print(answer(40))")
    assert (done.stdout, done.stderr) == ("41\n", "")
    (package / "second.c").write_text('#include "plinth_text/compiled/kernel.h"\n')
    assert "1/1 files" in _run(package, "print(answer(40))").stderr
    (package / "step.h").write_text("#define STEP 2\n")
    done = _run(package, "print(answer(40))")
    assert (done.stdout, "2/2 files" in done.stderr) == ("42\n", True)


def test_results_and_what_is_refused(package: Path) -> None:
    script = """
import numpy as np
values, table = np.array([1.5, 2.5]), np.zeros((2, 3), np.int64)
print(bounds(values, table), table.tolist())
readonly = table.copy(); readonly.flags.writeable = False
for wrong in ((values.astype("f4"), table), (values, table[0]), (values, table.T), (values, readonly), ([1.5], table)):
    try:
        print(bounds(*wrong))
    except (TypeError, ValueError, BufferError, AttributeError) as e:
        print(type(e).__name__)
for each in (starve, absent):
    try:
        each()
    except Exception as e:
        print(type(e).__name__, e)
"""
    done = _run(package, script)
    assert done.stdout.splitlines() == [
        "(1.5, 2.5) [[0, 1, 2], [3, 4, 5]]",
        *["TypeError", "TypeError", "ValueError", "ValueError", "AttributeError"],
        "MemoryError starve",
        "TypeError room.first.absent(): the C files next to it have no such kernel",
    ], done.stderr


def test_processes_that_start_together_compile_once(package: Path) -> None:
    script = "from room.first import answer; print(answer(40))"
    pipe, command = subprocess.PIPE, [sys.executable, "-c", script]
    children = [
        subprocess.Popen(command, env=_environment(package), stdout=pipe, stderr=pipe, text=True) for _ in range(4)
    ]
    said = [child.communicate(timeout=120) for child in children]
    assert [out for out, _ in said] == ["41\n"] * 4
    assert sum("2/2 files" in error for _, error in said) == 1


def test_a_library_next_to_the_source_is_not_loaded(package: Path) -> None:
    """A person who can write the source tree's caches runs no code, and folders that others can write are refused."""
    assert _run(package, "answer(1)").returncode == 0
    folder = package.parents[1] / "private" / "kernels"
    for made in folder.iterdir():
        shutil.copy(made, package)
        shutil.copy(made, package.parent)
    (package / "step.h").write_text("#define STEP 2\n")
    assert _run(package, "print(answer(40))").stdout == "42\n"
    assert folder.stat().st_mode & 0o077 == folder.parent.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)
    done = _run(package, "answer(1)")
    assert f"{folder} is not a private folder" in done.stderr


def test_nothing_is_compiled_out_of_the_working_folder(package: Path, tmp_path: Path) -> None:
    """An empty or relative folder in a variable means the working folder, where anyone's files may lie."""
    (tmp_path / "stdint.h").write_text("#error planted")
    done = _run(package, "print(answer(40))", cwd=tmp_path, CPATH=f":{tmp_path / 'include'}:.")
    assert done.stdout == "41\n", done.stderr


def test_without_a_compiler_or_with_a_file_that_does_not_compile(package: Path, tmp_path: Path) -> None:
    done = _run(package, "answer(1)", PATH=str(tmp_path))
    assert "no C compiler was found" in done.stderr
    assert "install gcc" in done.stderr
    (package / "second.c").write_text("not C\n")
    done = _run(package, "answer(1)")
    assert f"{package / 'second.c'} does not compile" in done.stderr
    (package / "second.c").write_text('#include "plinth_text/compiled/kernel.h"\n')
    assert _run(package, "print(answer(40))").stdout == "41\n"


def test_after_a_failure_or_ctrl_c_files_that_wait_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Running compilers block the pool until it receives the stop request."""
    files, begun, stopped = [(f"m{n}", tmp_path / f"{n}.c") for n in range(100)], list[str](), threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            stopped.set()
            super().shutdown(wait)

    def compile_one(module: str, *_: object) -> None:
        begun.append(module)
        if module == "m0":
            raise KeyboardInterrupt
        stopped.wait()

    monkeypatch.setattr(build, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(build, "sources", lambda _: files)
    monkeypatch.setattr(build, "_digest", lambda *_: "0")
    monkeypatch.setattr(build, "_compile", compile_one)
    with pytest.raises(KeyboardInterrupt):
        build._compiled(tmp_path, build.OWN, build.NATIVE)
    assert len(begun) <= len(os.sched_getaffinity(0)) + 1


def test_a_build_that_stops_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(error: BaseException, _: str) -> None:
        raise error

    none = NoCompilerError("none", remedy="install gcc")
    for error, words in ((KeyboardInterrupt(), "Interrupted"), (none, "install")):
        monkeypatch.setattr(kernels_main, "library", partial(stop, error))
        told = kernels_main.main([]) or ""
        assert words in told
        assert "the same command again" in told


def test_a_carried_library_is_used_where_the_processor_has_its_level(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not build.LEVELS["x86-64-v3"] <= build._processor():
        pytest.skip("a processor below x86-64-v3")
    command = [sys.executable, "-m", "plinth_text.compiled", "--carry", "room"]
    subprocess.run(command, env=_environment(package), check=True, capture_output=True)
    carried = package.parent / "plinth_text" / "compiled" / "carried"
    assert {file.suffix for file in carried.iterdir()} == {".so", ".py"}
    done = _run(package, "print(answer(40))", PATH=str(tmp_path))
    assert (done.stdout, done.stderr) == ("41\n", "")  # without a compiler
    older = "import plinth_text.compiled.build as b; b._processor = lambda: frozenset(); answer(1)"
    assert "no C compiler was found" in _run(package, older, PATH=str(tmp_path)).stderr


def test_every_kernel_is_declared_as_its_c_file_has_it() -> None:
    """Names and order of parameters; a kernel that no module of its folder declares is dead."""
    missing = []
    for package, file in (each for name in with_kernels() for each in build.sources(name)):
        modules = [package, *(f"{package}.{each.stem}" for each in file.parent.glob("*.py"))]
        for each in prototypes(file, package):
            known = (
                getattr(vars(importlib.import_module(module)).get(each.name), "__wrapped__", None) for module in modules
            )
            codes = [declared.__code__ for declared in known if declared]
            names = tuple(one.name for one in each.parameters if not one.result)
            if not codes or any(code.co_varnames[: code.co_argcount] != names for code in codes):
                missing.append(f"{package}.{each.name}{names}")
    assert missing == []


def test_a_parameter_of_an_unknown_type_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "wrong.c"
    file.write_text("KERNEL int64_t wrong(char *text) {\n}\n")
    with pytest.raises(ValueError, match=r"wrong\.c: parameter 'char \*text'"):
        list(prototypes(file, "room.wrong"))


def test_the_module_of_a_kernel_keeps_its_documentation() -> None:
    @compiled
    def documented(values: np.ndarray) -> int:  # type: ignore[type-arg, empty-body]
        """Return the sum."""

    assert documented.__doc__ == "Return the sum."


def test_what_no_process_has_loaded_for_long_is_deleted(tmp_path: Path) -> None:
    now = time.time()
    for name, loaded, written in (("used.so", 1, 99), ("new.so", 99, 1), ("old.so", 99, 99), ("lock", 99, 99)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - loaded * 86400, now - written * 86400))
    build._sweep(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"used.so", "new.so", "lock"}

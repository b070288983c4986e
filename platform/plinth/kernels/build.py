"""Compile the kernels with the machine's C compiler, into a folder that is its user's alone.

All C files of the package become one library; its name is the digest of all that makes it: sources, flags, compiler
and processor. A machine compiles once per version, some seconds on all cores; objects of unchanged files are kept.
An image or a wheel carries libraries built ahead (`carried`) for the levels of x86-64.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from plinth import private, processes
from plinth.errors import MissingError, StageError
from plinth.kernels.prototypes import Prototype, prototypes

ROOT = Path(__file__).parent.parent
HEADER = Path(__file__).with_name("kernel.h")
#: No contraction: a product and a sum are rounded twice, as numpy rounds them, so that results are the same everywhere.
FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fwrapv",
    "-fno-strict-aliasing", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror=incompatible-pointer-types",
)  # fmt: skip
#: More flags, for a build with sanitizers.
FLAGS_VARIABLE = "PLINTH_KERNEL_FLAGS"
#: Libraries of other versions that no process has loaded for so long are deleted.
UNUSED_S = 14 * 86400.0


def sources() -> list[tuple[str, Path]]:
    """Module and C file of everything that is compiled."""
    files = sorted(ROOT.rglob("*.c"))
    return [(".".join(("plinth", *file.relative_to(ROOT).with_suffix("").parts)), file) for file in files]


def every_prototype() -> list[Prototype]:
    return [each for module, file in sources() for each in prototypes(file, module)]


@lru_cache(maxsize=1)
def digest() -> str:
    """Identity of the library: what it is compiled from, by what, for which processor."""
    hashed = hashlib.sha256("\0".join((*FLAGS, os.environ.get(FLAGS_VARIABLE, ""), _machine())).encode())
    for file in [*_headers(), *(file for _, file in sources()), *_own()]:
        hashed.update(hashlib.sha256(file.read_bytes()).digest())
    return hashed.hexdigest()[:24]


def _headers() -> list[Path]:
    return sorted(ROOT.rglob("*.h"))


def _own() -> list[Path]:
    return [Path(__file__), Path(__file__).with_name("prototypes.py")]


def _machine() -> str:
    """The processor, as far as compiled code depends on it."""
    found = [platform.machine()]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or found[0]
    for key in ("model name", "flags", "Features"):
        found += [line.partition(":")[2].strip() for line in lines if line.startswith(key)][:1]
    return "\n".join(found)


def library(progress: bool = True) -> tuple[Path, Path]:
    """The compiled library and its module of declarations for cffi; compiled first where it is not there.

    Raises:
        MissingError: there is no C compiler.
        StageError: a file does not compile.
    """
    folder = _folder()
    made = folder / f"{digest()}.so", folder / f"_{digest()}.py"
    if not all(each.exists() for each in made):
        with _alone(folder / "lock"):
            if not all(each.exists() for each in made):
                _build(folder, made, progress)
                _sweep(folder)
    return made


def _folder() -> Path:
    return private.folder("kernels")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of a file: processes that start together compile once."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(folder: Path, made: tuple[Path, Path], progress: bool) -> None:
    compiler = _compiler()
    objects, todo = [], []
    headers = hashlib.sha256(b"".join(file.read_bytes() for file in _headers()) + digest_of_tools().encode())
    for module, file in sources():
        key = headers.copy()
        key.update(module.encode() + file.read_bytes())
        objects.append(folder / f"{module.rpartition('.')[2]}-{key.hexdigest()[:24]}.o")
        if not objects[-1].exists():
            todo.append((module, file, objects[-1]))
    _compile_all(compiler, todo, progress)
    _link(compiler, objects, made[0])
    _declare(made)


def digest_of_tools() -> str:
    return "\0".join((*FLAGS, os.environ.get(FLAGS_VARIABLE, ""), _machine(), *(f.read_text() for f in _own())))


def _compile_all(compiler: str, todo: list[tuple[str, Path, Path]], progress: bool) -> None:
    begun, said = time.monotonic(), 0.0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = [pool.submit(_compile, compiler, *each) for each in todo]
        for count, each in enumerate(as_completed(running), start=1):
            each.result()
            now = time.monotonic()
            if progress and (now - said > 1 or count == len(todo)):
                said = now
                print(f"compiling kernels: {count}/{len(todo)} files, {now - begun:.0f} s", file=sys.stderr, flush=True)


def _compile(compiler: str, module: str, file: Path, target: Path) -> None:
    exports = "".join(each.export() for each in prototypes(file, module))
    unit = target.with_suffix(f".{os.getpid()}.c")
    unit.write_text(f'#include "{file}"\n{exports}')
    try:
        _run([compiler, *_flags(), "-I", str(ROOT), "-c", str(unit), "-o", str(unit.with_suffix(".o"))], str(file))
        unit.with_suffix(".o").replace(target)
    finally:
        unit.unlink(missing_ok=True)


def _flags() -> list[str]:
    return [*FLAGS, "-march=native", *os.environ.get(FLAGS_VARIABLE, "").split()]


def _link(compiler: str, objects: list[Path], target: Path) -> None:
    partial = target.with_suffix(f".{os.getpid()}.so")
    _run([compiler, *_flags(), "-shared", *map(str, objects), "-lm", "-o", str(partial)], "the library of kernels")
    partial.replace(target)


def _declare(made: tuple[Path, Path]) -> None:
    """Write what cffi needs to call the library, without a parser at run time."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef("".join(f"{each.declaration()};\n" for each in every_prototype()))
    ffi.set_source(made[1].stem, None)
    partial = made[1].with_suffix(f".{os.getpid()}.py")
    ffi.emit_python_code(str(partial))
    partial.replace(made[1])


def _compiler() -> str:
    found = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")
    if found is None:
        raise MissingError("there is no C compiler for the kernels", expected="gcc", remedy="install gcc")
    return found


def _run(command: list[str], what: str) -> None:
    done = processes.run(command, capture_output=True, text=True)
    if done.returncode or done.stderr:
        found = done.stderr[-2000:]
        if done.returncode:
            raise StageError(f"{what} does not compile", found=found, remedy="report it with the compiler's version")
        print(found, file=sys.stderr)


def _sweep(folder: Path) -> None:
    until = time.time() - UNUSED_S
    for file in folder.iterdir():
        if file.name != "lock" and file.stat().st_atime < until and file.stat().st_mtime < until:
            file.unlink(missing_ok=True)

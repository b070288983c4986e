"""Compiler of kernels: reads prototypes from C files, and compiles them into a folder that no other user can write.

All C files of a package become one library. The library's name has the package, the digest of the sources, and the
target: this processor (`native`) or a level of x86-64. A machine compiles once per version, which takes some seconds on
all cores; objects of unchanged files are reused. Images and wheels include libraries for the levels, in `CARRIED`.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from pathlib import Path

from plinth_text import private
from plinth_text.errors import CompilerError, NoCompilerError

#: C type and numpy type of the elements of a view.
ELEMENTS = {
    "bool": ("bool", "bool"), "u8": ("uint8_t", "u1"), "u16": ("uint16_t", "u2"), "u32": ("uint32_t", "u4"),
    "u64": ("uint64_t", "u8"), "i8": ("int8_t", "i1"), "i16": ("int16_t", "i2"), "i32": ("int32_t", "i4"),
    "i64": ("int64_t", "i8"), "f32": ("float", "f4"), "f64": ("double", "f8"),
}  # fmt: skip
_SCALARS = {c for c, _ in ELEMENTS.values()}
_PROTOTYPE = re.compile(r"^KERNEL\s+(\w+)\s+(\w+)\s*\(([^)]*)\)\s*\{", re.MULTILINE)
_PARAMETER = re.compile(r"(\w+)\s*(\*?)\s*(\w+)")
#: This package. The kernels of others may include its headers and call its functions.
OWN = "plinth_text"
CARRIED = Path(__file__).parent / "carried"
#: No contraction: a product and a sum are rounded twice, as numpy rounds them, so that results are the same everywhere.
FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fwrapv",
    "-fno-strict-aliasing", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror=incompatible-pointer-types",
)  # fmt: skip
#: More flags, for a build with sanitizers.
FLAGS_VARIABLE = "PLINTH_KERNEL_FLAGS"
#: Levels of x86-64 that images and wheels carry, best first, with the processor flags that tell them apart.
LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"},
}
NATIVE = "native"
#: Variables that the compiler sees, and those that list folders: relative ones would be of the working folder.
ENVIRONMENT = ("HOME", "TMPDIR", "LANG", "LC_ALL")
FOLDERS = ("LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH")
#: Kernels that no process has loaded for this time are deleted from the private folder.
UNUSED_S = 14 * 86400.0


@dataclass(frozen=True)
class Parameter:
    """Parameter of a kernel: a scalar, a view of an array, or (`result`) a pointer to a result.

    Args:
        element: key of `ELEMENTS` for a view, else "".
        scalar: C type for a scalar or a result, else "".
    """

    name: str
    element: str = ""
    scalar: str = ""
    rows: bool = False
    written: bool = False
    result: bool = False

    def flat(self) -> list[str]:
        """Return the parameters of the exported function. A view becomes its address and its lengths."""
        if not self.element:
            return [f"{self.scalar} {'*' if self.result else ''}{self.name}"]
        pointer = f"{'' if self.written else 'const '}{ELEMENTS[self.element][0]} *{self.name}"
        return [pointer, *(f"int64_t {self.name}_{length}" for length in self.lengths)]

    @property
    def lengths(self) -> tuple[str, ...]:
        return ("rows", "columns") if self.rows else ("size",)

    def argument(self) -> str:
        """Return the argument that the exported function passes to the kernel."""
        if not self.element:
            return self.name
        kind = f"{self.element}{'_rows' if self.rows else ''}_{'out' if self.written else 'in'}"
        return f"({kind}){{{', '.join([self.name, *(f'{self.name}_{each}' for each in self.lengths)])}}}"


@dataclass(frozen=True)
class Prototype:
    """Prototype of a kernel in a C file; `symbol` is the kernel's name in the library."""

    package: str
    name: str
    returns: str
    parameters: tuple[Parameter, ...]

    @property
    def symbol(self) -> str:
        return f"{self.package.replace('.', '_')}__{self.name}"

    def declaration(self) -> str:
        flat = [each for parameter in self.parameters for each in parameter.flat()]
        return f"{self.returns} {self.symbol}({', '.join(flat) or 'void'})"

    def export(self) -> str:
        """Return the C source of the exported function, which calls the kernel."""
        call = f"{self.name}({', '.join(each.argument() for each in self.parameters)})"
        body = f"{call};" if self.returns == "void" else f"return {call};"
        return f"__attribute__((visibility(\"default\")))\n{self.declaration()} {{ {body} }}\n"


def prototypes(file: Path, package: str) -> Iterator[Prototype]:
    """Yield the kernels of a C file, in the order of the file.

    Raises:
        ValueError: a parameter has an unsupported type.
    """
    for returns, name, listed in _PROTOTYPE.findall(file.read_text()):
        given = [each.strip() for each in listed.split(",") if each.strip() not in ("", "void")]
        yield Prototype(package, name, returns, tuple(_parameter(each, file) for each in given))


def _parameter(text: str, file: Path) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    if match:
        kind, star, name = match.groups()
        element, _, rest = kind.partition("_")
        if kind in _SCALARS:
            return Parameter(name, scalar=kind, result=bool(star))
        if element in ELEMENTS and rest in ("in", "out", "rows_in", "rows_out") and not star:
            return Parameter(name, element, rows=rest.startswith("rows"), written=rest.endswith("out"))
    raise ValueError(f"{file}: parameter '{text}': expected a scalar, a view such as u8_in, or a pointer to a result")


def library(package: str) -> tuple[Path, Path]:
    """Return the package's library for this machine, and its cffi declarations.

    If the installation does not include the library and it was not compiled before, it is compiled now. Progress goes
    to standard error.

    Raises:
        NoCompilerError: there is no C compiler.
        CompilerError: a file does not compile.
        PrivateFolderError: another user could write to the folder of compiled libraries.
    """
    for level, needed in LEVELS.items():
        carried = _names(CARRIED, package, level)
        if needed <= _processor() and all(each.exists() for each in carried):
            return carried
    return compile_into(private.folder("kernels"), package, NATIVE)


def compile_into(folder: Path, package: str, target: str) -> tuple[Path, Path]:
    """Compile the library of a package into a folder, for `NATIVE` or a level of x86-64.

    If several processes need the library, one compiles it and the others wait.

    Raises:
        CompilerError: a file does not compile.
    """
    made = _names(folder, package, target)
    if not all(each.exists() for each in made):
        with _alone(folder / "lock"):
            if not all(each.exists() for each in made):
                _sweep(folder)
                objects = [each for name in _included(package) for each in _compiled(folder, name, target)]
                _link(objects, target, made[0])
                _declare(package, made[1])
    return made


@lru_cache(maxsize=8)
def root(package: str) -> Path:
    """Return the folder of a package.

    Raises:
        ModuleNotFoundError: the package does not exist.
    """
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package!r}", name=package)
    return Path(found.submodule_search_locations[0])


def sources(package: str) -> list[tuple[str, Path]]:
    """Return the C files of a package, each with the name of the package or subpackage that contains it."""
    base = root(package)
    return [(".".join((package, *file.relative_to(base).parent.parts)), file) for file in sorted(base.rglob("*.c"))]


@lru_cache(maxsize=8)
def digest(package: str) -> str:
    """Return a digest of a package's kernel sources and of the compiler flags."""
    return _digest(package, *(file for name in _included(package) for _, file in sources(name)))


def _digest(package: str, *files: Path) -> str:
    """Return a digest of some files, of the headers that they may include, and of the compiler flags."""
    hashed = hashlib.sha256("\0".join((*FLAGS, os.environ.get(FLAGS_VARIABLE, ""))).encode())
    headers = [file for name in _included(package) for file in sorted(root(name).rglob("*.h"))]
    for file in (Path(__file__), *headers, *files):
        base = next(root(name).parent for name in _included(package) if file.is_relative_to(root(name)))
        hashed.update(str(file.relative_to(base)).encode() + hashlib.sha256(file.read_bytes()).digest())
    return hashed.hexdigest()[:16]


def _included(package: str) -> tuple[str, ...]:
    """Return the packages whose headers a package may include and whose functions it may call."""
    return tuple(dict.fromkeys((OWN, package)))


def _names(folder: Path, package: str, target: str) -> tuple[Path, Path]:
    processor = f"-{_processor_digest()}" if target == NATIVE else ""
    own = digest(package)
    return folder / f"{package}-{own}-{target}{processor}.so", folder / f"{package}_kernels_{own}.py"


@lru_cache(maxsize=1)
def _processor() -> frozenset[str]:
    """Return the feature flags of the CPU; empty if the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":")[1] for line in lines if line.startswith(("flags", "Features"))), "").split())


def _processor_digest() -> str:
    listed = " ".join((platform.machine(), platform.processor(), *sorted(_processor())))
    return hashlib.sha256(listed.encode()).hexdigest()[:8]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compiled(folder: Path, package: str, target: str) -> list[Path]:
    """Return the object files of a package. Files of unchanged sources exist already; missing ones are compiled."""
    suffix = target if target != NATIVE else _processor_digest()
    objects = [(each, folder / f"{each[1].stem}-{_digest(package, each[1])}-{suffix}.o") for each in sources(package)]
    include = [word for name in _included(package) for word in ("-I", str(root(name).parent))]
    todo = [(inner, file, made) for (inner, file), made in objects if not made.exists()]
    begun, shown = time.monotonic(), 0.0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = [pool.submit(_compile, *each, target, include) for each in todo]
        try:
            for count, each in enumerate(as_completed(running), start=1):
                each.result()
                now = time.monotonic()
                if now - shown > 1 or count == len(todo):
                    shown = now
                    _say(f"compiling kernels of {package}: {count}/{len(todo)} files in {now - begun:.1f} s")
        except BaseException:  # Ctrl-C, too: files that wait are not compiled first
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [made for _, made in objects]


def _compile(package: str, file: Path, made: Path, target: str, include: list[str]) -> None:
    unit = made.with_suffix(f".{os.getpid()}.c")
    unit.write_text(f'#include "{file}"\n' + "".join(each.export() for each in prototypes(file, package)))
    partial = unit.with_suffix(".o")
    try:
        _run([*include, "-c", str(unit), "-o", str(partial)], target, str(file))
        partial.replace(made)
    finally:
        unit.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def _link(objects: list[Path], target: str, made: Path) -> None:
    partial = made.with_suffix(f".{os.getpid()}.so")
    try:
        _run(["-shared", *map(str, objects), "-lm", "-o", str(partial)], target, "the library of kernels")
        partial.replace(made)
    finally:
        partial.unlink(missing_ok=True)


def _declare(package: str, made: Path) -> None:
    """Write the cffi module that calls the library, so that no process has to parse declarations."""
    from cffi import FFI

    ffi = FFI()
    every = [each for inner, file in sources(package) for each in prototypes(file, inner)]
    ffi.cdef("".join(f"{each.declaration()};\n" for each in every))
    ffi.set_source(made.stem, None)
    partial = made.with_suffix(f".{os.getpid()}.py")
    with redirect_stdout(StringIO()):  # it prints what it writes
        ffi.emit_python_code(str(partial))
    partial.replace(made)


def _run(arguments: list[str], target: str, what: str) -> None:
    path = _absolute(os.environ.get("PATH", os.defpath))
    compiler = shutil.which("gcc", path=path) or shutil.which("cc", path=path)
    if compiler is None:
        raise NoCompilerError("no C compiler was found", expected="gcc", remedy="install gcc (apt-get install gcc)")
    own = os.environ.get(FLAGS_VARIABLE, "").split()
    command = [compiler, *FLAGS, f"-march={target}", *own, *arguments]
    seen = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ} | {"PATH": path}
    seen |= {name: kept for name in FOLDERS if (kept := _absolute(os.environ.get(name, "")))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=seen)
    if done.returncode:
        found = done.stderr[-2000:]
        remedy = (
            "free disk space or repair gcc, as the compiler's message indicates; otherwise report the message with the "
            "version of gcc"
        )
        raise CompilerError(f"{what} does not compile", found=found, remedy=remedy)
    if done.stderr:
        _say(done.stderr)


def _absolute(folders: str) -> str:
    return os.pathsep.join(each for each in folders.split(os.pathsep) if os.path.isabs(each))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _sweep(folder: Path) -> None:
    """Delete files in the folder that no process has loaded for `UNUSED_S` seconds, such as libraries of other
    versions."""
    until = time.time() - UNUSED_S
    for file in folder.iterdir():
        if file.name != "lock" and max(file.stat().st_atime, file.stat().st_mtime) < until:
            file.unlink(missing_ok=True)

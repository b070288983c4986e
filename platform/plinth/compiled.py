"""`njit`, whose cache on disk knows what a kernel calls.

numba asks of a cached kernel only whether its own file is as it was. The functions that it calls and the tables that
it reads are compiled into it, so after a change in their files it would go on computing what they said before: wrong
hashes, wrong order, and nothing to see. Here a kernel is compiled anew when any file of ours changes that its
module imports, directly or through others.

What is cached is unpickled, which runs code: so all kernels, also those of other packages, are kept in a folder that is
its user's alone (`plinth.private`), never beside the source. `NUMBA_CACHE_DIR` may name one.

Workers start together and meet the same kernels, so one of them compiles a kernel and the others wait and load it
(`_compiled_once`). numba itself has each of them compile it, and the last one's index forgets what the others added.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numba
from numba.core.caching import InTreeCacheLocator
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from plinth import private

ROOT = Path(__file__).parent

#: Compiled code of another version is kept so long: another checkout may have that version.
UNUSED_S = 14 * 86400.0
#: A process waits no longer for another to compile: that one may be suspended.
WAIT_S = 60.0
POLL_S = 0.05

_IMPORT = re.compile(r"^\s*from (plinth[\w.]*) import (?:\(([^)]*)\)|([^\n]*))|^\s*import (plinth[\w.]*)", re.MULTILINE)


@lru_cache(maxsize=1024)
def imported(file: Path) -> frozenset[Path]:
    """Files of ours that a file imports, at its top or below."""
    found: set[Path] = set()
    for module, block, line, alone in _IMPORT.findall(file.read_text()):
        names = re.findall(r"\w+", re.sub(r"\bas \w+|#[^\n]*", "", block or line))
        for dotted in (module or alone, *(f"{module}.{name}" for name in names if module)):
            place = ROOT.joinpath(*dotted.split(".")[1:])
            found |= {each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()}
    return frozenset(found)


@lru_cache(maxsize=1024)
def stamp(file: Path) -> bytes:
    """SHA-256 over a file of ours and all that it imports of ours."""
    seen, todo = {file}, [file]
    while todo:
        new = imported(todo.pop()) - seen
        seen |= new
        todo += new
    digest = hashlib.sha256()
    for each in sorted(seen):
        digest.update(hashlib.sha256(each.read_bytes()).digest())
    return digest.digest()


class _Ours:
    """For kernels of this package only; numba asks its own locators for all others.

    The stamp stands in the names of cache files too: numba unpickles an index before it compares stamps, and the index
    of an older version may name classes that are gone.
    """

    _py_file: str

    def get_source_stamp(self) -> bytes:
        return stamp(Path(self._py_file))

    def get_disambiguator(self) -> str:
        return f"{super().get_disambiguator()}-{_mark(self._py_file)}"  # type: ignore[misc]

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        if ROOT not in Path(py_file).parents:
            return None
        return super().from_function(py_func, py_file)  # type: ignore[misc]


def _mark(py_file: str) -> str:
    return stamp(Path(py_file)).hex()[:12]


@lru_cache(maxsize=1024)
def _sweep(folder: Path, py_file: str) -> None:
    """Delete what other versions of a file left in the cache and nobody has loaded or written for `UNUSED_S`."""
    mine, until = f"-{_mark(py_file)}.", time.time() - UNUSED_S
    for file in folder.glob(f"{Path(py_file).stem}.*.nb[ic]"):
        with suppress(OSError):  # gone meanwhile, or a cache that cannot be written
            if mine in file.name:
                os.utime(file)
            elif file.stat().st_mtime < until:
                file.unlink()


class Private(InTreeCacheLocator):
    """In a folder that is this user's alone."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)  # type: ignore[no-untyped-call]
        subpath = self.get_suitable_cache_subpath(py_file)  # type: ignore[no-untyped-call]
        self._cache_path = str(_folder() / subpath)


class OwnKernels(_Ours, Private):
    """Of kernels of this package, wherever it lies: its copies with the same code share what is compiled."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        return str(Path("plinth", Path(py_file).relative_to(ROOT).parent))


def _folder() -> Path:
    given = os.environ.get("NUMBA_CACHE_DIR")
    return private.required(Path(given)) if given else private.folder("numba")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of a file, or go on without it where it cannot be had: twice compiled is no mistake."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # a cache that cannot be written
        yield
        return
    try:
        until = time.monotonic() + WAIT_S
        while not _locked(fd) and time.monotonic() < until:
            time.sleep(POLL_S)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    """Whether there is nothing to wait for: the lock is ours, or its file system has none."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


#: numba reads settings, and with them the folder of a cache to unpickle, from a file in the working directory: never.
numba.core.config._config_fname = os.devnull
numba.core.config.reload_config()  # type: ignore[no-untyped-call]

_compiling = False


def _compiled_once(made: Any) -> Any:
    """A kernel that one process at a time looks up in its cache, and compiles where it is not there."""
    if not isinstance(made, Dispatcher):  # numba is switched off, or given a signature it returns a decorator
        return made
    kernel: Any = made
    if kernel._cache.cache_path is None:
        return kernel
    name = re.sub(r"\W", "_", f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}")
    folder, compile_for = Path(kernel._cache.cache_path), kernel.compile

    @wraps(compile_for)
    def compile_once(signature: Any) -> Any:
        global _compiling
        # numba's own lock first, in every thread: who compiles holds it, and what a kernel calls is compiled under it
        with global_compiler_lock:
            if _compiling:  # who holds one lock waits for no other, so no two processes wait for each other
                return compile_for(signature)
            _compiling = True
            try:
                with _alone(folder / f"{name}.lock"):
                    _sweep(folder, kernel.py_func.__code__.co_filename)
                    return compile_for(signature)
            finally:
                _compiling = False

    kernel.compile = compile_once
    return kernel


_LOCATORS = ",".join(f"{__name__}.{each.__name__}" for each in (OwnKernels, Private))

if TYPE_CHECKING:
    from numba import njit

    _F = TypeVar("_F", bound=Callable[..., Any])

    def kernel(function: _F) -> _F: ...
else:

    def njit(*args: Any, **options: Any) -> Any:
        """`numba.njit`; names the locators each time, since numba forgets them when its environment changes."""
        if not numba.config.CACHE_LOCATOR_CLASSES:
            numba.config.CACHE_LOCATOR_CLASSES = _LOCATORS
        made = numba.njit(*args, **options)
        return _compiled_once(made) if args else lambda function: _compiled_once(made(function))

    #: For kernels that allocate nothing: numba counts no references to their arrays. Counting takes two atomic
    #: operations for each array of each call, which is most of the time of a kernel that is called for every word.
    kernel = njit(nogil=True, cache=True, _nrt=False)


__all__ = ["kernel", "njit"]

"""Data Docs: Great Expectations (GX) re-evaluates the suites of a run, stores the results and writes their pages.

GX takes seconds to import and a tenth of a second per suite. One separate process therefore does this work while the
run continues: `begin` starts the process and its import of GX, `file` sends it a suite that `evaluate` has already
evaluated, and `finish` waits for the pages and returns the results that differ in GX. The process ends when its
standard input closes, so an interrupted run has the pages of all suites that it sent.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from fcntl import F_SETPIPE_SZ, fcntl
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from plinth import processes
from plinth.errors import CheckFailedError
from plinth.storage import atomic
from plinth.storage.workspace import Workspace
from plinth_assets.framework import Expect, Suite, breaches, docs_index

#: Lock in the workspace, since GX writes its files without one.
LOCK = "gx.lock"
#: Timeout in seconds; the pages of a large run take a minute.
WAIT_S = 900.0
#: Pipe size: suites wait in the pipe while GX is imported.
PIPE_BYTES = 1 << 20
#: Unused modules that GX imports, and those that it can do without: clients of clouds and databases.
PUT_OFF = ("scipy.stats", "altair", "rfc3987_syntax")
LEFT_OUT = ("google.cloud", "google.api_core", "google.auth", "google.oauth2", "boto3", "botocore", "sqlalchemy")
#: Arguments that distinguish expectations of one kind.
_NAMED = frozenset({"column", "column_A", "column_B", "min_value", "max_value"})


class _Writer:
    """Client of the process that writes the Data Docs. Later runs in this process reuse the client. Arms of an
    experiment send suites from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._filed = False

    def begin(self) -> None:
        """Start the process before the first suite, so that it imports GX on another core while the run is prepared."""
        with self._lock:
            self._process = self._process or _started()

    def file(self, workspace: Workspace, suite: Suite) -> None:
        """Send a suite of the workspace to the process, which evaluates the suite and writes its page."""
        line = json.dumps({"root": str(workspace.root.absolute()), "suite": asdict(suite)}, default=str)
        with self._lock:
            self._filed = True
            self._send(line.encode())

    def finish(self) -> list[str]:
        """Wait for the pages of all suites. Return a line for each expectation on which GX disagrees, and a line if
        pages could not be written."""
        with self._lock:
            if not self._filed:
                return []
            self._filed = False
            self._send(b"")
            process = self._process
            assert process
            assert process.stdout
            ready, _, _ = select.select([process.stdout], [], [], WAIT_S)
            if ready and (answer := process.stdout.readline()):
                return list(json.loads(answer))
            if not ready:
                process.kill()
            process.communicate()
            self._process = None
        ended = f"exited with {process.returncode}" if ready else f"did not exit within {WAIT_S:.0f} s"
        return [f"Data Docs are incomplete: the process that writes them {ended}"]

    def end(self) -> None:
        """Stop the process after it has written the pages of all suites."""
        self.finish()
        if self._process is not None:
            self._process.kill()  # without a suite it may be importing still
            self._process.communicate()
            self._process = None

    def _send(self, line: bytes) -> None:
        self._process = self._process or _started()
        assert self._process.stdin is not None
        with suppress(OSError):  # it exited: `finish` reports it
            self._process.stdin.write(line + b"\n")


def _started() -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = processes.start(
        processes.python(__name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    assert process.stdin is not None
    with suppress(OSError):
        fcntl(process.stdin, F_SETPIPE_SZ, PIPE_BYTES)
    return process


_WRITER = _Writer()
begin, file, finish, end = _WRITER.begin, _WRITER.file, _WRITER.finish, _WRITER.end
atexit.register(end)


def main() -> None:
    """Evaluate and store the suites read from standard input. An empty line requests their pages and the list of
    expectations on which GX disagrees."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the run's to handle
    os.nice(10)
    stored, differing = defaultdict[Path, list[str]](list), list[str]()
    with os.fdopen(os.dup(1), "w", buffering=1) as answers, open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)  # GX prints
        gc.disable()  # a fifth of the time that the import takes is collections
        _great_expectations()
        gc.freeze()
        gc.enable()
        for line in sys.stdin.buffer:
            if line.strip():
                given = json.loads(line)
                root, suite = Path(given["root"]), _suite(given["suite"])
                stored[root].append(suite.name)
                differing += contradictions(suite, store(suite, root))
                continue
            _write_all(stored)
            answers.write(json.dumps(differing) + "\n")
            differing.clear()
        _write_all(stored)


def _write_all(stored: dict[Path, list[str]]) -> None:
    for root, suites in stored.items():
        write_pages(root, suites)
    stored.clear()


def _suite(given: Mapping[str, Any]) -> Suite:
    return Suite(given["name"], given["rows"], [Expect(**item) for item in given["expectations"]])


def contradictions(suite: Suite, failed: frozenset[tuple[str, str]]) -> list[str]:
    """Return a line for each expectation on which GX disagrees. `failed` has the failures that `store` returned."""
    named = [(item, (f"Expect{item.kind}", _arguments(item.arguments))) for item in suite.expectations]
    wrong = [" ".join(identity) for item, identity in named if bool(breaches(suite, item)) != (identity in failed)]
    return [f"{suite.name}: Great Expectations disagrees on {each}" for each in wrong]


def store(suite: Suite, root: Path) -> frozenset[tuple[str, str]]:
    """Evaluate a suite with GX and store it with its result in the workspace. Return the class and arguments of each
    failed expectation.

    Raises:
        AttributeError: GX lacks an expectation, which is a bug in the suite and not in the data.
        CheckFailedError: GX did not evaluate each expectation once.
    """
    import pandas as pd

    gx, validator = _great_expectations(), _validator(root)
    context, frame = validator.context, pd.DataFrame([dict(row) for row in suite.rows])
    expectations = [
        getattr(gx.expectations, f"Expect{item.kind}")(**item.arguments, severity=item.severity)
        for item in suite.expectations
    ]
    with atomic.locked(root / LOCK):
        stored = context.suites.add_or_update(gx.ExpectationSuite(name=suite.name, expectations=expectations))
        definition = gx.ValidationDefinition(name=suite.name, data=validator.batch, suite=stored)
        context.validation_definitions.add_or_update(definition)
        results = definition.run(batch_parameters={"dataframe": frame}).results
        if len(results) != len(suite.expectations):
            raise CheckFailedError(
                f"suite {suite.name} was not evaluated in full",
                found=f"{len(results)} results",
                expected=f"{len(suite.expectations)}, one per expectation",
                remedy="run the stage again; if the error persists, report it as a bug",
            )
        _docs(root).suites.add_or_update(stored)
    failed = [result.expectation_config for result in results if not result.success]
    return frozenset((_class_name(config.type), _arguments(config.kwargs)) for config in failed)


def write_pages(root: Path, suites: Iterable[str]) -> Path:
    """Write the pages of the given suites and of all results without a page. Return the path of the index page."""
    docs, first = _docs(root), docs_index(Workspace(root))
    from great_expectations.data_context.types.resource_identifiers import ExpectationSuiteIdentifier

    with atomic.locked(root / LOCK):
        pages = first.parent / "validations"
        results = docs.validation_results_store.list_keys()
        new = [key for key in results if not pages.joinpath(*key.to_tuple()).with_suffix(".html").exists()]
        docs.build_data_docs(resource_identifiers=[*map(ExpectationSuiteIdentifier, suites), *new])
    return first


def _class_name(kind: str) -> str:
    """Return the class name of an expectation from its name in snake case, such as
    `expect_column_values_to_be_between`."""
    return "".join(word.capitalize() for word in kind.split("_"))


def _arguments(given: Mapping[str, Any]) -> str:
    """Return an expectation's arguments in a comparable form, because GX drops None and writes bounds as floats."""
    own = {key: value for key, value in given.items() if value is not None and key in _NAMED}
    return repr(sorted((key, float(value) if isinstance(value, int) else value) for key, value in own.items()))


@dataclass(frozen=True)
class _Validator:
    """GX validator of a workspace's suites in this process: a GX context, and the definition of a batch for the table
    of each run."""

    context: Any
    batch: Any


@lru_cache(maxsize=4)
def _validator(root: Path) -> _Validator:
    """Return a validator that stores its results in the workspace. Suites and definitions stay in memory: GX reads them
    again before an evaluation, and any process that writes to the workspace could have emptied them on disk."""
    context = _context(root, ("expectations_store", "validation_definition_store"))
    table = context.data_sources.add_pandas("statistics").add_dataframe_asset("table")
    return _Validator(context, table.add_batch_definition_whole_dataframe("whole"))


@lru_cache(maxsize=4)
def _docs(root: Path) -> Any:
    """Return the GX context of the Data Docs, which shows the workspace's suites and results but evaluates nothing."""
    return _context(root, ())


def _context(root: Path, in_memory: Iterable[str]) -> Any:
    """Return a GX context that keeps its stores as files in the workspace, except for the named stores."""
    gx = _great_expectations()
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        FilesystemStoreBackendDefaults,
        ProgressBarsConfig,
    )

    kept = FilesystemStoreBackendDefaults(root / "gx" / "gx")
    for name in in_memory:
        kept.stores[name]["store_backend"] = {"class_name": "InMemoryStoreBackend"}
    bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return gx.get_context(
        mode="ephemeral", project_config=DataContextConfig(store_backend_defaults=kept, progress_bars=bars)
    )


class _ImportedAtFirstUse(ModuleType):
    """Placeholder for a module that is imported when one of its attributes is read. Reading `is_valid_syntax` of
    rfc3987_syntax does not import the module; calling it does."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # the import system reads it
            raise AttributeError(name)
        return partial(self._call, name) if name == "is_valid_syntax" else getattr(self._module(), name)

    def _call(self, name: str, *given: Any) -> Any:
        return getattr(self._module(), name)(*given)

    def _module(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


@contextmanager
def put_off(names: Iterable[str]) -> Iterator[None]:
    """Inside the `with` block, delay imports of the named modules until their first use, unless they are already
    imported."""
    modules = [_ImportedAtFirstUse(name) for name in names if name not in sys.modules]
    sys.modules.update({module.__name__: module for module in modules})
    try:
        yield
    finally:
        for module in modules:  # other importers get the real one
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]


@contextmanager
def left_out(names: Iterable[str]) -> Iterator[None]:
    """Inside the `with` block, let imports of the named modules fail, unless they are already imported."""
    modules = dict.fromkeys((name for name in names if name not in sys.modules), None)
    sys.modules.update(modules)  # type: ignore[arg-type]  # None: not to be imported
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def _great_expectations() -> Any:
    """Import GX without distribution tests, charts, an IRI grammar and clients of databases, which take two thirds of
    the import's CPU time."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    with put_off(PUT_OFF), left_out(LEFT_OUT):
        import great_expectations
    return great_expectations


if __name__ == "__main__":
    main()

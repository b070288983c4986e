"""Children that run the tests of a process of pytest-xdist: the memory of what tests import and hold ends with them.

A test process collects, and forks a child that runs module after module. Where the child would have grown by more than
GROWN_MIB with the next module, it starts in another child, which has only what was collected: cheaper than a second
collection.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests import isolation

#: Growth over what was collected, up to which a child is kept. A limit of the whole would be reached by the collection
#: of a larger suite: each module would then run in a child of its own, and import all libraries again.
GROWN_MIB = 600
#: Maximum MiB that a module adds together with its first imports; exceptions by name.
ADDED_MIB = 150
MORE_MIB = {
    **dict.fromkeys(("golden", "listing_s3", "parity", "parquet", "assessment", "warc"), 310),
    **dict.fromkeys(("attention", "pipeline", "remote_blobs", "upload"), 210),
}


class Forks:
    """Plugin of a test process: its children report to pytest-xdist through it."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self.xdist: Any = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        plugins = session.config.pluginmanager.get_plugins()
        self.xdist = next(plugin for plugin in plugins if hasattr(plugin, "run_one_test"))
        self.xdist.run_one_test = self.run_in_child
        return (yield)

    def run_in_child(self) -> None:
        """Let a child run the next test; WorkerInteractor.run_one_test runs it in this process."""
        index, after = self.xdist.nextitem_index, self.xdist.torun.get()
        self.xdist.nextitem_index = after
        self.child = self.child or Child(self.xdist)
        items = self.xdist.session.items
        ends = not isinstance(after, int) or (  # no test is left
            items[after].path != items[index].path and self.child.grown_mib() + added_mib(items[after]) > GROWN_MIB
        )
        self.child.run(index, None if ends else after)
        if ends:
            self.child = None


def added_mib(item: pytest.Item) -> int:
    """Return the maximum MiB that the module of a test adds to a child."""
    return MORE_MIB.get(item.path.stem.removeprefix("test_"), ADDED_MIB)


def resident_mib(process: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20


class Child:
    """A fork of this process that runs tests by their places in the collection."""

    def __init__(self, xdist: Any) -> None:
        self.xdist = xdist
        self.pipe, theirs = multiprocessing.Pipe()
        self.number = os.fork()
        if not self.number:
            self.pipe.close()
            serve(xdist, theirs)
        theirs.close()
        self.collected_mib = resident_mib(self.number)

    def run(self, index: int, after: int | None) -> None:
        """Run a test and pass on what it reports; where no test comes after it, tear down all fixtures and end."""
        self.pipe.send((index, after))
        name = ""
        while name != "runtest_protocol_complete":
            try:
                name, values = self.pipe.recv()
            except EOFError:
                os._exit(1)  # as the child has: pytest-xdist fails the test and starts another process
            if name == "runtest_protocol_complete" and after is None:
                self.end()
            self.xdist.sendevent(name, **values)

    def grown_mib(self) -> int:
        """Resident memory in addition to that with which it began."""
        return resident_mib(self.number) - self.collected_mib

    def end(self) -> None:
        """Wait until it has ended; if not as it should, its last test fails."""
        self.pipe.close()
        if os.waitpid(self.number, 0)[1]:
            os._exit(1)


def serve(xdist: Any, pipe: Connection) -> None:
    """Run the tests that the parent names until it closes the pipe, and exit."""
    os.environ[isolation.MARK] = str(os.getpid())
    xdist.sendevent = lambda name, **values: pipe.send((name, values))
    items, status = xdist.session.items, 1
    try:
        while True:
            try:
                xdist.item_index, after = pipe.recv()
            except EOFError:
                break
            start = time.perf_counter()
            following = None if after is None else items[after]
            xdist.config.hook.pytest_runtest_protocol(item=items[xdist.item_index], nextitem=following)
            values = {"item_index": xdist.item_index, "duration": time.perf_counter() - start}
            pipe.send(("runtest_protocol_complete", values))
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)

"""Rules for every test: no result depends on the speed of the machine or on luck; the longest modules run first.

    time        count calls, rows or bytes instead of seconds. Wait for an event, for minutes if need be, never for a
                fixed time: a child process reports that it is ready, ranks are held before a step
                (plinth/training/held_ranks.py), a process that must not finish yet is suspended
    processes   a process that a test kills sleeps longer than the test lasts; ports are those that the system gives
    properties  the same examples are drawn every time; `--hypothesis-profile explore` draws others
    sharing     files that several modules only read are made once for all test processes (shared.py)
    disk        nothing is flushed to it: no test cuts the power, and flushes are a quarter of the CPU of small stages
    memory      a test process that has become large goes on in a fork of what was collected (forks.py)
    isolation   a test leaves the process as it was: signals, environment, threads, processes (isolation.py)
    order       test processes take whole modules, in order; a module that takes minutes must not start last, and
                while the first makes the shared workspaces, the next make their own: none waits (LONGEST)

fuzz/targets.py has a target for each parser; its seeds are part of the suite, and `make fuzz` searches for new ones.
"""

from __future__ import annotations

import gc
import math
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from plinth.compute import progress
from plinth.compute.engine import LocalEngine
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import enrolment
from tests import forks, isolation, peers, services, shared

settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("plinth", settings.get_profile("explore"), derandomize=True, max_examples=50)
settings.register_profile("thorough", settings.get_profile("explore"), derandomize=True)  # of `make test-all`
settings.load_profile("plinth")
# Hypothesis also draws constants of our imported source files: each order of the tests would have its own examples,
# after seconds of parsing in each process.
providers._get_local_constants = lambda: providers._local_constants
os.fsync = lambda fd: None  # no test switches the power off; child processes flush their files
progress.PATIENCE_S = math.inf  # a command on a slow machine prints what it prints on a fast one

#: Variables by which tests plan faults in child processes, which see no others (plinth.processes).
os.environ.setdefault("PLINTH_PASS_ENVIRONMENT", "FAULTS CRASH PLANTED HELD")

LONGEST = (
    "browser/test_pages.py",
    "registry/test_api.py",
    "plinth/compute/test_ray_engine.py",
    "plinth/training/test_job.py",
    "attacks/test_mlflow_writer.py",
    "jobs/test_pipeline.py",
    "jobs/test_web.py",
    "plinth_text/fasttext/test_documents.py",
    "plinth/training/test_resume.py",
    "plinth/training/engine/test_planned_memory.py",
    "plinth/training/test_crash_matrix.py",
    "registry/login/test_login.py",
    "plinth/training/checkpoint/test_upload.py",
    "test_docs.py",
    "registry/canary/test_tick.py",
    "plinth/corpus/policy/profiles/test_agreement.py",
    "registry/exports/test_forms.py",
    "plinth/training/engine/test_zero_stages.py",
    "plinth/training/parallel/test_combinations.py",
    "plinth/corpus/dedup/substring/test_substring.py",
    "jobs/test_illegal.py",
    "assets/test_tasks.py",
    "plinth/launch/test_ray_jobs.py",
)


#: Approvers of the tests' root of trust.
PEOPLE = ("ada@example.org", "anna@example.org", "ben@example.org", "bob@example.org", "demo-approver@example.org",
          "tests@example.org")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(isolation.Isolation())
    if hasattr(config, "workerinput"):  # a process of pytest-xdist
        config.pluginmanager.register(forks.Forks())


@pytest.fixture(scope="session", autouse=True)
def trust_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A demo root with a key for every role, pinned for all workspaces of the tests and their child processes."""
    folder = shared.once(tmp_path_factory, "trust", make_trust)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRUST_VARIABLE, str(folder / "trust"))
        patch.delenv("COLUMNS", raising=False)  # test processes are given one; tables for a pipe are wide
        yield folder / "trust"


@pytest.fixture
def own_trust(trust_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same root and keys in a folder of this test's own: a machine that has seen no record yet."""
    # Other test processes write the shared folder's seen.json, through files that come and go.
    own = shutil.copytree(trust_folder, tmp_path / "own-trust", ignore=shutil.ignore_patterns("seen.json", ".*"))
    monkeypatch.setenv(TRUST_VARIABLE, str(own))
    return own


@pytest.fixture(scope="session")
def two_workers() -> Iterator[LocalEngine]:
    """Worker processes that tests share: each imports what its tasks need once."""
    with LocalEngine(2) as engine:
        list(engine.map(abs, [0, 0]))  # they start here, and not in the test that uses them first
        yield engine


def make_trust(folder: Path) -> None:
    """A demo root in `folder/trust`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRUST_VARIABLE, str(folder / "trust"))
        enrolment.initialise(Workspace(folder / "workspace"), "tests", PEOPLE, demo=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze imported and collected objects: the collector need not walk a million objects again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        peers.COLLECTED.update(peers.LARGE & sys.modules.keys())
        gc.freeze()
        gc.set_threshold(50_000, 10, 10)  # the default of 700 spends a twentieth of the CPU time on collections
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {_module(item) for item in items if item.get_closest_marker("slow")}
    places = {f"tests/{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (places.get(_module(item), len(places)), _module(item) not in slow))


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        services.demand("GPU")
    for mark in item.iter_markers("needs"):
        for service in mark.args:
            services.demand(service)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if jobs := sys.modules.get("tests.living_job"):
        jobs.end_jobs()
    if nextitem is None or _module(nextitem) != _module(item):  # idle processes serve the tests of one module
        if engine := sys.modules.get("plinth.evaluation.engine.client"):
            engine.SPARE.end()
        if streams := sys.modules.get("plinth.compute.worker"):
            streams.SPARES.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    services.refused(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    services.refused(report)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in services.counted(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)

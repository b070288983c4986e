"""A run whose process was killed is found and closed; one that lives, or is on another machine, is left alone."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.launcher import WorkerStatus
from dagster._daemon.monitoring.run_monitoring import monitor_started_run

from plinth.storage.workspace import Workspace
from plinth_jobs import dagster_parts
from plinth_jobs.instance import interruptible, open_instance


@pytest.fixture
def instance(tmp_path) -> Iterator[dg.DagsterInstance]:
    with open_instance(Workspace(tmp_path).ensure()) as made:
        yield made


@dg.op
def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dg.job
def dies() -> None:
    killed()


def left(instance: dg.DagsterInstance, host: str) -> dg.RunRecord:
    """A run whose process was killed in its only op."""
    run = {"instance": instance, "tags": {dagster_parts.HOST: host}}
    child = multiprocessing.get_context("fork").Process(target=dies.execute_in_process, kwargs=run)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    (record,) = instance.get_run_records()
    assert record.dagster_run.status == dg.DagsterRunStatus.STARTED
    return record


def test_a_run_whose_process_is_gone_is_closed(instance: dg.DagsterInstance) -> None:
    record = left(instance, dagster_parts.host())
    assert instance.run_launcher.supports_check_run_worker_health
    found = instance.run_launcher.check_run_worker_health(record.dagster_run)
    assert (found.status, "exited" in str(found.msg)) == (WorkerStatus.FAILED, True)
    monitor_started_run(instance, None, record, logging.getLogger())  # type: ignore[arg-type]
    assert instance.get_run_records()[0].dagster_run.status == dg.DagsterRunStatus.FAILURE


def test_a_run_of_another_machine_is_left_alone(instance: dg.DagsterInstance) -> None:
    record = left(instance, "another")
    monitor_started_run(instance, None, record, logging.getLogger())  # type: ignore[arg-type]
    assert instance.get_run_records()[0].dagster_run.status == dg.DagsterRunStatus.STARTED


def test_a_living_run_is_running_and_the_number_of_its_process_alone_is_not(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[WorkerStatus] = []

    @dg.op
    def asked(context) -> None:
        for rounded in (dagster_parts.ROUNDED_S, -1e9):  # as if this process had begun after the run
            monkeypatch.setattr(dagster_parts, "ROUNDED_S", rounded)
            run = context.instance.get_run_by_id(context.run_id)
            assert run
            found.append(instance.run_launcher.check_run_worker_health(run).status)

    @dg.job
    def asks() -> None:
        asked()

    with interruptible():
        asks.execute_in_process(instance=instance, tags={dagster_parts.HOST: dagster_parts.host()})
    assert found == [WorkerStatus.RUNNING, WorkerStatus.FAILED]

"""A Dagster instance that cannot be opened is refused by name, with what to do."""

from __future__ import annotations

import signal
from pathlib import Path

import dagster as dg
import pytest

from plinth.errors import WorkspaceError
from plinth.storage.workspace import Workspace
from plinth_jobs import instance

SETTINGS = """
storage:
  postgres:
    postgres_url: postgresql+psycopg2://nobody@127.0.0.1:1/dagster
"""
ABSENT = """
run_storage: {module: dagster_elsewhere, class: Storage, config: {}}
"""


@pytest.mark.parametrize(
    ("settings", "found"),
    [pytest.param(SETTINGS, "too many retries", id="away"), pytest.param(ABSENT, "dagster_elsewhere", id="absent")],
)
def test_settings_that_cannot_be_used_are_named(
    settings: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if settings is SETTINGS:
        pytest.importorskip("dagster_postgres")
        monkeypatch.setattr("time.sleep", lambda _: None)  # Dagster tries again some times
    path = tmp_path / "dagster.yaml"
    path.write_text(settings)
    monkeypatch.setenv("PLINTH_DAGSTER_YAML", str(path))
    with pytest.raises(WorkspaceError, match="cannot open an instance") as caught:
        instance.open_instance(Workspace(tmp_path / "workspace").ensure())
    assert str(path) in str(caught.value)
    assert found in str(caught.value.found)
    assert "plinth[postgres]" in str(caught.value.remedy)


def test_the_settings_are_private_and_the_databases_are_where_they_were(tmp_path: Path) -> None:
    """Files in the workspace name no class that Dagster imports."""
    space = Workspace(tmp_path / "workspace").ensure()
    space.dagster.mkdir(exist_ok=True)
    (space.dagster / "dagster.yaml").write_text(
        "python_logs: {dagster_handler_config: {handlers: {x: {(): subprocess.Popen, args: [touch, planted]}}}}\n"
    )
    with instance.open_instance(space) as opened:
        settings = opened.get_ref().custom_instance_class_data, opened.get_settings("python_logs")
        assert "Popen" not in str(settings)
        assert opened.run_storage is not None
        assert Path(opened.storage_directory()).is_relative_to(space.dagster)
        opened.get_runs()
    assert (space.dagster / "history" / "runs.db").exists()
    assert not instance.home(space).is_relative_to(space.root)


def test_runs_of_this_process_are_runs_of_a_job_of_the_code_location(tmp_path: Path) -> None:
    """As Dagster's pages ask for them: by the label of the repository in the code location that `plinth up` serves."""
    import dagster as dg
    from dagster._core.storage.tags import REPOSITORY_LABEL_TAG

    graph = dg.GraphDefinition(name="make_corpus", node_defs=[dg.op(name="nothing")(lambda: None)])
    job = graph.to_job()
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as opened:
        with instance.interruptible():
            result = job.execute_in_process(instance=instance.of_code_location(opened, "make_corpus"))
        label = {REPOSITORY_LABEL_TAG: "__repository__@plinth_jobs.definitions"}
        wanted = dg.RunsFilter(job_name="make_corpus", tags=label)
        (run,) = opened.get_runs(wanted)
    assert run.run_id == result.run_id
    assert run.remote_job_origin is not None
    assert run.remote_job_origin.location_name == instance.LOCATION


def test_a_background_job_can_be_stopped_while_and_after_it_runs(tmp_path: Path) -> None:
    """A shell starts it with SIGINT ignored, and Dagster gives SIGTERM the handler of SIGINT."""
    import dagster as dg

    job = dg.GraphDefinition(name="job", node_defs=[dg.op(name="nothing")(lambda: None)]).to_job()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as opened, instance.interruptible():
            job.execute_in_process(instance=opened)
            assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_database_has_one_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster._core.storage.event_log.sqlite import sqlite_event_log
    from dagster._core.storage.runs.sqlite import sqlite_run_storage

    opened = instance.open_instance(Workspace(tmp_path / "workspace").ensure())
    for module in (sqlite_event_log, sqlite_run_storage):
        monkeypatch.delattr(module, "create_engine")  # Dagster makes none of its own any more
    with opened:
        for number in range(3):
            seen = dg.AssetObservation("web", metadata={"number": number})
            opened.report_runless_asset_event(seen)
        events = opened.fetch_observations(dg.AssetKey("web"), limit=5).records
        assert [one.asset_observation.metadata["number"].value for one in events] == [2, 1, 0]
        assert opened.get_runs() == []

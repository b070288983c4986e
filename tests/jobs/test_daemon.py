"""Dagster's real daemon and a bucket over HTTP: an arrival becomes documents exactly once, also after crashes.

Two sensors watch the same bucket. The daemon, its code server and the run under way are killed while a run makes
documents, and the recipe has changed when they start again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from plinth.compute.context import Context
from plinth.operation import workspace_files
from plinth.recipe.load import load
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from plinth_assets.catalog import stages
from plinth_jobs.instance import home
from tests.s3_server import Bucket, serving

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

RECIPE = """
name: arriving
corpus:
  annotate: {{gopher_quality: {{}}, language: {{}}, licence: {{}}}}
  policies:
    default:
      rules:
        - {{reason: short, drop: gopher_quality.word_count < {words}}}
  permitted_licences: [MIT]
  buckets:
    prose:
      description: Articles that arrive.
      owner: tests@example.org
      sources:
        - kind: jsonl
          path: {place}
          licence: MIT
          terms: {{train: true, redistribute: true, commercial: true}}
          domain: example.org
          snapshot: 2026-01
"""
#: A code location with a second sensor that watches the same places.
LOCATION = """
import os
from pathlib import Path
import dagster as dg
from plinth_jobs import definitions as own
from plinth_jobs.sensors import arrival
from plinth_jobs.recipes import find, load
workspace, recipe = Path(os.environ["PLINTH_WORKSPACE"]), load(find(os.environ["PLINTH_RECIPE"]))
made = own.build(recipe, workspace)
job = next(one for one in made.jobs if one.name == own.CORPUS)
defs = dg.Definitions.merge(made, dg.Definitions(sensors=[arrival(recipe, workspace, job, name="watch_too")]))
del made
"""
#: For a machine on which everything else runs, too; nothing depends on it but when a failure is stated.
PATIENCE_S = 1800.0


def wait_for(condition: Callable[[], Any], what: str, log: Path) -> Any:
    until = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < until, f"{what}\n{log.read_text()[-6000:]}"
        time.sleep(0.5)
    return found


@contextmanager
def daemon(folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon with its code server, in a process group of its own, which is killed at the end."""
    (folder / "location.py").write_text(LOCATION)
    command = [sys.executable, "-m", "dagster._daemon", "run", "-f", str(folder / "location.py")]
    with log.open("ab") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """All of its group at once, as a machine that loses power."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def articles(bucket: Bucket, name: str, count: int) -> None:
    picks = random.Random(name)
    texts = [f"Article {n}. " + " ".join(f"word{picks.randrange(9999)}" for _ in range(60)) for n in range(count)]
    lines = [json.dumps({"id": f"{name}-{n}", "text": text}) for n, text in enumerate(texts)]
    bucket.put(f"prose/{name}.jsonl", "\n".join(lines).encode())


def documents(workspace: Workspace) -> int:
    """Rows of the published documents."""
    ctx = Context(workspace)
    ref = ctx.refs.seen("prose/documents")
    return sum(read_table(ctx.store, part).num_rows for part in ctx.refs.load(ref.digest).named("part-")) if ref else 0


def test_arrivals_become_documents_once(
    tmp_path: Path, own_trust: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[..., None]
) -> None:
    workspace, recipe, log = Workspace(tmp_path / "w").ensure(), tmp_path / "recipe.yaml", tmp_path / "daemon.log"
    with serving() as bucket:
        articles(bucket, "a", 50)
        recipe.write_text(RECIPE.format(words=20, place=bucket.uri("prose")))
        monkeypatch.setenv("PLINTH_RECIPE", str(recipe))
        monkeypatch.setenv("PLINTH_WORKSPACE", str(workspace.root))
        monkeypatch.setenv("DAGSTER_HOME", str(home(workspace)))
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        instance = dg.DagsterInstance.get()

        def runs(*statuses: dg.DagsterRunStatus) -> list[dg.RunRecord]:
            wanted = dg.RunsFilter(job_name="make_corpus", statuses=list(statuses) or None)
            return list(instance.get_run_records(wanted))

        with daemon(tmp_path, log) as process:
            wait_for(lambda: len(runs(dg.DagsterRunStatus.SUCCESS)) == 2, "two sensors, a run each", log)
            first, second = sorted(runs(dg.DagsterRunStatus.SUCCESS), key=lambda one: one.start_time or 0.0)
            assert documents(workspace) == 50
            assert {one.dagster_run.tags["dagster/sensor_name"] for one in (first, second)} == {"arrival", "watch_too"}
            assert first.end_time
            assert second.start_time
            assert first.end_time <= second.start_time  # one at a time
            written = [path.stat().st_mtime for path in workspace.store.rglob("files/md5/*/*")]
            assert max(written) <= first.end_time  # the second found everything done

            before = {one.dagster_run.run_id for one in runs()}
            articles(bucket, "b", 30)
            third = wait_for(
                lambda: [one for one in runs(dg.DagsterRunStatus.STARTED) if one.dagster_run.run_id not in before],
                "a run for what arrived",
                log,
            )[0]
            recipe.write_text(RECIPE.format(words=10, place=bucket.uri("prose")))
            kill(process)
        assert documents(workspace) in (50, 80)
        with daemon(tmp_path, log):
            wait_for(lambda: documents(workspace) == 80, "what arrived is not lost", log)
            wait_for(
                lambda: not runs(*(s for s in dg.DagsterRunStatus if s.value in ("STARTED", "QUEUED", "STARTING"))),
                "nothing hangs",
                log,
            )
        assert instance.get_run_by_id(third.dagster_run.run_id).status in (
            dg.DagsterRunStatus.FAILURE,
            dg.DagsterRunStatus.SUCCESS,
        )

    ctx, versions = Context(workspace), {}
    for words in (20, 10):
        text = tmp_path / f"{words}.yaml"
        text.write_text(RECIPE.format(words=words, place="s3://any/prose"))
        for stage in stages(load(text)):
            versions.setdefault(stage.asset, {})[words] = stage.code_version
    assert versions["prose/policy"][20] != versions["prose/policy"][10]
    for asset in ("prose/policy", "prose/verdicts", "prose/curated"):
        event = instance.get_latest_materialization_event(dg.AssetKey(asset.split("/")))
        assert event is not None
        assert event.asset_materialization is not None
        tags = event.asset_materialization.tags or {}
        ran = instance.get_run_by_id(event.run_id)
        assert ran is not None
        began = instance.get_run_record_by_id(event.run_id).start_time
        words = 20 if began < recipe.stat().st_mtime else 10
        assert tags["dagster/code_version"] == versions[asset][words]  # of the code that ran
        assert tags["dagster/data_version"] == ctx.refs.seen(asset).digest

    log_lines = list(workspace_files.read(workspace, float("inf")))
    arrived = [line["at"] for line in log_lines if line["event"] == "arrived" and line["asset"] == "prose"]
    published = [line for line in log_lines if line["event"] == "published" and line["asset"] == "prose/documents"]
    record_property("seconds from arrival to documents", published[0]["time"] - min(arrived))

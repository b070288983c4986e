"""The exporter of a workspace has all parts, comes back when it was killed, and ends with what started it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from plinth.compute.context import Context
from plinth.operation.spending_ledger import Ledger, Limit, Reservation
from plinth.records import Blob, Manifest, Part
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.telemetry.timeline import Timeline
from plinth_ops.metrics.parts import exporter
from plinth_ops.metrics.table import METRICS
from tests.living_job import give_job
from tests.plinth.training.conftest import tiny
from tests.prometheus_server import free_port, wait_for


def test_all_parts_are_collected_and_reading_makes_nothing(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    before = sorted(ctx.workspace.root.rglob("*"))
    found = exporter(ctx, None, pytest.fail)
    text = found.complete().decode()
    assert sorted(ctx.workspace.root.rglob("*")) == before
    parts = {part.name for part in found.parts}
    assert all(part.up for part in found.parts)
    assert {one.part for one in METRICS.values()} == parts | {"exporter"}
    assert all(f'plinth_collector_up{{part="{name}"}} 1.0' in text for name in parts)


def test_corpus_and_budget_are_what_is_published_and_reserved(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    publish(ctx)
    reserve(ctx)
    families = text_string_to_metric_families(exporter(ctx, None, pytest.fail).complete().decode())
    values = {(one.name, *sorted(one.labels.values())): one.value for family in families for one in family.samples}
    assert values["plinth_asset_rows", "web/documents"] == 9
    assert values["plinth_asset_bytes", "web/documents"] == 700
    assert values["plinth_documents_in", "policy"] == 9
    assert values["plinth_documents_removed", "policy", "toxic"] == 2
    assert values["plinth_budget_limit", "", "all", "total"] == 100
    assert values["plinth_budget_used", "", "all", "total"] == 30
    assert (values["plinth_spent", "", "web"], values["plinth_reserved", "", "web"]) == (0, 30)


def publish(ctx: Context) -> None:
    """Documents and a funnel."""
    blob = Blob(md5="1" * 32, sha256="2" * 64, bytes=700)
    funnel = {"total": {"stages": [{"stage": "policy", "documents_in": 9, "reasons": {"toxic": {"documents": 2}}}]}}
    for asset, stats in (("web/documents", {}), ("funnel", funnel)):
        made = Manifest(asset=asset, step="s", version="1", params={}, inputs={}, stats=stats,
                        parts=(Part(name="part-0.parquet", blob=blob, rows=9),))  # fmt: skip
        ctx.refs.save(made)
        ctx.refs.publish(made, "k")


def reserve(ctx: Context) -> None:
    """A limit, and a reservation under it."""
    (ctx.workspace.root / "budget").mkdir()
    ledger = Ledger(str(ctx.workspace.root / "budget" / "ledger.sqlite"))
    ledger.limit(Limit(scope="all", name="", amount=100_000_000, period="total", person="kim", made=1.0))
    ledger.reserve(
        Reservation(id="1", workspace=str(ctx.workspace.root), run="r", recipe="", team="web", experiment="", person="",
                    ranks=1, price=0, spot=False, reserved=30_000_000, reason="", work="w", before_s=0.0, made=2.0)
    )  # fmt: skip


#: Packages, including ours that import them, that the exporter's process must not load, to stay at some 50 MB.
HEAVY = ("numpy", "pyarrow", "duckdb", "pandas", "fsspec", "asyncio", "boto3", "cryptography", "securesystemslib",
         "sqlalchemy", "mlflow", "dagster", "torch", "plinth_registry", "plinth_assets", "plinth.recipe",
         "plinth.provenance")  # fmt: skip


def test_all_parts_are_collected_without_what_is_heavy(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    publish(ctx)
    reserve(ctx)
    config = tiny(ctx.workspace.root, run_id="r1")
    configuration.write(config)
    give_job(config)
    Timeline(config.directory.events).append("job_started", ranks=2, nodes=1)
    script = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        import plinth_ops.metrics as metrics
        from plinth_jobs.cli.options import Settings
        found = metrics._exporter(Settings(Path({str(ctx.workspace.root)!r})))
        text = found.complete().decode()
        assert all(part.up for part in found.parts), text
        assert text.count("plinth_run_active") == 3 and "plinth_asset_rows" in text and "plinth_budget_limit" in text
        print(*(name for name in {HEAVY!r} if name in sys.modules))
    """)
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_a_release_that_changes_is_collected_at_the_next_refresh(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    found = exporter(ctx, None, pytest.fail)
    (registry,) = (part for part in found.parts if part.name == "registry")
    found.complete()
    due = registry.due
    found.refresh(due - 1)
    assert registry.begun is None
    (ctx.workspace.releases / "00001.json").write_text("{}")
    found.refresh(due - 1)
    assert registry.begun is not None
    assert b"plinth_trust_broken 1.0" in found.complete()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_it_ends_with_the_process_that_started_it_however_that_ends(tmp_path: Path) -> None:
    space, port = Workspace(tmp_path / "workspace").ensure(), free_port()
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from plinth_jobs import servers
        from plinth.storage.workspace import Workspace
        log, space = Path({str(tmp_path / "log")!r}), Workspace({str(space.root)!r})
        print(servers._export(log, space, Path("jobs/plinth_jobs/recipes/tiny.yaml"), {port}).pid, flush=True)
        time.sleep(3600)
    """)
    root = Path(__file__).resolve().parents[3]
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))

    def answer() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as found:
            body: bytes = found.read()
        return body

    assert b"plinth_collector_up" in wait_for(answer, "it answers")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 120
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.2)

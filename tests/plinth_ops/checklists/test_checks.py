"""A healthy workspace meets every line that this machine can; each planted fault makes its own line fail, no other."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import CheckFailedError, MissingError, RequestError, SignatureError, WorkspaceError
from plinth.launch.parameters import Launch, Supervision
from plinth.model.parameters import Model
from plinth.operation.spending_ledger import Ledger, Limit
from plinth.records import Manifest, Part
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.training import config as configuration
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from plinth.training.supervise.result import JobResult
from plinth.trust.root import SEEN
from plinth_ops.backup.snapshot import BackupArchive, BackupSnapshot
from plinth_ops.checklists import place_checks, release_checks, review, run_checks, trust_checks
from plinth_ops.checklists.review import (
    CHECKLISTS,
    Check,
    CheckAnswer,
    CheckedLine,
    ChecklistSettings,
    CheckScope,
    passed,
    undetermined,
)
from plinth_ops.service_levels import objectives
from plinth_ops.service_levels.tallies import ErrorBudget
from plinth_registry import api, decisions, freeze, incidents, policy
from plinth_registry.audit_log import AUDIT, FEED
from tests.attacks.conftest import mlflow, mlflow_database
from tests.registry.conftest import Line, ctx, line, make_line
from tests.s3_server import serving

__all__ = ["ctx", "line", "make_line", "mlflow", "mlflow_database"]

#: Lines that read the source or all installed packages, whatever the workspace; they have tests of their own.
OF_THE_CODE = ("unpickling", "pins", "code-commit")
#: Lines that this machine, or a run too short to be timed, leaves open.
OF_THE_MACHINE = ("clock", "encryption-at-rest", "checkpoint-interval", "error-budget")


class Site:
    """A released workspace with a run, and what makes it whole."""

    def __init__(self, line: Line, folder: Path) -> None:
        self.line, self.ctx, self.root = line, line.ctx, line.ctx.workspace.root
        self.trust = Path(os.environ[TRUST_VARIABLE])
        self.backups = folder / "backups"
        self.recipe_path = self.root / "recipe.yaml"
        self.recipe_path.write_text("name: t\n")
        self.settings = ChecklistSettings(backups=str(self.backups), free_checkpoints=1)
        self.recipe = line.recipe

    def whole(self) -> None:
        self.backups.mkdir()
        (self.backups / "newest.tar").write_bytes(b"all")
        (self.root / "objectives.yaml").write_text("goodput: 0.9\n")
        (self.root / "alerting.yaml").write_text("default: http://127.0.0.1:1/\nescalation: http://127.0.0.1:2/\n")
        ledger = self.root / "budget" / "ledger.sqlite"
        ledger.parent.mkdir()
        self.limit(10**12)
        for asset in ("holdout", "contamination"):
            self.publish(asset, {"web/curated": self.line.curated.digest}, held_out=7)
        self.publish("evaluation", {"checkpoint": self.line.checkpoint.digest})
        self._run()

    def limit(self, amount: int) -> None:
        given = {"scope": "all", "name": "", "period": "total", "person": "ada", "made": time.time()}
        Ledger(str(self.root / "budget" / "ledger.sqlite")).limit(Limit(amount=amount, **given))

    def publish(self, asset: str, inputs: dict[str, str], **stats: int) -> Manifest:
        parts = self.line.curated.parts
        made = Manifest(asset=asset, step=asset, version="1", params={}, inputs=inputs, parts=parts, stats=stats)
        self.ctx.refs.publish(made, "k" * 64)
        return made

    def lines(self) -> dict[str, CheckedLine]:
        scope = CheckScope(Context(self.ctx.workspace), self.recipe, self.recipe_path, self.settings)
        asked = [check for check in review.checks() if check.name not in OF_THE_CODE]
        return {one.name: one for one in review.evaluate(scope, asked)}

    def _run(self) -> None:
        config = configuration.RunConfig(
            run_id=self.line.run.id, key="0" * 64, recipe="t", workspace=str(self.root),
            model=Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64), vocab_size=64, end_of_text=0,
            optimizer=Optimizer(), precision="fp32", parallel=Parallel(), seed=1, launch=Launch(ranks=1),
            sequence_tokens=32, micro_batch_sequences=2, global_batch_sequences=8, total_steps=12, mixture="m" * 64,
            shards={"web": "s" * 64}, tokenizer="t" * 64, checkpoints=Checkpoints(), supervision=Supervision(),
        )  # fmt: skip
        configuration.write(config)
        run = config.directory
        run.events.write_text(json.dumps({"seq": 1, "time": time.time(), "event": "finished"}) + "\n")
        ended = JobResult(status="finished", step=1, restarts=0, lost_steps=0, lost_s=0.0)
        run.result.write_text(ended.model_dump_json())
        run.evidence.write_text(json.dumps({"bit_exact": True, "from_step": 2, "to_step": 5}))


@pytest.fixture
def site(own_trust: Path, line: Line, mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("PLINTH_PRIVATE", str(tmp_path / "private"))
    for path in (own_trust, *own_trust.rglob("*")):  # made without the mask that programs begin with
        path.chmod(path.stat().st_mode & 0o700)
    given = (line.recipe, line.checkpoint, line.evaluation, line.run, line.facts())
    found = api.register_candidate(line.ctx, *given, materials=line.materials)[0]
    decisions.approve(line.ctx, line.recipe, found.version, "ada@example.org", "good")
    decisions.promote(line.ctx, line.recipe, found.version, "ops", "weekly")
    freeze.catch_up_feed(line.ctx)
    made = Site(line, tmp_path)
    made.whole()
    return made


Kept = Callable[[Path], Path]
Plant = Callable[[Site, pytest.MonkeyPatch, Kept], None]


def _edit(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.chmod(0o600)
    path.write_bytes(data.replace(old, new, 1))


def _recipe(**changes: Any) -> Plant:
    """Another value of a key of the recipe, by `section__key`."""

    def plant(site: Site, patch: pytest.MonkeyPatch, kept: Kept) -> None:
        data = site.line.recipe.model_dump(mode="json")
        for dotted, value in changes.items():
            *above, last = dotted.split("__")
            inner = data
            for name in above:
                inner = inner[int(name) if name.isdigit() else name]
            inner[last] = value
        patch.setattr(site, "recipe", type(site.recipe).model_validate(data))

    return plant


def _orphan(site: Site, patch: pytest.MonkeyPatch, kept: Kept) -> None:
    words = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(3600)"]
    gone = str(site.root / "gone")
    process = subprocess.Popen([*words, "plinth_registry.mlflow.server", gone, "1"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    patch.setattr(site, "orphan", process, raising=False)


def _file(name: str, text: str, mode: int = 0o600) -> Plant:
    def plant(site: Site, patch: pytest.MonkeyPatch, kept: Kept) -> None:
        path = kept(site.root / name)
        write_bytes(path, text.encode())
        path.chmod(mode)

    return plant


def _edited(path: Callable[[Site], Path], old: bytes, new: bytes) -> Plant:
    return lambda site, patch, kept: _edit(kept(path(site)), old, new)


def _weights(folder: Callable[[Site], Path]) -> Plant:
    def plant(site: Site, patch: pytest.MonkeyPatch, kept: Kept) -> None:
        path = kept(next(iter(sorted(folder(site).rglob("*.safetensors")))))
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1] + b"\x07")

    return plant


def _without_policy(site: Site, patch: pytest.MonkeyPatch, kept: Kept) -> None:
    name = site.recipe.required_release().name
    kept(policy.policies(name).path(site.ctx, 1)).unlink()


def _cut_lineage(site: Site, patch: pytest.MonkeyPatch, kept: Kept) -> None:
    kept(site.root / "refs" / "evaluation.json")
    site.publish("evaluation", {"checkpoint": "0" * 64})


def _unsealed(site: Site, patch: pytest.MonkeyPatch, kept: Kept) -> None:
    path = kept(site.root / "refs" / "extra.json")
    path.write_text(json.dumps({"asset": "extra", "digest": "0" * 64, "key": "0" * 64, "seal": None}))


PLANTED: dict[str, Plant] = {
    "key-modes": lambda site, patch, kept: next((site.trust / "keys").rglob("*.key")).chmod(0o644),
    "keys-outside": _file("approvals/mine.key", "-----BEGIN PRIVATE KEY-----\nx"),
    "secret-literals": _file("recipe.yaml", "name: t\ntoken: ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8\n"),
    "workspace-modes": lambda site, patch, kept: (site.root / "refs").chmod(0o777),
    "private-folder": lambda site, patch, kept: _open_folder(site, patch),
    "disk-room": lambda site, patch, kept: patch.setattr(site, "settings", replace_(site, free_checkpoints=10**12)),
    "encryption-in-transit": lambda site, patch, kept: patch.setenv("AWS_ENDPOINT_URL", "http://minio.example:9000"),
    "audit-log": _edited(lambda site: AUDIT.path(site.ctx, 1), b'"payload": "', b'"payload": "e30'),
    "signed-logs": _edited(lambda site: FEED.path(site.ctx, 1), b'"payload": "', b'"payload": "e30'),
    "seals": _unsealed,
    "gate-policy": _without_policy,
    "lineage": _cut_lineage,
    "champion": _weights(lambda site: site.ctx.workspace.models),
    "newest-checkpoint": _weights(lambda site: site.line.directory.checkpoints),
    "objectives": _file("objectives.yaml", "goodput: 7\n"),
    "alerts-routed": _file("alerting.yaml", "page_repeat: 2h\n"),
    "money-limit": lambda site, patch, kept: site.limit(0),
    "backup": lambda site, patch, kept: os.utime(site.backups / "newest.tar", (1, 1)),
    "resume-proof": _edited(lambda site: site.line.directory.evidence, b"true", b"false"),
    "jobs-ended": _edited(lambda site: site.line.directory.result, b"finished", b"failed"),
    "retention": _recipe(training__checkpoints__keep_last=1),
    "watched": _recipe(training__guard__enabled=False),
    "sources-owned": _recipe(corpus__buckets__web__owner="nobody@corpus.invalid"),
    "terms": _recipe(corpus__uses=["redistribute"], corpus__buckets__web__sources__0__terms__redistribute=False),
    "held-out": lambda site, patch, kept: kept(site.root / "refs" / "contamination.json").unlink(),
    "telemetry": _file("dagster/dagster.yaml", "telemetry:\n  enabled: true\n"),
    "servers-used": _orphan,
}


def _open_folder(site: Site, patch: pytest.MonkeyPatch) -> None:
    folder = site.root.parent / "open"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    patch.setenv("PLINTH_PRIVATE", str(folder))


def replace_(site: Site, **changes: Any) -> ChecklistSettings:
    return site.settings.model_copy(update=changes)


@pytest.fixture
def kept() -> tuple[Kept, Callable[[], None]]:
    """Files as they are before a fault is planted, and how to put them back."""
    known: dict[Path, tuple[bytes, int] | None] = {}

    def keep(path: Path) -> Path:
        known[path] = (path.read_bytes(), path.stat().st_mode) if path.exists() else None
        return path

    def restore() -> None:
        for path, found in known.items():
            path.unlink(missing_ok=True)
            if found is not None:
                path.write_bytes(found[0])
                path.chmod(found[1])
        known.clear()

    return keep, restore


#: Other lines that a planted fault fails: a champion is verified with the policy that it passed.
FAILS_TOO = {"gate-policy": {"champion"}}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_each_planted_fault_fails_its_own_line_and_no_other(
    site: Site, kept: tuple[Kept, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # servers that other tests left on this machine are not faults of this workspace
    elsewhere = release_checks._serving
    own = lambda: (found for found in elsewhere() if found[1].is_relative_to(site.root))  # noqa: E731
    monkeypatch.setattr(release_checks, "_serving", own)
    healthy = site.lines()
    unmet = [one for one in healthy.values() if one.outcome in ("fail", "undetermined")]
    bad = {one.name: (one.outcome, one.evidence) for one in unmet}
    assert set(bad) <= set(OF_THE_MACHINE), bad
    assert not any(one.outcome == "fail" for one in healthy.values()), bad
    keep, restore = kept
    modes = {
        path: path.stat().st_mode for path in (site.trust, *site.trust.rglob("*"), site.root, *site.root.glob("*"))
    }
    newest = site.backups / "newest.tar"
    wrong: dict[str, set[str]] = {}
    for name, plant in PLANTED.items():
        with monkeypatch.context() as patch:
            plant(site, patch, keep)
            failing = {line for line, one in site.lines().items() if one.outcome == "fail"}
            if name == "servers-used":
                site.orphan.kill()  # type: ignore[attr-defined]
                site.orphan.wait()  # type: ignore[attr-defined]
        if failing != {name} | FAILS_TOO.get(name, set()):
            wrong[name] = failing
        restore()
        for path, mode in modes.items():
            path.chmod(mode)
        os.utime(newest)
        site.limit(10**12)
        if name == "lineage":
            site.ctx.refs._seen.clear()
    assert wrong == {}
    assert {name: one.outcome for name, one in site.lines().items()} == {n: one.outcome for n, one in healthy.items()}
    assert len(PLANTED) >= 12


@pytest.mark.slow
def test_an_open_incident_and_a_signed_waiver(site: Site) -> None:
    opened = incidents.declare(site.ctx, "bad shard", "ben")
    assert site.lines()["no-incident"].outcome == "fail"
    soon = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    review.sign(site.ctx, review.find("no-incident"), soon, "a rehearsal that everybody knows of")
    found = site.lines()["no-incident"]
    assert (found.outcome, found.seen) == ("waived", "fail")
    assert "a rehearsal" in found.waiver
    assert "bad shard" in found.evidence
    site_later = CheckScope(site.ctx, site.recipe, None, site.settings, now=time.time() + 2 * 86400)
    (line,) = review.evaluate(site_later, [review.find("no-incident")])
    assert line.outcome == "fail"
    incidents.close(site.ctx, opened.number, "the rehearsal is over", "ben")
    assert site.lines()["no-incident"].outcome == "pass"


def test_what_waivers_rest_on_is_not_waived(ctx: Context) -> None:
    soon = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    with pytest.raises(RequestError, match="cannot waive"):
        review.sign(ctx, review.find("audit-log"), soon, "a reason in a sentence")
    with pytest.raises(RequestError, match="cannot waive"):
        review.sign(ctx, review.find("backup"), "2027-01-31", "a reason in a sentence")
    with pytest.raises(RequestError, match="cannot waive"):
        review.sign(ctx, review.find("backup"), soon, "short")


def test_a_forged_waiver_waives_nothing(ctx: Context, own_trust: Path) -> None:
    def bad(scope: CheckScope) -> CheckAnswer:
        return CheckAnswer("fail", "it does not hold")

    check = Check("backup", "c", "platform", ("readiness",), "r", bad)
    soon = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    review.sign(ctx, check, soon, "disks are mirrored elsewhere")
    assert review.evaluate(CheckScope(ctx), [check])[0].outcome == "waived"
    path = review.CHECK_WAIVERS.path(ctx, 1)
    path.write_bytes(path.read_bytes().replace(b'"payload": "', b'"payload": "e30', 1))
    assert review.evaluate(CheckScope(ctx), [check])[0].outcome == "fail"
    path.unlink()
    assert review.evaluate(CheckScope(ctx), [check])[0].outcome == "fail"
    (own_trust / SEEN).unlink()


@pytest.mark.parametrize(("held", "outcome"), [(0, "fail"), (7, "pass")])
def test_a_held_out_set_is_its_documents_and_not_its_rows(ctx: Context, held: int, outcome: str) -> None:
    rows = (Part(name="web/part-00000.parquet", rows=900, blob=ctx.store.put_bytes(b"a row for every document")),)
    for asset in ("holdout", "contamination"):
        stats = {"held_out": held}
        made = Manifest(asset=asset, step=asset, version="1", params={}, inputs={}, parts=rows, stats=stats)
        ctx.refs.publish(made, "k" * 64)
    answer = run_checks.set_aside(CheckScope(ctx))
    assert answer.outcome == outcome
    assert "900" not in answer.evidence


def test_a_check_that_breaks_or_cannot_tell_is_no_pass(ctx: Context) -> None:
    def breaks(scope: CheckScope) -> CheckAnswer:
        raise ZeroDivisionError("no")

    def unreadable(scope: CheckScope) -> CheckAnswer:
        raise MissingError("nobody knows")

    def row(name: str, examine: Callable[[CheckScope], CheckAnswer]) -> Check:
        return Check(name, "c", "platform", ("readiness",), "r", examine)

    def forged(scope: CheckScope) -> CheckAnswer:
        raise SignatureError("not signed", remedy="restore it")

    spoilt = review.evaluate(CheckScope(ctx), [row("b", unreadable), row("e", forged)])
    assert [(one.outcome, one.remedy) for one in spoilt] == [("undetermined", "r"), ("fail", "restore it")]
    fine = row("fine", lambda scope: passed("seen"))
    found = review.evaluate(CheckScope(ctx), [row("a", breaks), row("b", unreadable), fine])
    assert [one.outcome for one in found] == ["undetermined", "undetermined", "pass"]
    assert "ZeroDivisionError" in found[0].evidence
    with pytest.raises(MissingError, match="2 of 3"):
        review.require(found)
    failing = row("c", lambda scope: CheckAnswer("fail", "seen"))
    with pytest.raises(CheckFailedError, match="1 of 2"):
        review.require(review.evaluate(CheckScope(ctx), [failing, row("d", lambda scope: undetermined("no"))]))
    review.require(review.evaluate(CheckScope(ctx), [fine]))


def test_a_backup_that_was_killed_is_none_and_one_in_a_bucket_is_seen(ctx: Context, tmp_path: Path) -> None:
    """The record is written last: content without a record is not part of a backup, even if it is recent."""

    def seen(place: str) -> tuple[str, str]:
        answer = run_checks.backed_up(CheckScope(ctx, settings=ChecklistSettings(backups=place)))
        return answer.outcome, answer.evidence

    def back_up(place: str, at: str) -> None:
        nothing: dict[str, Any] = {"entries": (), "databases": (), "blobs": (), "missing": (), "counts": {}}
        BackupArchive(place).commit(BackupSnapshot(at=at, workspace="w", root="", root_version=0, **nothing))

    folder = tmp_path / "backups"
    write_bytes(folder / "objects" / "ab" / "abc", b"of one that was killed")
    assert seen(str(folder)) == ("fail", f"no complete backup in {folder}")
    back_up(str(folder), "2020-01-01T00:00:00+00:00")
    assert seen(str(folder))[0] == "fail"
    now = datetime.now(UTC).isoformat()
    back_up(str(folder), now)
    outcome, evidence = seen(str(folder))
    assert outcome == "warn"
    assert evidence.endswith("0.0 hours old, which is on the disk of the workspace itself")
    with serving() as bucket:
        assert seen(bucket.uri("backups")) == ("fail", f"no complete backup in {bucket.uri('backups')}")
        back_up(bucket.uri("backups"), now)
        assert seen(bucket.uri("backups"))[0] == "pass"


def test_room_that_cannot_be_written_is_no_room(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the kernel refuses root: a mount that has become read-only, as after a disk error."""

    def refuse(dir: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))

    monkeypatch.setattr(place_checks, "_planned_bytes", lambda scope: 1)
    recipe: Any = SimpleNamespace(mixture=object())
    scope = CheckScope(ctx, recipe)
    assert place_checks.room(scope).outcome == "pass"
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    found = place_checks.room(scope)
    assert found.outcome == "fail"
    assert f"{ctx.workspace.runs} cannot be written" in found.evidence
    with pytest.raises(WorkspaceError, match="cannot write"):
        place_checks.clock(scope)


@pytest.mark.slow
def test_a_head_that_was_signed_by_a_wrong_clock_is_seen(site: Site) -> None:
    asked = [review.find("release-head")]
    now = CheckScope(site.ctx, site.recipe)
    before = replace(now, now=now.now - 2 * 86400)
    outcomes = [review.evaluate(scope, asked)[0] for scope in (now, before)]
    assert [one.outcome for one in outcomes] == ["pass", "warn"]
    assert "signed 2.0 days in the future" in outcomes[1].evidence


def test_every_line_has_a_name_of_its_own_an_owner_a_remedy_and_a_list() -> None:
    known = review.checks()
    assert len({one.name for one in known}) == len(known)
    assert all(one.claim and one.owner and one.remedy and one.lists for one in known)
    assert all(set(one.lists) <= set(CHECKLISTS) for one in known)
    assert all(review.checks(name) for name in CHECKLISTS)


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("import pickle\npickle.loads(b'')", ["pickle.loads"]),
        ("import pickle as p\np.load(f)", ["pickle.load"]),
        ("from pickle import loads as read\nread(b'')", ["pickle.loads"]),
        ("from pickle import Unpickler\nUnpickler(f).load()", ["pickle.Unpickler"]),
        ("import pickle\nf(pickle.loads, b'')", ["pickle.loads"]),
        ("import torch\ntorch.load(f)", ["torch.load"]),
        ("import torch\ntorch.load(f, weights_only=False)", ["torch.load"]),
        ("from torch import load\nload(f)", ["torch.load"]),
        ("import torch as t\nt.load(f)", ["torch.load"]),
        ("import numpy as np\nnp.load(f, allow_pickle=True)", ["numpy.load"]),
        ("import pandas as pd\npd.read_pickle(f)", ["pandas.read_pickle"]),
        ("import yaml\nyaml.load(f, Loader=yaml.Loader)", ["yaml.load"]),
        ("import joblib\njoblib.load(f)", ["joblib.load"]),
        ("import pickle\npickle.dumps(1)", []),
        ("import torch\ntorch.load(f, weights_only=True)", []),
        ("import numpy as np\nnp.load(f, allow_pickle=False)\nnp.load(f)", []),
        ("import yaml\nyaml.safe_load(f)\nyaml.load(f, Loader=yaml.CSafeLoader)", []),
        ("import json\njson.load(f)\nopen(f)", []),
    ],
)
def test_calls_that_run_what_they_read_are_found_under_any_alias(source: str, calls: list[str]) -> None:
    assert sorted({call for _, call in trust_checks.unpickling(source.encode())}) == calls


def test_a_module_that_unpickles_fails_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctx: Context) -> None:
    without_bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(trust_checks._folder("plinth_assets"), tmp_path / "assets", ignore=without_bytecode)
    monkeypatch.setattr(trust_checks, "_folder", lambda name: tmp_path / "assets")
    assert trust_checks.nothing_unpickled(CheckScope(ctx)).outcome == "pass"
    (tmp_path / "assets" / "loads.py").write_text("import pickle\nx = pickle.load(open('f', 'rb'))\n")
    found = trust_checks.nothing_unpickled(CheckScope(ctx))
    assert found.outcome == "fail"
    assert "assets/loads.py:2 pickle.load" in found.evidence


def test_a_secret_is_named_by_its_key_and_never_printed(ctx: Context) -> None:
    check = replace(review.find("secret-literals"))
    (ctx.workspace.root / "budget").mkdir()
    path = ctx.workspace.root / "budget" / "settings.yaml"
    path.write_text("ledger: postgresql://plinth:hunter2hunter2@db/plinth\n")
    (found,) = review.evaluate(CheckScope(ctx), [check])
    assert (found.outcome, "budget/settings.yaml: ledger" in found.evidence) == ("fail", True)
    assert "hunter2" not in found.evidence
    path.write_text("ledger: postgresql://plinth:$PGPASSWORD@db/plinth\n")
    assert review.evaluate(CheckScope(ctx), [check])[0].outcome == "pass"


def test_a_spent_error_budget_is_named_with_its_objective_and_where_that_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate on error budgets has other objectives: the same words never mean two things."""
    ctx = Context(Workspace(tmp_path / "here").ensure())
    spent = ErrorBudget(indicator="goodput", unit="rank-s", target=0.9, good_s=63, total_s=100)
    monkeypatch.setattr(objectives, "measure", lambda *_: [spent])
    scope = CheckScope(ctx, settings=ChecklistSettings())
    answer = run_checks.error_budget_left(scope)
    found = "goodput 63.00% of 100 rank-seconds, target 90.00% (370% of the error budget spent); in 28 days, "
    assert (answer.outcome, answer.evidence) == ("fail", f"{found}default objectives")
    (ctx.workspace.root / "objectives.yaml").write_text("goodput: 0.5\n")
    assert run_checks.error_budget_left(scope).evidence == f"{found}objectives of objectives.yaml"
    monkeypatch.setattr(objectives, "measure", lambda *_: [spent.model_copy(update={"target": 0.5})])
    answer = run_checks.error_budget_left(scope)
    assert (answer.outcome, answer.evidence.partition(";")[0]) == (
        "pass", "goodput 63.00% of 100 rank-seconds, target 50.00% (74% of the error budget spent)"
    )  # fmt: skip

"""A stage as a Dagster asset: checked before it is published, made once, data version = manifest digest."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from plinth import processes
from plinth.compute.context import Context, load, manifest
from plinth.compute.select_engine import Compute
from plinth.errors import CheckFailedError, ExtensionError
from plinth.operation.spending_ledger import Ledger, Limit
from plinth.records import Step
from plinth.storage.workspace import Workspace, folder_of
from plinth_assets import catalog, training
from plinth_assets.framework import Decision, Stage, Suite, between, data_docs, decide, docs_index, up_to_date
from plinth_assets.framework.build import Session, asset, resources_of
from plinth_jobs.instance import interruptible
from plinth_registry import taint


def _stage(name: str, deps: tuple[str, ...] = (), *, value: int = 1, least: int = 0, version: str = "1") -> Stage:
    def make(ctx, inputs, say):
        log = ctx.workspace.root / "made.txt"
        log.write_text((log.read_text() if log.exists() else "") + name + "\n")
        return manifest(name, Step(name="probe", version=version), inputs, [], {"n": value})

    def suite(made, inputs):
        return Suite(name.replace("/", "-"), [made.stats], [between("n", least, None)])

    return Stage(
        asset=name,
        deps=deps,
        make=make,
        version=version,
        params={"value": value},
        group="probe",
        description="A probe.",
        owner="someone@example.org",
        suite=suite,
    )


def test_a_stage_that_makes_the_asset_of_another_is_refused() -> None:
    with pytest.raises(ExtensionError, match="two stages make the asset 'a'"):
        catalog._upstream_first([_stage("a"), _stage("b", ("a",)), _stage("a", value=2)])


def _run(
    stages: list[Stage], workspace: Path, session: Session | None = None
) -> tuple[dg.ExecuteInProcessResult, dg.DagsterInstance]:
    instance = dg.DagsterInstance.ephemeral()
    defs = dg.Definitions(
        assets=[asset(stage) for stage in stages],
        resources=resources_of(str(workspace), Compute("local", 1), session),
        jobs=[dg.define_asset_job("all_assets", dg.AssetSelection.all(), executor_def=dg.in_process_executor)],
    )
    job = defs.resolve_job_def("all_assets")
    with interruptible():
        return job.execute_in_process(instance=instance, raise_on_error=False), instance


@pytest.fixture(scope="module", autouse=True)
def started() -> Iterator[list[str]]:
    """The modules of the processes that all runs here have started."""
    found, start = list[str](), processes.start

    def counted(command, *needs, **options):
        found.append(command[-1])
        return start(command, *needs, **options)

    data_docs.end()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "start", counted)
        yield found


def _marks(instance: dg.DagsterInstance, stages: list[Stage]) -> list[bool | None]:
    keys = [dg.AssetCheckKey(dg.AssetKey(stage.asset.split("/")), "marks") for stage in stages]
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    return [key in found and found[key].event.asset_check_evaluation.passed for key in keys]


def _made(workspace: Path) -> list[str]:
    return (workspace / "made.txt").read_text().split()


@pytest.mark.slow
def test_a_failed_check_publishes_nothing_and_stops_what_follows(tmp_path):
    stages = [_stage("a/one"), _stage("a/two", ("a/one",), value=1, least=5), _stage("a/three", ("a/two",))]
    session = Session()
    result, instance = _run(stages, tmp_path, session)
    refs = Context(Workspace(tmp_path)).refs
    assert not result.success
    assert [type(error) for error in session.failures] == [CheckFailedError]
    assert refs.ref("a/one") is not None
    assert refs.ref("a/two") is None
    assert instance.get_latest_materialization_event(dg.AssetKey(["a", "two"])) is None
    assert _made(tmp_path) == ["a/one", "a/two"]
    checks = [event for event in result.all_events if event.event_type_value == "ASSET_CHECK_EVALUATION"]
    assert [check.event_specific_data.passed for check in checks] == [True, False]


@pytest.mark.slow
def test_great_expectations_shows_the_suites_of_a_run_when_it_ends(tmp_path, started):
    session = Session()
    _run([_stage("up"), _stage("bad", ("up",), least=9)], tmp_path, session)
    assert started == ["plinth_assets.framework.data_docs"]
    assert session.warnings == []
    shown = {page.parts[-4] for page in docs_index(Workspace(tmp_path)).parent.glob("validations/**/*.html")}
    assert shown == {"up", "bad"}
    assert data_docs.finish() == []


@pytest.mark.slow
def test_the_data_version_is_the_digest_and_equal_work_is_not_done_twice(tmp_path):
    stages = [_stage("a/one"), _stage("a/two", ("a/one",))]
    _, instance = _run(stages, tmp_path)
    ctx = Context(Workspace(tmp_path))
    event = instance.get_latest_materialization_event(dg.AssetKey(["a", "two"]))
    tags = event.dagster_event.step_materialization_data.materialization.tags
    assert tags["dagster/data_version"] == ctx.refs.ref("a/two").digest
    shown = event.asset_materialization.metadata
    assert (shown["up_to_date"].value, "made_by" in shown) == (False, False)
    assert {"cost_usd", "cpu_seconds", "duration_seconds"} <= shown.keys()
    result, again = _run(stages, tmp_path)
    assert result.run_id != event.run_id
    assert _made(tmp_path) == ["a/one", "a/two"]
    shown = again.get_latest_materialization_event(dg.AssetKey(["a", "two"])).asset_materialization.metadata
    costs = {shown[name].value for name in ("cost_usd", "cpu_seconds", "duration_seconds")}
    assert (shown["up_to_date"].value, costs, shown["made_by"].value) == (True, {"0.00", 0.0}, event.run_id)
    _run([stages[0], _stage("a/two", ("a/one",), version="2")], tmp_path)
    assert _made(tmp_path) == ["a/one", "a/two", "a/two"]


def test_up_to_date_needs_the_same_code_parameters_inputs_and_blobs(tmp_path):
    ctx = Context(Workspace(tmp_path).ensure())
    stage = _stage("a/one")
    part = ctx.store_json("facts.json", {"n": 1})
    made = manifest("a/one", Step(name="probe", version="1"), {}, [part], {})
    assert up_to_date(stage, ctx, {}) is None
    ctx.refs.publish(made, stage.key(ctx, {}))
    assert up_to_date(stage, ctx, {}) == made
    assert up_to_date(_stage("a/one", version="2"), ctx, {}) is None
    assert up_to_date(_stage("a/one", value=2), ctx, {}) is None
    ctx.store.path(part.blob).unlink()
    assert up_to_date(stage, ctx, {}) is None


def test_up_to_date_means_that_what_is_named_outside_the_store_is_there(tmp_path):
    ctx = Context(Workspace(tmp_path).ensure())
    named = tmp_path / "named"
    stage = replace(_stage("a/one"), intact=lambda ctx, made: named.exists())
    made = manifest("a/one", Step(name="probe", version="1"), {}, [], {})
    ctx.refs.publish(made, stage.key(ctx, {}))
    assert up_to_date(stage, ctx, {}) is None
    named.touch()
    assert up_to_date(stage, ctx, {}) == made


def test_a_run_whose_last_checkpoint_was_deleted_by_hand_is_not_up_to_date(tmp_path):
    ctx = Context(Workspace(tmp_path).ensure())
    made = manifest("run", Step(name="run", version="1"), {}, [], {"run_id": "r1", "steps": 12})
    assert training._has_last_checkpoint(ctx, made)  # the folder of the run is gone: it was let go
    folder = ctx.workspace.runs / "r1" / "checkpoints" / "step-00000012"
    folder.mkdir(parents=True)
    assert not training._has_last_checkpoint(ctx, made)  # not committed
    folder.with_name("step-00000012.json").touch()
    assert training._has_last_checkpoint(ctx, made)
    folder.rmdir()
    assert not training._has_last_checkpoint(ctx, made)


def test_a_checkpoint_of_another_machine_is_up_to_date(tmp_path, monkeypatch):
    """Its files are in the bucket of a shared workspace; this machine has the record."""
    monkeypatch.setenv("PLINTH_CACHE", str(tmp_path))
    ctx = Context(Workspace(folder_of("s3://bucket/ws")).ensure())
    made = manifest("run", Step(name="run", version="1"), {}, [], {"run_id": "r1", "steps": 12})
    record = ctx.workspace.runs / "r1" / "checkpoints" / "step-00000012.json"
    record.parent.mkdir(parents=True)
    assert not training._has_last_checkpoint(ctx, made)
    record.touch()
    assert training._has_last_checkpoint(ctx, made)


def test_parts_that_an_earlier_version_misnamed_are_not_up_to_date(tmp_path):
    """Names that the step cache had kept: found when a part had come before others."""
    ctx = Context(Workspace(tmp_path).ensure())
    stage = _stage("a/one")
    parts = [ctx.store_json(f"part-{at:05}.parquet", {"n": at}) for at in range(3)]
    made = manifest("a/one", Step(name="probe", version="1"), {}, parts, {})
    for names in ((0, 1, 1), (1, 2, 3), (0, 2, 1)):
        named = zip((f"part-{at:05}.parquet" for at in names), parts, strict=True)
        wrong = [part.model_copy(update={"name": name}) for name, part in named]
        ctx.refs.publish(made.model_copy(update={"parts": tuple(wrong)}), stage.key(ctx, {}))
        assert up_to_date(stage, ctx, {}) is None
        with pytest.raises(ValueError, match="is not the part's position"):
            manifest("a/one", Step(name="probe", version="1"), {}, wrong, {})
    ctx.refs.publish(made, stage.key(ctx, {}))
    assert up_to_date(stage, ctx, {}) == made


def test_stages_after_a_stale_one_are_stale(tmp_path):
    ctx = Context(Workspace(tmp_path).ensure())
    one, two, three = _stage("a/one"), _stage("a/two", ("a/one",)), _stage("a/three")
    published = {}
    for stage in (one, two, three):
        made = stage.make(ctx, {dep: published[dep] for dep in stage.deps}, print)
        ctx.refs.publish(made, stage.key(ctx, {dep: published[dep].digest for dep in stage.deps}))
        published[stage.asset] = made
    assert decide(ctx, (one, two, three)) == Decision(("a/one", "a/two", "a/three"), ())
    assert decide(ctx, (_stage("a/one", version="2"), two, three)) == Decision(("a/three",), ("a/one", "a/two"))


def test_the_event_log_stays_small(tmp_path):
    from plinth_assets.framework.present import MAX_STATS_CHARACTERS, metadata

    ctx = Context(Workspace(tmp_path).ensure())
    big = manifest("a/one", Step(name="probe", version="1"), {}, [], {f"k{i}": i for i in range(5000)})
    shown = metadata(_stage("a/one"), ctx, big, {})
    assert "statistics" not in shown
    assert len(json.dumps({key: str(value) for key, value in shown.items()})) < MAX_STATS_CHARACTERS


def test_results_come_first_and_digests_last(tmp_path):
    from plinth_assets.framework.present import metadata, picture, table

    def present(ctx, made):
        from matplotlib.figure import Figure

        return {"log": dg.MetadataValue.path("/log"), "rows": dg.MetadataValue.md(table(["a"], [[1]])), "loss": 0.5,
                "curve": picture(Figure)}  # fmt: skip

    ctx = Context(Workspace(tmp_path).ensure())
    made = manifest("a/one", Step(name="probe", version="1"), {}, [], {"n": 1})
    shown = list(metadata(replace(_stage("a/one"), present=present), ctx, made, {}))
    assert [name for name in shown if name != "up_to_date"][:4] == ["curve", "loss", "rows", "log"]
    assert shown[-3:] == ["inputs", "code_version", "data_version"]


def test_a_plot_that_fails_is_said_and_undoes_nothing(tmp_path):
    from plinth_assets.framework.present import metadata

    def broken(ctx, made):
        raise ValueError("no such colour")

    ctx = Context(Workspace(tmp_path).ensure())
    made = manifest("a/one", Step(name="probe", version="1"), {}, [], {})
    shown = metadata(replace(_stage("a/one"), present=broken), ctx, made, {})
    assert shown["presentation_failed"] == "ValueError: no such colour"
    assert shown["data_version"] == made.digest


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_is_made_after_a_mark_shows_whether_it_is_concerned(tmp_path):
    stages = [_stage("a/one"), _stage("a/two", ("a/one",)), _stage("b/one")]
    _, instance = _run(stages, tmp_path)
    assert _marks(instance, stages) == [False, False, False]  # never evaluated: nothing was ever marked
    ctx = Context(Workspace(tmp_path))
    marked = taint.mark(ctx, ctx.refs.ref("a/one").digest, "dpo", "must go")

    stages.append(_stage("a/three", ("a/two",)))
    _, instance = _run(stages, tmp_path)
    assert _marks(instance, stages) == [False, False, True, False]
    mended = [_stage("a/one", value=2), *stages[1:]]
    _, instance = _run(mended, tmp_path)
    assert _marks(instance, mended) == [True, True, True, True]

    taint.lift(ctx, marked.target, "dpo", "another one")
    _, instance = _run(stages, tmp_path)
    assert _marks(instance, stages) == [True, True, True, True]


def _ledger(workspace: Path) -> Ledger:
    path = workspace / "budget" / "settings.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("team: web\nprices: {core_hour: 3600000}\n")  # a thousand for a millisecond
    return Ledger(str(path.parent / "ledger.sqlite"))


def test_a_stage_of_the_corpus_is_made_within_the_budget(tmp_path: Path) -> None:
    """The first making is bounded by nothing and settled; a limit that it has spent refuses the next, by name."""
    workspace = Workspace(tmp_path / "workspace").ensure().root
    ledger = _ledger(workspace)
    first_stage = replace(_stage("probe/one"), suite=None)
    assert _run([first_stage, replace(_stage("report"), group="report", suite=None)], workspace)[0].success
    (first,) = ledger.find()
    assert (first.run, first.team, first.reserved) == ("corpus:probe/one", "web", 1)
    recorded = load(Workspace(workspace), "probe/one")
    assert recorded is not None
    assert first.spent == round(recorded.driver_cpu_s * 1000 * 1e6)
    given = {"scope": "team", "name": "web", "period": "total", "person": "bo", "made": 1.0}
    ledger.limit(Limit(amount=first.spent, **given))  # spent to the last millionth
    second_stage = replace(_stage("probe/one", value=2), suite=None)
    done, _ = _run([second_stage], workspace)
    assert not done.success
    (failure,) = [event for event in done.all_events if event.is_step_failure]
    assert "probe/one is not made: it could exceed the budget" in str(failure.step_failure_data.error)
    refused = ledger.find()[-1]
    assert refused.refused
    assert (workspace / "made.txt").read_text().splitlines().count("probe/one") == 1
    ledger.limit(Limit(amount=10**12, **given))
    assert _run([second_stage], workspace)[0].success
    assert [one.spent is not None for one in ledger.find()] == [True] * 3


def test_a_stage_that_fails_is_settled_too(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").ensure().root
    ledger = _ledger(workspace)

    def fails(ctx, inputs, say):
        raise CheckFailedError("no")

    assert not _run([replace(_stage("probe/one"), make=fails)], workspace)[0].success
    (one,) = ledger.find()
    assert one.ended is not None

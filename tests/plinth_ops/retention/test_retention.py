"""Needed objects are never deleted, all others are; with concurrent writers, killed anywhere, under forged names."""

from __future__ import annotations

import base64
import hashlib
import json
import multiprocessing
import os
import random
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError, RequestError, StorageError
from plinth.records import Manifest, Part
from plinth.storage import atomic
from plinth.storage.dvc import directory_object
from plinth.trust.dsse import COMPLIANCE
from plinth_ops.retention import deletion, roots
from plinth_ops.retention.deletion import Deleted, Survey, by_age, by_reason, survey
from plinth_ops.retention.roots import SEARCHED, YOUNG
from plinth_registry.audit_log import MARKS
from tests.plinth_ops.retention.graphs import DAY, NOW, Graph, Node, age, build, content, md5, save, stored


def look(ctx: Context, now: float = NOW) -> Survey:
    made = survey(ctx, now)
    deletion.note(ctx, made)
    return made


def collect(ctx: Context, now: float = NOW) -> Deleted:
    """Two looks with a pause between them, then the deletion."""
    look(ctx, now - 2 * DAY)
    made = survey(ctx, now)
    return deletion.delete(ctx, made, deletion.due(made, deletion.note(ctx, made)))


def places(found: list[Any]) -> set[str]:
    return {one.place for one in found}


def publish(graph: Graph, number: int) -> None:
    graph.ctx.refs.publish(graph.made[number], "k" * 64)
    age(graph.ctx.workspace.manifests)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Node], dict[int, str], list[int]]:
    """Nodes, some of them roots in one of five ways, and blobs of no node."""
    nodes: list[Node] = []
    for number in range(draw(st.integers(0, 9))):
        inputs = draw(st.frozensets(st.integers(0, number - 1), max_size=3)) if number else frozenset[int]()
        nodes.append(Node(inputs, draw(st.frozensets(st.integers(0, 12), max_size=4))))
    kinds = st.sampled_from(["", "", "published", "run", "pin", "signed record", "candidate"])
    return nodes, {n: kind for n in range(len(nodes)) if (kind := draw(kinds))}, draw(st.lists(st.integers(20, 24)))


def make_root(graph: Graph, number: int, kind: str) -> None:
    ctx, digest = graph.ctx, graph.made[number].digest
    if kind == "published":
        publish(graph, number)
    elif kind == "pin":
        roots.put(ctx, graph.made[number], "ada", "an audit", "2030-01-01T00:00:00+00:00")
    else:
        folder = {"run": "runs/r1", "candidate": "models/m1", "signed record": "attestations"}[kind]
        path = ctx.workspace.root / folder / f"{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        payload = base64.b64encode(json.dumps({"subject": [{"digest": {"sha256": digest}}]}).encode()).decode()
        signed = kind == "signed record"
        path.write_text(json.dumps({"payload": payload} if signed else {"mixture": digest}))


@settings(max_examples=25)
@given(graphs())
def test_what_a_root_needs_stays_and_all_else_goes(drawn: tuple[list[Node], dict[int, str], list[int]]) -> None:
    nodes, kinds, spare = drawn
    with tempfile.TemporaryDirectory() as folder:
        graph = build(Path(folder) / "w", nodes, spare)
        for number, kind in kinds.items():
            make_root(graph, number, kind)
        needed = graph.needed(kinds)
        collect(graph.ctx)
        assert set(graph.ctx.refs.digests()) == {graph.made[number].digest for number in needed}
        assert stored(graph.ctx) == graph.blobs(needed)
        assert collect(graph.ctx, NOW + DAY).gone == []


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """0 ← 1 ← 2 published; 3 was derived from 0, 4 from 3; blob 20 is unreferenced."""
    nodes = [((), (0,)), ((0,), (1,)), ((1,), (2,)), ((0,), (3, 1)), ((3,), (4,))]
    made = build(tmp_path / "w", [Node(frozenset(one), frozenset(blobs)) for one, blobs in nodes], [20])
    publish(made, 2)
    return made


def test_one_look_deletes_nothing_and_says_what_two_would(graph: Graph) -> None:
    made = look(graph.ctx)
    found = deletion.delete(graph.ctx, made, deletion.due(made, deletion.read(graph.ctx)))
    assert found.gone == []
    wanted = [f"manifest/{graph.made[4].digest}", f"manifest/{graph.made[3].digest}"]
    assert [one.place for one in made.unneeded[:2]] == wanted  # consumers first
    assert places(list(made.unneeded[2:])) == {f"blob/{md5(blob)}" for blob in (3, 4, 20)}
    assert places(collect(graph.ctx, NOW + 3 * DAY).gone) == places(list(made.unneeded))


def test_what_came_to_be_needed_between_two_looks_stays(graph: Graph) -> None:
    look(graph.ctx, NOW - 2 * DAY)
    publish(graph, 4)
    collect(graph.ctx)
    assert len(graph.ctx.refs.digests()) == 5
    graph.ctx.refs.publish(save(graph.ctx, 4, {}, ()), "k" * 64)
    age(graph.ctx.workspace.manifests)
    made = look(graph.ctx)
    assert len(made.unneeded) == 4
    since = deletion.read(graph.ctx)
    assert since[f"manifest/{graph.made[4].digest}"] == NOW  # its pause begins when the reference left it


def test_what_is_young_stays_with_what_it_names(graph: Graph) -> None:
    graph.ctx.cache.put("ab" * 32, [Part(name="p", blob=graph.ctx.store.put_bytes(content(20)))])
    os.utime(graph.ctx.workspace.manifests / f"{graph.made[4].digest}.json", (NOW - DAY, NOW - DAY))
    os.utime(graph.ctx.workspace.records / "ab" / f"{'ab' * 32}.json", (NOW - DAY, NOW - DAY))
    age(graph.ctx.store.root)
    made = look(graph.ctx)
    assert made.unneeded == ()
    assert {one.place: why for one, why in made.kept}[f"blob/{md5(20)}"] == YOUNG


def test_records_of_the_step_cache_stay_while_all_that_they_name_does(graph: Graph) -> None:
    for key, blobs in (("a" * 64, (1, 2)), ("b" * 64, (1, 3)), ("c" * 64, ())):
        parts = [Part(name=f"p{blob}", blob=graph.ctx.store.put_bytes(content(blob))) for blob in blobs]
        graph.ctx.cache.put(key, parts)
    age(graph.ctx.workspace.root)
    gone = places(collect(graph.ctx).gone)
    assert {one for one in gone if one.startswith("record/")} == {f"record/bb/{'b' * 64}.json"}
    found = graph.ctx.cache.get_many([c * 64 for c in "abc"])
    assert [one is not None for one in found] == [True, False, True]


def test_a_used_record_and_a_rewritten_blob_are_young_again(graph: Graph) -> None:
    ctx = graph.ctx
    ctx.cache.put("ab" * 32, [Part(name="p", blob=ctx.store.put_bytes(content(20)))])
    age(ctx.workspace.root, 1.0)
    assert ctx.cache.get("ab" * 32) is not None
    ctx.store.put_bytes(content(3))
    ctx.refs.save(graph.made[4])
    young = [path for path in ctx.workspace.root.rglob("*") if path.is_file() and path.stat().st_mtime > 1e9]
    names = {path.name for path in young if path.name != "lock"}
    assert names == {f"{'ab' * 32}.json", md5(3)[2:], f"{graph.made[4].digest}.json"}
    assert ctx.store.read_bytes(ctx.store.put_bytes(content(3))) == content(3)


def test_a_writer_beside_the_deletion_loses_nothing(graph: Graph) -> None:
    """At each deletion a writer reuses the object that is about to be deleted: it stays, with everything it is derived
    from."""
    for stop in range(5):
        ctx = graph.ctx
        look(ctx, NOW - 2 * DAY)
        made, count = survey(ctx, NOW), Counter[str]()

        def write(_: object, ctx: Context = ctx, count: Counter[str] = count, stop: int = stop) -> None:
            if count["deletions"] == stop:
                for number, node in enumerate(graph.nodes):
                    save(ctx, number, {str(one): graph.made[one].digest for one in node.inputs}, node.blobs)
            count["deletions"] += 1

        deletion.delete(ctx, made, places(list(made.unneeded)), write)
        assert count["deletions"] > stop
        for manifest in graph.made:
            assert ctx.store.has_all(part.blob for part in ctx.refs.load(manifest.digest).parts)
        ctx.store.put_bytes(content(20))
        age(ctx.workspace.manifests)
        age(ctx.workspace.store)


def test_what_came_since_the_look_keeps_what_it_names(graph: Graph) -> None:
    look(graph.ctx, NOW - 2 * DAY)
    made = survey(graph.ctx, NOW)
    old = graph.made[3].parts[-1]
    late = Manifest(asset="late", step="s", version="1", params={}, inputs={}, parts=(old,))
    graph.ctx.refs.save(late)  # a part passed on: neither written nor taken from the step cache
    deletion.delete(graph.ctx, made, places(list(made.unneeded)))
    assert graph.ctx.store.has(old.blob)


def _killed(folder: str, after: int) -> None:
    from plinth.storage.workspace import Workspace

    ctx, count = Context(Workspace(folder)), Counter[str]()

    def stop(_: object) -> None:
        count["deletions"] += 1
        if count["deletions"] == after:
            os.kill(os.getpid(), signal.SIGKILL)

    made = survey(ctx, NOW)
    deletion.delete(ctx, made, deletion.due(made, deletion.read(ctx)), stop)


def test_killed_anywhere_it_leaves_a_whole_workspace_and_goes_on(graph: Graph) -> None:
    look(graph.ctx, NOW - 2 * DAY)
    every = len(survey(graph.ctx, NOW).unneeded)
    for _ in range(every):
        child = multiprocessing.get_context("fork").Process(target=_killed, args=(str(graph.ctx.workspace.root), 1))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        for digest in graph.ctx.refs.digests():
            manifest = graph.ctx.refs.load(digest)
            assert graph.ctx.store.has_all(part.blob for part in manifest.parts)
            assert all((graph.ctx.workspace.manifests / f"{one}.json").exists() for one in manifest.inputs.values())
    assert survey(graph.ctx, NOW).unneeded == ()
    assert len(graph.ctx.refs.digests()) == 3


def test_no_forged_name_gets_a_signed_thing_deleted(graph: Graph) -> None:
    """References and pins are replaced, emptied and removed: what a signed log names stays with its ancestry."""
    ctx, marked = graph.ctx, graph.made[4]
    MARKS.append(ctx, {"mark": "unfit"}, {"manifest": marked.digest}, COMPLIANCE)
    roots.put(ctx, graph.made[1], "eve", "mine", "2030-01-01T00:00:00+00:00")
    forged = ctx.workspace.refs / f"{marked.asset}.json"
    forged.parent.mkdir(parents=True, exist_ok=True)
    forged.write_text(json.dumps({"asset": marked.asset, "digest": "0" * 64, "key": "k"}))
    (ctx.workspace.root / "retention").mkdir(exist_ok=True)
    known = {f"manifest/{one.digest}": 0.0 for one in graph.made} | {f"blob/{md5(blob)}": 0.0 for blob in range(5)}
    (ctx.workspace.root / "retention" / "unneeded.json").write_text(json.dumps({"since": known, "seal": None}))
    assert deletion.read(ctx) == {}  # no worker sealed it
    for path in ctx.workspace.refs.rglob("*.json"):
        path.unlink()
    collect(ctx)
    assert {graph.made[n].digest for n in (0, 1, 3, 4)} == set(ctx.refs.digests())
    assert stored(ctx) == graph.blobs((0, 1, 3, 4))


def test_a_broken_pin_or_hold_keeps_what_it_names_or_stops(graph: Graph) -> None:
    (graph.ctx.workspace.root / roots.FOLDER).mkdir()
    (graph.ctx.workspace.root / roots.FOLDER / "x.json").write_text(f"no pin of {graph.made[4].digest}")
    assert roots.every(graph.ctx) == []
    assert places(list(look(graph.ctx).unneeded)) == {f"blob/{md5(20)}"}
    (graph.ctx.workspace.refs / "torn.json").write_text("{")
    with pytest.raises(IntegrityError, match="is not a reference"):
        survey(graph.ctx, NOW)


@pytest.mark.parametrize("lost", [2, 4])
def test_a_lost_manifest_of_a_published_asset_stops_the_look(graph: Graph, lost: int) -> None:
    """Else what only it names would be deleted, and be gone when it is restored."""
    publish(graph, 4)
    (graph.ctx.workspace.manifests / f"{graph.made[lost].digest}.json").unlink()
    with pytest.raises(MissingError, match=f"no manifest {graph.made[lost].digest}"):
        collect(graph.ctx)
    assert deletion.read(graph.ctx) == {}
    graph.ctx.refs.save(graph.made[lost])
    collect(graph.ctx)
    assert graph.blobs(range(5)) <= stored(graph.ctx)


def test_what_cannot_be_read_stops_the_look(graph: Graph) -> None:
    (graph.ctx.workspace.manifests / f"{graph.made[1].digest}.json").write_text("{}")
    with pytest.raises(IntegrityError, match="has changed"):
        survey(graph.ctx, NOW)
    graph.ctx.refs.save(graph.made[1])
    (graph.ctx.workspace.attestations / "a.json").mkdir(parents=True)
    (graph.ctx.workspace.attestations / "a.json" / "loop").symlink_to("loop")
    with pytest.raises(StorageError, match=r"cannot read .*loop"):
        survey(graph.ctx, NOW)
    with pytest.raises(RequestError, match="too low"):
        survey(graph.ctx, NOW, 1)


def test_a_pipe_among_the_records_holds_nothing_up(graph: Graph) -> None:
    os.mkfifo(graph.ctx.workspace.attestations / "pipe.json")
    assert len(look(graph.ctx).unneeded) == 5


def test_a_report_on_a_removal_keeps_what_it_proves_and_not_what_is_to_go(graph: Graph) -> None:
    proved, gone = graph.made[3].digest, graph.made[4].digest
    statement = {"subject": [{"digest": {"sha256": proved}}], "predicate": {"remaining": [gone]}}
    folder = graph.ctx.workspace.root / "takedown" / "1"
    folder.mkdir(parents=True)
    sealed = base64.b64encode(json.dumps(statement).encode()).decode()
    (folder / "report.json").write_text(json.dumps({"payload": sealed, "signatures": []}))
    (folder / "report.md").write_text(f"earlier snapshot {gone}")
    collect(graph.ctx)
    assert {graph.made[n].digest for n in range(4)} == set(graph.ctx.refs.digests())


def test_a_run_is_kept_while_its_folder_is_there(graph: Graph) -> None:
    ctx = graph.ctx
    inputs = {"mixture": graph.made[4].digest}
    run = Manifest(asset="run", step="t", version="1", params={}, inputs=inputs, parts=(), stats={"run_id": "r-1"})
    ctx.refs.save(run)
    age(ctx.workspace.manifests)
    (ctx.workspace.runs / "r-1").mkdir()
    assert {one.place: why for one, why in look(ctx).kept}[f"manifest/{run.digest}"] == roots.RUN
    (ctx.workspace.runs / "r-1").rmdir()
    assert f"manifest/{run.digest}" in places(list(look(ctx).unneeded))


def test_ledgers_over_text_that_is_kept_stay(graph: Graph) -> None:
    ctx = graph.ctx

    def made(asset: str, *inputs: Manifest) -> Manifest:
        given = {str(n): one.digest for n, one in enumerate(inputs)}
        found = Manifest(asset=asset, step="s", version="1", params={}, inputs=given, parts=())
        ctx.refs.save(found)
        return found

    kept = made("ledger", graph.made[1], graph.made[2])
    index = made("takedown/index", kept)
    other = made("ledger", graph.made[1], graph.made[4])
    age(ctx.workspace.manifests)
    why = {one.name: reason for one, reason in look(ctx).kept}
    assert (why[kept.digest], why[index.digest]) == (SEARCHED, SEARCHED)
    assert other.digest not in why


def test_directories_of_dvc_stay_with_their_manifest(graph: Graph) -> None:
    kept, gone = (directory_object(graph.ctx, graph.made[number]) for number in (2, 4))
    own = {number: hashlib.md5(json_of(graph.ctx, graph.made[number])).hexdigest() for number in (2, 4)}
    age(graph.ctx.workspace.root)
    collect(graph.ctx)
    assert kept in stored(graph.ctx)
    assert own[2] in stored(graph.ctx)
    assert not {gone, own[4]} & stored(graph.ctx)


def json_of(ctx: Context, manifest: Manifest) -> bytes:
    return (ctx.workspace.manifests / f"{manifest.digest}.json").read_bytes()


def test_a_blob_that_a_record_names_by_sha256_stays(graph: Graph) -> None:
    blob = graph.made[4].parts[0].blob
    (graph.ctx.workspace.attestations / "a.json").write_text(json.dumps({"file": blob.sha256}))
    collect(graph.ctx)
    assert graph.ctx.store.has(blob)
    assert graph.made[4].digest not in graph.ctx.refs.digests()


def test_pins_are_listed_and_lifted(graph: Graph) -> None:
    with pytest.raises(RequestError, match="needs a reason"):
        roots.put(graph.ctx, graph.made[4], "ada", " ", "2030-01-01T00:00:00+00:00")
    for reason in ("first", "second"):
        made = roots.put(graph.ctx, graph.made[4], "ada", reason, "2030-01-01T00:00:00+00:00")
    assert roots.every(graph.ctx) == [made]
    assert made.reason == "first"
    with pytest.raises(MissingError, match="0 pins have the prefix zz"):
        roots.lift(graph.ctx, "zz")
    assert roots.lift(graph.ctx, made.digest[:6]) == made
    assert roots.every(graph.ctx) == []


def test_storage_is_priced_by_age_and_reason(graph: Graph) -> None:
    os.utime(graph.ctx.store.path(md5(2)), (NOW - DAY, NOW - DAY))
    made = look(graph.ctx)
    ages, reasons = by_age(made, 1e9), by_reason(made, 1e9)
    assert [row.name for row in ages] == ["under 7 days", "90 days to a year"]
    assert ages[0].bytes == len(content(2)) == ages[0].month
    every = sum(row.bytes for row in ages)
    assert (
        every
        == sum(row.bytes for row in reasons)
        == sum(one.bytes for one, _ in made.kept) + sum(one.bytes for one in made.unneeded)
    )
    spare = sum(row.unneeded_bytes for row in ages)
    assert spare == sum(one.bytes for one in made.unneeded) == sum(row.unneeded_month for row in reasons)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", set()),
        (b"a" * 64, {"a" * 64}),
        (b"a" * 65, set()),
        (b'"' + b"b" * 32 + b'"', {"b" * 32}),
        (b"sha256:" + b"0" * 64 + b" x", {"0" * 64}),
        (b"A" * 64, set()),
    ],
)
def test_digests_are_found_in_any_text(text: bytes, found: set[str]) -> None:
    assert roots.digests(text) == found


@given(st.integers(0, 3), st.integers(0, 40))
def test_digests_are_found_in_payloads_in_payloads(depth: int, padding: int) -> None:
    data = b"x" * padding + b" " + b"c" * 64
    for _ in range(depth):
        data = json.dumps({"payload": base64.b64encode(data).decode(), "signatures": []}).encode()
    assert roots.digests(data) == {"c" * 64}


def test_digests_across_chunks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "CHUNK_BYTES", 200)
    names = [hashlib.sha256(bytes([n])).hexdigest() for n in range(40)]
    (tmp_path / "events.jsonl").write_text("".join(f'{{"digest":"{name}"}}\n' for name in names))
    assert roots.of_file(tmp_path / "events.jsonl") == set(names)


@pytest.mark.parametrize("size", [20, 40])
def test_each_manifest_and_record_is_read_once(tmp_path: Path, size: int, counted: Counter[str]) -> None:
    drawn = random.Random(size)
    nodes = [Node(frozenset(drawn.sample(range(n), min(n, 3))), frozenset([n, n // 2])) for n in range(size)]
    graph = build(tmp_path / "w", nodes)
    for number in range(size):
        graph.ctx.cache.put(f"{number:064x}", [graph.made[number].parts[0]])
    publish(graph, size // 2)
    counted.clear()
    survey(graph.ctx, NOW)
    assert counted["manifests"] == size
    assert counted["records"] == size
    assert counted["store"] == 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Reads of JSON files, by folder of the workspace."""
    counts, read, opened = Counter[str](), Path.read_bytes, atomic.opened

    def note(path: Path) -> None:
        if path.suffix == ".json":
            counts[next((part for part in ("manifests", "records", "store") if part in path.parts), "other")] += 1

    def read_bytes(self: Path) -> bytes:
        note(self)
        return read(self)

    def open_(path: Path) -> Any:
        note(path)
        return opened(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    monkeypatch.setattr(atomic, "opened", open_)
    return counts

"""Retention of a shared workspace: two machines, a bucket, and records that only one of them has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.records import Manifest
from plinth.storage import objects
from plinth.storage.workspace import Workspace, folder_of
from plinth_ops.retention import deletion, roots
from plinth_ops.retention.deletion import survey
from tests.plinth_ops.retention.graphs import DAY, content, md5, save, stored
from tests.s3_server import Bucket, serving

#: The server's clock cannot be set: looks are taken this much later.
LATER = 100 * DAY


@pytest.fixture
def bucket(own_trust: Path) -> Iterator[Bucket]:
    with serving() as made:
        yield made


@pytest.fixture
def machine(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine by its name, with a folder of its own."""

    def of(name: str) -> Context:
        monkeypatch.setenv("PLINTH_CACHE", str(tmp_path / name))
        return Context(Workspace(folder_of(bucket.uri("corpus"))).ensure())

    return of


def now(bucket: Bucket) -> float:
    bucket.put("clock", b"")
    found: float = bucket.client.head_object(Bucket=bucket.name, Key="clock")["LastModified"].timestamp()
    return found


@pytest.mark.slow
def test_nothing_goes_that_another_machine_names(bucket: Bucket, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = machine("one"), machine("two")
    made = [save(first, 0, {}, (0,))]
    made += [save(first, number, {"0": made[0].digest}, (number,)) for number in (1, 2, 3, 4)]
    first.refs.publish(made[1], "k" * 64)
    (second.workspace.runs / "r").mkdir(parents=True)
    (second.workspace.runs / "r" / "config.json").write_text(json.dumps({"mixture": made[2].digest}))
    roots.put(second, made[3], "ada", "an audit", "2030-01-01T00:00:00+00:00")
    run = Manifest(asset="run", step="t", version="1", params={}, inputs={}, parts=(), stats={"run_id": "gone"})
    first.refs.save(run)
    roots.hold(second)
    start = now(bucket)
    for at in (start + LATER, start + LATER + 2 * DAY):
        looked = survey(first, at)
        since = deletion.note(first, looked)
    found = deletion.delete(first, looked, deletion.due(looked, since))
    assert {one.place for one in found.gone} == {f"manifest/{made[4].digest}", f"blob/{md5(4)}"}
    assert set(second.refs.digests()) == {one.digest for one in (*made[:4], run)}
    assert stored(second) == {md5(blob) for blob in range(4)}
    assert not (first.workspace.manifests / f"{made[4].digest}.json").exists()

    requests = Counter[str]()
    ask = objects.S3Objects._ask

    def counting(self: Any, doing: str, *given: Any) -> Any:
        requests[doing] += 1
        return ask(self, doing, *given)

    monkeypatch.setattr(objects.S3Objects, "_ask", counting)
    survey(machine("three"), start + LATER)
    assert requests["read"] == len(made[:4]) + 1 + 3 + 1  # manifests, run; reference twice with pin; hold
    assert requests["look up"] == requests["write"] == requests["remove"] == 0


@pytest.mark.slow
def test_what_is_counted_on_is_young_again_in_a_bucket(
    bucket: Bucket, machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = machine("one")
    made = save(ctx, 0, {}, (0,))
    ctx.cache.put("ab" * 32, made.parts)
    before = now(bucket)
    fresh = machine("two")
    monkeypatch.setattr(objects, "RENEW_AFTER_S", -10.0)  # whatever was written is old
    monkeypatch.setattr(objects, "is_old", objects.is_old)
    writes = Counter[str]()
    ask = objects.S3Objects._ask

    def counting(self: Any, doing: str, name: str, *given: Any) -> Any:
        writes[f"{self.uri.rpartition('/')[2]}/{name}"] += doing == "write"
        return ask(self, doing, name, *given)

    monkeypatch.setattr(objects.S3Objects, "_ask", counting)
    assert fresh.cache.get("ab" * 32) == made.parts
    assert fresh.store.put_bytes(content(0)) == made.parts[0].blob
    places = {name for name, count in writes.items() if count}
    assert places == {f"records/ab/{'ab' * 32}.json", f"store/files/md5/{md5(0)[:2]}/{md5(0)[2:]}"}
    record = next(one for one in fresh.cache.records.facts())
    assert not fresh.cache.records.remove_old(record.name, before - 60)
    assert fresh.cache.records.remove_old(record.name, before + 60)
    assert fresh.cache.get("ab" * 32) is None

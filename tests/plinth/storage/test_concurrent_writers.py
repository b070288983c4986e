"""Processes write the same reference and the same record: one wins, and all read what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3_server import serving

pytestmark = pytest.mark.slow

WRITERS = 4
KEY = "ab" + "0" * 62

WRITER = """
import json, sys
from plinth.errors import ConflictError
from plinth.records import Manifest, Part
from plinth.storage.state import State; from plinth.storage.workspace import Workspace, folder_of
location, number, key = sys.argv[1:]
state = State(Workspace(folder_of(location)).ensure())
mine = Manifest(asset="web/documents", step="s", version=number, params={}, inputs={}, parts=())
same = mine.model_copy(update={"asset": "web/same", "version": "1"})
blob = state.store.put_bytes(number.encode())
assert state.refs.ref(mine.asset) is None
print("ready", flush=True)
sys.stdin.readline()
try:
    state.refs.publish(mine, key=number)
    outcome = "published"
except ConflictError as error:
    outcome = str(error)
state.refs.publish(same, key="k")  # the same by all: nobody loses
recorded = state.cache.put(key, [Part(name=number, blob=blob)])
print(json.dumps({"outcome": outcome, "recorded": recorded[0].name}), flush=True)
sys.stdin.readline()
ref = state.refs.ref(mine.asset)
made = state.refs.load(ref.digest)
print(json.dumps({"ref": ref.key, "version": made.version, "record": state.cache.get(key)[0].name}))
"""


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.exhaustive)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "workspace")
        return
    with serving() as bucket:
        yield bucket.uri("corpus")


def test_one_of_several_writers_wins_and_all_read_the_same(location: str, tmp_path: Path) -> None:
    def start(number: int) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PLINTH_CACHE": str(tmp_path / f"machine-{number}"),
        }
        command = [sys.executable, "-c", WRITER, location, str(number), KEY]
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    writers = [start(number) for number in range(WRITERS)]
    outs = [writer.stdout for writer in writers if writer.stdout]
    assert [out.readline() for out in outs] == ["ready\n"] * WRITERS
    _go(writers)
    first = [json.loads(out.readline()) for out in outs]
    _go(writers)
    then = [json.loads(out.readline()) for out in outs]
    assert [writer.wait() for writer in writers] == [0] * WRITERS
    (winner,) = [number for number, one in enumerate(first) if one["outcome"] == "published"]
    lost = [one["outcome"] for one in first if one["outcome"] != "published"]
    assert len(lost) == WRITERS - 1
    assert all("another process published web/documents meanwhile" in text for text in lost)
    recorded = {one["recorded"] for one in first}
    assert len(recorded) == 1
    assert then == [{"ref": str(winner), "version": str(winner), "record": recorded.pop()}] * WRITERS


def _go(writers: list[subprocess.Popen[str]]) -> None:
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.flush()

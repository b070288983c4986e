"""Files of the Hugging Face Hub, from a server of one's own: pinned to a commit, which the inventory records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.corpus.sources.inventory import inventory
from plinth.corpus.sources.parameters import Bucket
from plinth.corpus.sources.record import read
from plinth.errors import SourceError
from plinth.storage import listing
from plinth.storage.files import DigestMemory, opened
from tests.hub_server import REPO, Hub, hub_server
from tests.plinth.corpus.sources.conftest import make_source

PLACE = f"hf://datasets/{REPO}"


def rows(*texts: str) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


FILES = {"data/a.jsonl": rows("one", "two"), "data/more/b.jsonl": rows("three"), "README.md": b"# Card"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as (server, address):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        yield server


def test_files_of_a_data_set_are_read_at_one_commit(hub: Hub, tmp_path: Path) -> None:
    commit = hub.push(FILES)
    source = make_source("jsonl", path=PLACE)
    found = inventory(Bucket(description="x", owner="x", sources=(source,)), tmp_path)
    assert [file.name for file in found.of(0)] == ["data/a.jsonl", "data/more/b.jsonl"]
    assert found.revisions == {"0": commit}
    hub.push({**FILES, "data/a.jsonl": rows("changed")})
    texts = [item.content for file in found.of(0) for item in read(file, source, "MIT", 1 << 20)]
    assert texts == ["one", "two", "three"]
    again = inventory(Bucket(description="x", owner="x", sources=(source,)), tmp_path)
    assert again.revisions != found.revisions
    assert again.digest != found.digest


def test_revisions_folders_and_patterns(hub: Hub, tmp_path: Path) -> None:
    old = hub.push(FILES)
    hub.push({"data/c.jsonl": rows("new")})
    hub.branches["v1"] = old
    for revision in (old, "v1"):
        names = [one.name for one in listing.inventory(f"{PLACE}@{revision}/data", tmp_path)]
        assert names == ["a.jsonl", "more/b.jsonl"]
    assert [one.name for one in listing.inventory(f"{PLACE}@v1/data/*.jsonl", tmp_path)] == ["a.jsonl"]
    (file,) = listing.inventory(f"{PLACE}/data/c.jsonl", tmp_path)
    with opened(file) as stream:
        assert stream.read() == rows("new")


def test_what_is_known_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    hub.push(FILES)
    memory = DigestMemory(tmp_path / "memory.sqlite")
    first = listing.inventory(PLACE, tmp_path, memory=memory)
    hub.requests.clear()
    assert listing.inventory(PLACE, tmp_path, memory=memory) == first
    assert not [path for path in hub.requests if "/resolve/" in path]


@pytest.mark.parametrize("place", [f"{PLACE}@nowhere", "hf://datasets/org/other", f"{PLACE}/nothing"])
def test_what_is_not_there_is_named(hub: Hub, tmp_path: Path, place: str) -> None:
    hub.push(FILES)
    with pytest.raises(SourceError, match=r"cannot list|no file matches"):
        listing.inventory(place, tmp_path)

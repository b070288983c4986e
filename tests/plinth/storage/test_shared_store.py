"""A shared workspace: blobs come up and down whole, changed bytes are noticed, and every failure has a name."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from plinth.errors import IntegrityError, MissingError, SignatureError, StorageError, WorkspaceError
from plinth.records import Blob, Part
from plinth.storage import objects
from plinth.storage.shared_store import SharedStore, address
from plinth.storage.state import State
from plinth.storage.workspace import Workspace, folder_of
from plinth.trust.dsse import COMPLIANCE
from plinth.trust.signed_log import SignedLog
from tests.s3_server import Bucket, bad_line, serving

Machine = Callable[[str], State]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with serving() as served:
        yield served


@pytest.fixture
def uri(bucket: Bucket) -> str:
    return bucket.uri(f"{uuid4().hex[:8]}/corpus")


@pytest.fixture
def machine(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Opens the workspace as a machine with a disk of its own does."""
    monkeypatch.setattr(objects, "BACKOFF_S", 0.01)

    def opened(name: str) -> State:
        monkeypatch.setenv("PLINTH_CACHE", str(tmp_path / name))
        return State(Workspace(folder_of(uri)).ensure())

    return opened


def cached(state: State) -> SharedStore:
    assert isinstance(state.store, SharedStore)
    return state.store


def key_of(uri: str, blob: Blob) -> str:
    return f"{uri.removeprefix('s3://').partition('/')[2]}/store/{address(blob)}"


def test_what_one_machine_writes_another_reads_once(machine: Machine, uri: str) -> None:
    one, other = machine("a"), machine("b")
    blob = one.store.put_bytes(b"text" * 1000)
    assert other.store.has_all([blob])
    for _ in range(2):
        assert other.store.open_path(blob).read_bytes() == b"text" * 1000
    assert cached(other).traffic.requests == 1
    assert cached(one).traffic.requests == 0  # its own copy is in its cache
    sent = pickle.loads(pickle.dumps(one.store))  # as an engine sends it: the machine it comes to opens its own cache
    assert sent.root == other.store.root != one.store.root
    assert one.store.put_bytes(b"text" * 1000) == blob


def test_references_records_and_manifests_are_those_of_the_prefix(machine: Machine) -> None:
    one, other = machine("a"), machine("b")
    part = Part(name="part-00000.parquet", blob=one.store.put_bytes(b"x"), rows=1)
    one.cache.put("ab" * 32, [part])
    assert other.cache.get("ab" * 32) == (part,)
    from tests.plinth.storage.test_refs import manifest

    one.refs.publish(manifest(), key="k")
    assert other.refs.current("web/documents") == manifest()
    assert [path.stem for path in other.refs.saved(manifest().digest[:6])] == [manifest().digest]
    assert [ref.asset for ref in other.refs.all()] == ["web/documents"]
    assert Workspace(other.workspace.root).input == f"{one.workspace.uri}/input"


def test_the_cache_keeps_its_bound_and_every_blob_stays_readable(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLINTH_CACHE_BYTES", "10000")
    state = machine("a")
    blobs = [state.store.put_bytes(bytes([number]) * 1500) for number in range(20)]
    assert cached(state).held_bytes() <= 10000
    for number, blob in enumerate(blobs):
        with state.store.for_task() as store:
            assert store.open_path(blob).read_bytes() == bytes([number]) * 1500
        assert cached(state).held_bytes() <= 10000
    with state.store.for_task() as store, pytest.raises(StorageError, match="PLINTH_CACHE_BYTES"):
        list(map(store.open_path, blobs))  # in use by one task, all at once
    large = state.store.put_bytes(b"l" * 20000)  # larger than the cache: it is in the bucket all the same
    assert state.store.has(large)
    monkeypatch.setenv("PLINTH_CACHE_BYTES", "many")
    with pytest.raises(WorkspaceError, match="PLINTH_CACHE_BYTES is not a number"):
        machine("b")


def test_a_changed_byte_is_found_by_the_first_reader_of_a_machine(machine: Machine, bucket: Bucket, uri: str) -> None:
    state, other = machine("a"), machine("b")
    blob = state.store.put_bytes(b"as it was written")
    bucket.put(key_of(uri, blob), b"as it was Written")
    with pytest.raises(IntegrityError, match="wrong bytes") as changed:
        other.store.open_path(blob)
    assert "delete that object" in str(changed.value)
    assert cached(other).held_bytes() == 0
    bucket.client.delete_object(Bucket=bucket.name, Key=key_of(uri, blob))
    again = machine("c")
    assert not again.store.has(blob)
    again.store.put_bytes(b"as it was written")
    assert other.store.read_bytes(blob) == b"as it was written"


def test_a_blob_that_is_gone_is_named_and_its_record_no_longer_counts(
    machine: Machine, bucket: Bucket, uri: str
) -> None:
    state = machine("a")
    part = Part(name="p", blob=state.store.put_bytes(b"data"))
    state.cache.put("ab" * 32, [part])
    bucket.client.delete_object(Bucket=bucket.name, Key=key_of(uri, part.blob))
    other = machine("b")
    assert other.cache.get("ab" * 32) is None
    with pytest.raises(MissingError, match=r"s3://.* does not exist"):
        other.store.open_path(part.blob)


def test_lost_connections_are_tried_again_a_bounded_number_of_times(machine: Machine, bucket: Bucket) -> None:
    blob = machine("a").store.put_bytes(os.urandom(50_000))
    other = machine("b")
    with bad_line(bucket.endpoint, after_bytes=20_000, failures=3) as line:
        assert other.store.open_path(blob).stat().st_size == 50_000
        assert line.cuts == 3
    third = machine("c")
    with bad_line(bucket.endpoint, after_bytes=0, failures=10**6), pytest.raises(StorageError, match="within 6 attem"):
        third.store.open_path(blob)
    assert cached(third).held_bytes() == 0


def test_no_credentials_and_no_bucket_are_named_at_once(
    machine: Machine, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = machine("a")
    nowhere = State(Workspace(folder_of("s3://no-such-bucket/corpus")))
    with pytest.raises(WorkspaceError, match="create the bucket first"):
        nowhere.store.put_bytes(b"x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(WorkspaceError, match=r"(?s)cannot look up s3://.*AWS_ACCESS_KEY_ID"):
        state.store.put_bytes(b"x")


class Stalled:
    """A proxy to a server that passes the given number of bytes on and then stalls."""

    def __init__(self, endpoint: str, after_bytes: int) -> None:
        host, _, port = endpoint.partition(":")
        self.reached, self._after, self._server = threading.Event(), after_bytes, (host, int(port))
        self._listener, self._open = socket.create_server(("127.0.0.1", 0)), list[socket.socket]()
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                self._open += [near, far]
                threading.Thread(target=self._pass, args=(near, far, self._after), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, 1 << 60), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, left: int) -> None:
        with suppress(OSError):
            while left > 0 and (data := source.recv(1 << 16)):
                sink.sendall(data[:left])
                left -= len(data)
            if left <= 0:
                self.reached.set()

    def close(self) -> None:
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            one.close()


UPLOAD = """
import sys
from plinth.storage.state import State; from plinth.storage.workspace import Workspace, folder_of
print(State(Workspace(folder_of(sys.argv[1])).ensure()).store.put_bytes(bytes(range(256)) * 40_000), flush=True)
"""


def test_an_upload_that_is_killed_leaves_nothing_and_is_repeated(
    machine: Machine, bucket: Bucket, uri: str, tmp_path: Path
) -> None:
    line = Stalled(bucket.endpoint, after_bytes=4_000_000)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{line.port}",
        "PLINTH_CACHE": str(tmp_path / "killed"),
    }
    child = subprocess.Popen([sys.executable, "-c", UPLOAD, uri], env=environment)
    assert line.reached.wait(300)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    line.close()
    data = bytes(range(256)) * 40_000
    state = machine("a")
    prefix = uri.removeprefix(f"s3://{bucket.name}/")
    assert not bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=prefix).get("Contents")
    blob = state.store.put_bytes(data)
    assert machine("b").store.read_bytes(blob) == data


def test_no_workspace_lies_at_other_addresses() -> None:
    for location in ("gs://bucket/x", "s3://", "s3://bucket//x", "https://host/x"):
        with pytest.raises(WorkspaceError, match="a workspace cannot be at"):
            folder_of(location)
    assert folder_of("some/folder") == Path("some/folder")


# ---- signed logs ---------------------------------------------------------------------------------


def test_machines_add_to_one_log_in_the_bucket_and_miss_what_is_gone(
    machine: Machine, uri: str, bucket: Bucket, own_trust: Path
) -> None:
    log = SignedLog("exclusions", (COMPLIANCE,), flat=True, shared=True)
    for number, name in enumerate("abab", start=1):
        about = {"entry": "0" * 64}
        assert log.append(machine(name), {"by": name}, about, COMPLIANCE).number == number
    assert [record.body["by"] for record in log.records(machine("c"), whole=True)] == ["a", "b", "a", "b"]
    bucket.remove(f"{uri.removeprefix('s3://').partition('/')[2]}/exclusions/00004.json")
    for read in (log.records, log.newest):
        with pytest.raises(SignatureError, match="newest records of exclusions/ are missing"):
            read(machine("a"))

"""What must be kept for its own sake: every digest that a record, a model, a run, a pin or a reference names.

A digest is anything that looks like one, also inside the payload of a signed envelope. All folders of a workspace are
read except those listed here, so that a kind of record that comes later protects what it names. In a shared workspace
each machine has records of its own; every survey leaves their digests in the bucket (`holds`), and manifests of trained
models are kept there whoever trained them.

Does not belong here: what the roots are made of (reachable).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import stat
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from plinth.errors import StorageError
from plinth.storage.atomic import write_bytes
from plinth.storage.objects import S3Objects, at_once, files_below
from plinth.storage.state import State
from plinth_ops.retention import pins

#: SHA-256, which manifests are called by, or MD5, which blobs are.
_DIGEST: Final = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{32})(?![0-9a-f])")
_PAYLOAD: Final = re.compile(rb'"payload"\s*:\s*"([A-Za-z0-9+/_\\-]{16,}={0,2})"')
_BLOB: Final = re.compile(rb'"md5":"([0-9a-f]{32})","sha256":"([0-9a-f]{64})"')

MD5_LENGTH: Final = 32
CHUNK_BYTES: Final = 16 * 2**20
#: Longer than any digest: what a chunk repeats of the one before it.
_OVERLAP: Final = 128


def digests(data: bytes) -> set[str]:
    """Every digest in a text and in the payloads of envelopes in it."""
    found = {one.decode() for one in _DIGEST.findall(data)}
    for payload in payloads(data):
        found |= digests(payload)
    return found


def payloads(data: bytes) -> Iterator[bytes]:
    """The signed texts of the DSSE envelopes in a text, whoever signed them."""
    for encoded in _PAYLOAD.findall(data):
        plain = encoded.replace(b"\\/", b"/").translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
        try:
            yield base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
        except binascii.Error:
            continue


def subjects(data: bytes) -> set[str]:
    """The digests of what the statements in a text are about; all of them where it holds no statement."""
    found, statements = set[str](), 0
    for payload in payloads(data):
        try:
            about = json.loads(payload)["subject"]
        except (ValueError, KeyError, TypeError):
            continue
        statements += 1
        found |= digests(json.dumps(about).encode())
    return found if statements else digests(data)


def of_file(path: Path, find: Callable[[bytes], set[str]] = digests) -> set[str]:
    """Every digest in a file; one that has vanished, or is no file, names none.

    Args:
        find: `digests` or `subjects`.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return set()
            data = stream.read(CHUNK_BYTES)
            return find(data) | _further(stream, data)
    except FileNotFoundError:
        return set()


def blobs(data: bytes) -> dict[str, str]:
    """The blobs that a manifest or record names: MD5 to SHA-256."""
    return {md5.decode(): sha256.decode() for md5, sha256 in _BLOB.findall(data)}


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its writer


def _further(stream: IO[bytes], before: bytes) -> set[str]:
    """Of what follows the first chunk, such as a timeline's: no envelope is as long."""
    found = set[str]()
    while data := stream.read(CHUNK_BYTES):
        found |= {one.decode() for one in _DIGEST.findall(before[-_OVERLAP:] + data)}
        before = data
    return found


#: Why something is kept; what is needed for several reasons counts under the first.
RECORD, CANDIDATE, RUN, PIN, PUBLISHED = "signed record", "candidate", "run", "pin", "published"
NAMED: Final = (RECORD, CANDIDATE, RUN, PIN, PUBLISHED)
#: Under this name, manifests of published assets: unlike other digests, none of them may be missing.
MANIFESTS: Final = "manifest"

#: Folders that need nothing: content itself, what is made again, databases, notes that list all that ever was.
_NO_ROOTS: Final = frozenset(
    (
        *("store", "records", "manifests", "input", "dagster", "mlflow", "reports", "impact", "costs", "tmp"),
        *("launch", "budget", "gx", "retention", "refs", pins.FOLDER),
    )
)
_REASONS: Final = {"models": CANDIDATE, "runs": RUN, "experiments": PUBLISHED}
#: Reports on removals name, beside what they prove, snapshots that are to go.
_REMOVALS: Final = "takedown"
#: Of runs and models only texts are read; their weights name nothing.
_WEIGHTY: Final = frozenset(("runs", "models"))
_TEXTS: Final = frozenset((".json", ".jsonl", ".yaml", ".yml", ".sig", ".txt", ".md"))
_IN_BUCKET: Final = ("exclusions", "experiments")
HOLDS: Final = "retention/holds"


def named(state: State) -> dict[str, set[str]]:
    """The digests that must be kept, by reason.

    Raises:
        StorageError: something cannot be read, so that what it names is not known.
    """
    found = defaultdict[str, set[str]](set, own(state))
    found[MANIFESTS] = {one.digest for one in state.refs.all()}
    for folder, reason in (("refs", PUBLISHED), (pins.FOLDER, PIN)):
        objects = state.workspace.objects(folder)
        for version in at_once(objects, objects.get, list(objects.names())):
            found[reason] |= digests(version.data) if version else set()
    if uri := state.workspace.uri:
        for folder in _IN_BUCKET:
            objects = S3Objects(f"{uri}/{folder}")
            for version in at_once(objects, objects.get, list(objects.names())):
                found[_REASONS.get(folder, RECORD)] |= digests(version.data) if version else set()
        for reason, held in _held(state):
            found[reason] |= held
    return found


def own(state: State) -> dict[str, set[str]]:
    """What the files of this machine's folder name, by reason.

    Raises:
        StorageError: one cannot be read.
    """
    root, found = state.workspace.root, defaultdict[str, set[str]](set)
    for path, top in _files(root):
        try:
            found[_REASONS.get(top, RECORD)] |= of_file(
                path, subjects if top == _REMOVALS else digests
            )
        except OSError as error:
            raise StorageError(
                f"cannot read {path}",
                found=error,
                expected="every record, so that nothing is deleted that one of them names",
                remedy="make it readable for whoever deletes, then run the same command again",
            ) from error
    return found


def hold(state: State) -> None:
    """Leave in the bucket of a shared workspace what this machine's own records name; nothing where it is a folder."""
    if not state.workspace.uri:
        return
    content = {reason: sorted(digests) for reason, digests in own(state).items()}
    objects, name = S3Objects(f"{state.workspace.uri}/{HOLDS}"), f"{_machine(state.workspace.root)}.json"
    data = json.dumps(content, sort_keys=True).encode()
    before = objects.get(name)
    objects.put(name, data, before.tag if before else None)


def _held(state: State) -> Iterator[tuple[str, set[str]]]:
    objects = S3Objects(f"{state.workspace.uri}/{HOLDS}")
    for name in objects.names():
        version = objects.get(name)
        try:
            content: Mapping[str, list[str]] = json.loads(version.data) if version else {}
            yield from ((reason if reason in NAMED else RECORD, set(map(str, own))) for reason, own in content.items())
        except (ValueError, AttributeError, TypeError) as error:
            raise StorageError(
                f"{objects.where(name)} is not what a machine's records name",
                found=error,
                remedy="`plinth ops gc` on that machine writes it again; delete it where the machine is no more",
            ) from error


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    """Files that may name something, each with the folder of the workspace it lies in."""
    for folder in sorted(path for path in root.glob("*") if path.is_dir() and path.name not in _NO_ROOTS):
        for name, _ in files_below(folder):
            if folder.name == _REMOVALS and not name.endswith(".json"):
                continue
            if folder.name not in _WEIGHTY or Path(name).suffix in _TEXTS:
                yield folder / name, folder.name


def _machine(root: Path) -> str:
    """This machine's name among those that share a workspace."""
    path = root / "retention" / "machine"
    if not path.exists():
        write_bytes(path, uuid.uuid4().hex[:16].encode())
    return path.read_text()

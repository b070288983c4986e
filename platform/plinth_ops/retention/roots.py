"""Retention roots (digests in records, models, runs, pins and references), and the manifests and blobs reachable from
them. Pins keep manifests that nothing else references.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import stat
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from plinth import fingerprint
from plinth.compute.progress import Progress, metered
from plinth.errors import IntegrityError, MissingError, RequestError, StorageError
from plinth.provenance.document_rows import SEARCHED_ASSETS
from plinth.records import Frozen, Manifest
from plinth.storage.atomic import write_bytes
from plinth.storage.objects import S3Objects, at_once, files_below
from plinth.storage.state import State

# Pins: manifests to keep, with their ancestry. Anyone who can write the workspace can set or remove a pin.

#: Folder in a workspace or in the prefix of a shared one.
FOLDER = "pins"


class Pin(Frozen):
    """Pin of a manifest. `at` is the time of the pin in UTC (ISO 8601)."""

    digest: str
    asset: str
    by: str
    reason: str
    at: str


def put(state: State, manifest: Manifest, by: str, reason: str, at: str) -> Pin:
    """Pin a manifest; an existing pin is not changed.

    Raises:
        RequestError: the reason is empty.
    """
    if not reason.strip():
        raise RequestError("a pin needs a reason", expected="the purpose of the pin and its end date")
    pin = Pin(digest=manifest.digest, asset=manifest.asset, by=by, reason=reason, at=at)
    state.workspace.objects(FOLDER).put(_name(pin.digest), fingerprint.canonical(pin), None)
    return next(one for one in every(state) if one.digest == manifest.digest)


def lift(state: State, digest: str) -> Pin:
    """Remove the pin with a digest or a digest prefix.

    Raises:
        MissingError: no pin matches, or several pins match.
    """
    found = [one for one in every(state) if one.digest.startswith(digest)]
    if len(found) != 1:
        raise MissingError(f"{len(found)} pins have the prefix {digest}", expected="one", remedy="`plinth ops gc pins`")
    state.workspace.objects(FOLDER).remove_old(_name(found[0].digest), float("inf"))
    return found[0]


def every(state: State) -> list[Pin]:
    """Return all pins by manifest digest. Invalid files are skipped, but the digests in them still keep objects."""
    objects, found = state.workspace.objects(FOLDER), []
    for name in objects.names():
        version = objects.get(name)
        try:
            found += [Pin.model_validate(json.loads(version.data))] if version else []
        except ValueError:
            continue
    return found


def _name(digest: str) -> str:
    return f"{digest}.json"


# Roots: every digest in a record, a model, a run, a pin or a reference.
#
# A digest is any text that looks like one, also in the payload of a signed envelope. All folders of a workspace are
# read except those listed here, so that future kinds of records are covered. In a shared workspace each machine has its
# own records; every survey writes their digests to the bucket (`holds`), and manifests of trained models from all
# machines are kept.

#: Pattern of SHA-256 (manifests) and MD5 (blobs).
_DIGEST: Final = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{32})(?![0-9a-f])")
_PAYLOAD: Final = re.compile(rb'"payload"\s*:\s*"([A-Za-z0-9+/_\\-]{16,}={0,2})"')
_BLOB: Final = re.compile(rb'"md5":"([0-9a-f]{32})","sha256":"([0-9a-f]{64})"')

MD5_LENGTH: Final = 32
CHUNK_BYTES: Final = 16 * 2**20
#: Overlap of two chunks, longer than any digest.
_OVERLAP: Final = 128


def digests(data: bytes) -> set[str]:
    """Return all digests in a text, including digests in the payloads of DSSE envelopes."""
    found = {one.decode() for one in _DIGEST.findall(data)}
    for payload in payloads(data):
        found |= digests(payload)
    return found


def payloads(data: bytes) -> Iterator[bytes]:
    """Yield the payloads of the DSSE envelopes in a text; signatures are not verified."""
    for encoded in _PAYLOAD.findall(data):
        plain = encoded.replace(b"\\/", b"/").translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
        try:
            yield base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
        except binascii.Error:
            continue


def subjects(data: bytes) -> set[str]:
    """Return the subject digests of the statements in a text. If the text has no statement, return all its digests."""
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
    """Return the digests in a file. If the file no longer exists or is not a regular file, the result is empty.

    Args:
        find: `digests` or `subjects`.

    Raises:
        OSError: the file cannot be read.
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
    """Return the blobs that a manifest or record names, as a map from MD5 to SHA-256."""
    return {md5.decode(): sha256.decode() for md5, sha256 in _BLOB.findall(data)}


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # without it, opening a pipe would block


def _further(stream: IO[bytes], before: bytes) -> set[str]:
    """Return the digests after the first chunk of a long file, such as a timeline.

    Envelopes always fit in the first chunk and are not decoded here.
    """
    found = set[str]()
    while data := stream.read(CHUNK_BYTES):
        found |= {one.decode() for one in _DIGEST.findall(before[-_OVERLAP:] + data)}
        before = data
    return found


#: Reasons; an object with several reasons counts under the first.
RECORD, CANDIDATE, RUN, PIN, PUBLISHED = "signed record", "candidate", "run", "pin", "published"
NAMED: Final = (RECORD, CANDIDATE, RUN, PIN, PUBLISHED)
#: Name of the digests of published manifests, none of which may be missing.
MANIFESTS: Final = "manifest"

#: Folders without references: content, rebuildable files, databases, complete lists.
_NO_ROOTS: Final = frozenset(
    (
        *("store", "records", "manifests", "input", "dagster", "mlflow", "reports", "impact", "costs", "tmp"),
        *("launch", "budget", "gx", "retention", "refs", FOLDER),
    )
)
_REASONS: Final = {"models": CANDIDATE, "runs": RUN, "experiments": PUBLISHED}
#: Reports of removals, which also name snapshots to delete; only their subjects are references.
_REMOVALS: Final = "takedown"
#: Suffixes of the files of runs and models that are read; weights have no references.
_WEIGHTY: Final = frozenset(("runs", "models"))
_TEXTS: Final = frozenset((".json", ".jsonl", ".yaml", ".yml", ".sig", ".txt", ".md"))
_IN_BUCKET: Final = ("exclusions", "experiments")
HOLDS: Final = "retention/holds"


def named(state: State) -> dict[str, set[str]]:
    """Return the digests in all retention roots, by reason.

    Raises:
        StorageError: a file cannot be read; its references are then unknown.
    """
    found = defaultdict[str, set[str]](set, own(state))
    found[MANIFESTS] = {one.digest for one in state.refs.all()}
    for folder, reason in (("refs", PUBLISHED), (FOLDER, PIN)):
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
    """Return the digests in the files of the workspace's folder on this machine, by reason.

    Raises:
        StorageError: a file cannot be read.
    """
    root, found = state.workspace.root, defaultdict[str, set[str]](set)
    for path, top in _files(root):
        try:
            found[_REASONS.get(top, RECORD)] |= of_file(path, subjects if top == _REMOVALS else digests)
        except OSError as error:
            raise StorageError(
                f"cannot read {path}",
                found=error,
                expected="read access to every record, because a record may reference any object",
                remedy="make the file readable for this user, then run the same command again",
            ) from error
    return found


def hold(state: State) -> None:
    """Write the digests in this machine's records to the bucket of a shared workspace. A local workspace needs no such
    list."""
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
                f"{objects.where(name)} is not a valid list of digests",
                found=error,
                remedy="run `plinth ops gc` on the machine that wrote the list; delete the list if the machine no "
                "longer exists",
            ) from error


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield files that may contain references, each with the name of its top-level folder."""
    for folder in sorted(path for path in root.glob("*") if path.is_dir() and path.name not in _NO_ROOTS):
        for name, _ in files_below(folder):
            if folder.name == _REMOVALS and not name.endswith(".json"):
                continue
            if folder.name not in _WEIGHTY or Path(name).suffix in _TEXTS:
                yield folder / name, folder.name


def _machine(root: Path) -> str:
    """Return the ID of this machine among the machines that share a workspace."""
    path = root / "retention" / "machine"
    if not path.exists():
        write_bytes(path, uuid.uuid4().hex[:16].encode())
    return path.read_text()


# Reachable objects: manifests with their ancestry, and their blobs. Each manifest is read once; n manifests and m blobs
# take n reads and memory for n + m names.

#: Assets that are needed to search a run's data; kept if all their inputs are kept.
SEARCHED, YOUNG = "searched", "young"
#: Assets that are kept while their run exists; in a shared workspace, the run may be on another machine.
_TRAINED: Final = re.compile(r"run|checkpoint")
#: Reasons in order of precedence.
REASONS: Final = (*NAMED, SEARCHED, YOUNG)


@dataclass(frozen=True)
class ReadManifest:
    """Parts of a manifest that the survey needs until the manifest is known to be reachable."""

    asset: str
    inputs: tuple[str, ...]
    run: str
    blobs: Mapping[str, str]
    own_md5: str

    @classmethod
    def of(cls, digest: str, data: bytes) -> ReadManifest:
        """Parse the canonical form of a manifest.

        Raises:
            IntegrityError: the bytes are not a manifest.
        """
        try:
            content = json.loads(data)
            inputs = tuple(map(str, content["inputs"].values()))
            run = str(content.get("stats", {}).get("run_id", ""))
            asset = str(content["asset"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IntegrityError(
                f"{digest}.json is not a manifest",
                found=error,
                expected="an asset and its inputs",
                remedy="delete the file and run the same command again",
            ) from error
        return cls(asset, inputs, run, blobs(data), hashlib.md5(data, usedforsecurity=False).hexdigest())

    @property
    def names(self) -> set[str]:
        """References of the manifest: its inputs, its blobs, and the manifest's copy in DVC's layout."""
        return {*self.inputs, *self.blobs, self.own_md5}


@dataclass
class Reachable:
    """Kept manifests (by digest) and kept blobs (by MD5), each with the reason; `others` are unreferenced manifests."""

    manifests: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, str] = field(default_factory=dict)
    others: dict[str, ReadManifest] = field(default_factory=dict)


def reach(
    state: State, saved: Set[str], young: Set[str], roots: Mapping[str, Set[str]], progress: Progress
) -> Reachable:
    """Return all manifests and blobs that are reachable from the roots.

    Args:
        saved: digests of all manifests.
        young: digests of manifests that are too young to delete.
        roots: digests of manifests and blobs, by reason.

    Raises:
        IntegrityError, MissingError: a manifest cannot be read; its references are then unknown.
    """
    _require(state, roots.get(MANIFESTS, frozenset()) - saved)
    found = Reachable()
    for reason in NAMED:
        digests = roots.get(reason, frozenset())
        _take(found, reason, (one for one in digests if len(one) == MD5_LENGTH))
        _follow(state, found, saved, reason, digests)
    others = sorted(saved - found.manifests.keys())
    for digest, data in metered(progress, "reading manifests", state.refs.raw(others), len(others)):
        found.others[digest] = ReadManifest.of(digest, data)
    _follow(state, found, saved, RUN, _trained(state, found.others))
    _searched(state, found, saved)
    _follow(state, found, saved, YOUNG, young)
    signed = roots.get(RECORD, frozenset())
    for other in found.others.values():  # a record may name a blob by its SHA-256
        _take(found, RECORD, (md5 for md5, sha256 in other.blobs.items() if sha256 in signed))
    return found


def _require(state: State, digests: Iterable[str]) -> None:
    """Check that no manifest of a published asset is missing, because its blobs would seem unreferenced.

    Inputs of a manifest may be missing, because some inputs are inventories of raw files and not manifests.
    """
    try:
        for _ in state.refs.raw(sorted(digests)):
            pass
    except MissingError as error:
        raise MissingError(
            f"{error.what}, which a published asset references",
            expected="all published manifests, because the blobs of a missing manifest seem unreferenced; nothing was "
            "deleted",
            remedy=error.remedy,
        ) from error


def _follow(state: State, found: Reachable, saved: Set[str], reason: str, digests: Iterable[str]) -> None:
    """Mark manifests with these digests and all their inputs as kept."""
    layer = sorted({one for one in digests if one in saved and one not in found.manifests})
    while layer:
        found.manifests |= dict.fromkeys(layer, reason)
        further = set[str]()
        for made in _read(state, found, layer):
            _take(found, reason, (*made.blobs, made.own_md5))
            further |= {one for one in made.inputs if one in saved and one not in found.manifests}
        layer = sorted(further)


def _read(state: State, found: Reachable, digests: Iterable[str]) -> Iterator[ReadManifest]:
    wanted = list(digests)
    known = {digest: found.others.pop(digest) for digest in wanted if digest in found.others}
    yield from known.values()
    unread = [digest for digest in wanted if digest not in known]
    yield from (ReadManifest.of(digest, data) for digest, data in state.refs.raw(unread))


def _take(found: Reachable, reason: str, md5s: Iterable[str]) -> None:
    for md5 in md5s:
        found.blobs.setdefault(md5, reason)


def _trained(state: State, others: Mapping[str, ReadManifest]) -> list[str]:
    """Return the digests of the manifests of existing runs. In a shared workspace, every run counts as existing."""
    shared, runs = bool(state.workspace.uri), state.workspace.runs
    return [
        digest
        for digest, made in others.items()
        if _TRAINED.fullmatch(made.asset) and (shared or (made.run and (runs / made.run).is_dir()))
    ]


def _searched(state: State, found: Reachable, saved: Set[str]) -> None:
    """Mark ledgers and indexes over kept text as kept. They are needed to search the text of a run."""
    while True:
        whole = [
            digest
            for digest, made in found.others.items()
            if SEARCHED_ASSETS.fullmatch(made.asset)
            and all(one in found.manifests for one in made.inputs if one in saved)
        ]
        if not whole:
            return
        _follow(state, found, saved, SEARCHED, whole)

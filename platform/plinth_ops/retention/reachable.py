"""Everything that the roots need: manifests with all that they were made of, and every blob that these name.

A manifest is read once. n manifests and m blobs cost n reads and memory for n + m names; nothing else is read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from plinth.compute.progress import Progress, metered
from plinth.errors import IntegrityError, MissingError
from plinth.provenance.document_rows import SEARCHED_ASSETS
from plinth.storage.state import State
from plinth_ops.retention.roots import MANIFESTS, MD5_LENGTH, NAMED, RECORD, RUN, blobs

#: Searches of what runs have read look here; kept as long as everything that they were made of.
SEARCHED, YOUNG = "searched", "young"
#: What training cost. Kept while the run is there; in a shared workspace another machine may have it.
_TRAINED: Final = re.compile(r"run|checkpoint")
#: In the order in which a reason is stated.
REASONS: Final = (*NAMED, SEARCHED, YOUNG)


@dataclass(frozen=True)
class ReadManifest:
    """What a look needs of a manifest that nothing has reached yet."""

    asset: str
    inputs: tuple[str, ...]
    run: str
    blobs: Mapping[str, str]
    own_md5: str

    @classmethod
    def of(cls, digest: str, data: bytes) -> ReadManifest:
        """From its canonical form.

        Raises:
            IntegrityError: these bytes are no manifest.
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
        """Everything that must stay as long as it does: inputs, blobs, and itself as DVC keeps it."""
        return {*self.inputs, *self.blobs, self.own_md5}


@dataclass
class Reachable:
    """Manifests by digest and blobs by MD5, each with the reason why it is kept; `others` are manifests without one."""

    manifests: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, str] = field(default_factory=dict)
    others: dict[str, ReadManifest] = field(default_factory=dict)


def reach(
    state: State, saved: Set[str], young: Set[str], roots: Mapping[str, Set[str]], progress: Progress
) -> Reachable:
    """Follow every root.

    Args:
        saved: digests of all manifests.
        young: those that are too young to be deleted.
        roots: digests, of manifests and blobs, by reason.

    Raises:
        IntegrityError, MissingError: a manifest cannot be read, so that what it needs is not known.
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
    """Stop where the manifest of a published asset is gone: the blobs that it named would look unneeded. Of inputs this
    is not asked: some are inventories of raw files, which are no manifests."""
    try:
        for _ in state.refs.raw(sorted(digests)):
            pass
    except MissingError as error:
        raise MissingError(
            f"{error.what}, which a published asset refers to",
            expected="every such manifest: the blobs that it names would look unneeded; nothing was deleted",
            remedy=error.remedy,
        ) from error


def _follow(state: State, found: Reachable, saved: Set[str], reason: str, digests: Iterable[str]) -> None:
    """Manifests with these digests, and all that they were made of."""
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
    """Manifests of runs that are there, or may be on another machine."""
    shared, runs = bool(state.workspace.uri), state.workspace.runs
    return [
        digest
        for digest, made in others.items()
        if _TRAINED.fullmatch(made.asset) and (shared or (made.run and (runs / made.run).is_dir()))
    ]


def _searched(state: State, found: Reachable, saved: Set[str]) -> None:
    """Ledgers and indices over text that is kept: what a run has read is found in them."""
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

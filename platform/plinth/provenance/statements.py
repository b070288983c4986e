"""Provenance of a checkpoint: its whole ancestry by digest, as JSON and as an attestation in a standard format.

    Chain            every manifest between a checkpoint and the raw sources, in order of derivation
    provenance       the data of `provenance.json` in the signed directory
    slsa_statement   the same data as an in-toto Statement v1 with a SLSA Provenance v1 predicate

Signatures and keys (trust) and the verification that reads blobs again (lineage) do not belong here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from plinth import fingerprint
from plinth.corpus.sources.files import STAGE as WRITTEN
from plinth.errors import LineageError, PlinthError
from plinth.evaluation.comparison import models
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen, Manifest
from plinth.storage.state import Refs
from plinth.training import initial
from plinth.training.attempts import AttemptRecord, stated, together
from plinth.training.checkpoint import mean_record
from plinth.trust.dsse import statement

#: The predicate type of SLSA's Provenance v1 specification.
SLSA_PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:plinth:training:v1"
PROVENANCE_SCHEMA = "plinth/provenance/v1"

#: Assets of a run's initial weights (whose ancestry belongs to another run), and of external weights.
INITIAL, TEACHER, WEIGHTS = initial.ASSET, initial.TEACHER, models.MODEL_ASSET

#: The first stage reads inventories of raw files instead of manifests.
SOURCE_STAGE = "documents"

#: Inputs other than manifests: a user's own file by its bytes (a list, a protected set, a task, a probe), and
#: the listing of a location that `*/sources` shows and `documents` reads.
USER_FILE = "file:"
INVENTORY = "inventory"


class Link(Frozen):
    """One manifest in a chain: asset, digest, step, inputs."""

    asset: str
    digest: str
    step: str
    version: str
    inputs: Mapping[str, str]

    @property
    def walked(self) -> dict[str, str]:
        """Inputs that are manifests, by input key. For a stage that reads raw sources, only model-written texts are
        manifests."""
        if self.reads_sources:
            return {key: digest for key, digest in self.inputs.items() if key.endswith(f"/{WRITTEN}")}
        raw = {key for key in self.inputs if key == INVENTORY or key.startswith(USER_FILE)}
        return {key: digest for key, digest in self.inputs.items() if key not in raw}

    @property
    def raw(self) -> dict[str, str]:
        """Inputs that are not manifests: inventories of raw files, and the user's own files."""
        return {key: digest for key, digest in self.inputs.items() if key not in self.walked}

    @property
    def reads_sources(self) -> bool:
        """True if the stage reads inventories of raw files instead of manifests; model-written text is ignored."""
        return self.asset.rsplit("/", 1)[-1] == SOURCE_STAGE

    @property
    def derivation(self) -> tuple[str, ...]:
        """Inputs that belong to the run's own derivation. Initial weights have no such inputs. For a checkpoint
        average, the averaged checkpoints are omitted."""
        if self.step == initial.STEP.name:
            return ()
        mean = self.step == mean_record.AVERAGE
        return tuple(own for name, own in self.inputs.items() if not (mean and name.startswith(mean_record.PARENT)))


class Chain(Frozen):
    """Complete ancestry of one manifest. Inputs come before their consumers."""

    links: tuple[Link, ...]

    @cached_property
    def digests(self) -> frozenset[str]:
        """Every digest in the chain: manifests, source inventories, and the user's own files."""
        raw = {digest for link in self.links for digest in link.raw.values()}
        return frozenset(link.digest for link in self.links) | raw

    @cached_property
    def own(self) -> tuple[Link, ...]:
        """Links in the run's own derivation.

        The ancestry of initial weights and of teacher models is omitted. The checkpoints of a checkpoint average are
        omitted because they come from the same run.
        """
        by_digest = {link.digest: link for link in self.links}
        waiting, found = [self.links[-1].digest] if self.links else [], set[str]()
        while waiting:
            digest = waiting.pop()
            if digest in by_digest and digest not in found:
                found.add(digest)
                link = by_digest[digest]
                waiting += [] if link.asset.rsplit("/", 1)[-1] in (INITIAL, TEACHER) else link.derivation
        return tuple(link for link in self.links if link.digest in found)

    @property
    def sources(self) -> dict[str, str]:
        """Digests of the raw sources. Stages that read raw files are keyed by `asset:input key`, and external weights
        by asset.

        The keys of links outside the run's own derivation contain a digest, because two recipes may have buckets of the
        same name.
        """
        own, found = frozenset(link.digest for link in self.own), {}
        for link in self.links:
            name = link.asset if link.digest in own else f"{link.asset}.{link.digest[:8]}"
            if link.asset == WEIGHTS:
                found[name] = link.digest
            elif link.reads_sources:
                found |= {f"{name}:{key}": digest for key, digest in sorted(link.raw.items())}
        return found

    def require_sources(self) -> None:
        """Reject an ancestry that has no text source.

        Raises:
            LineageError: there is no raw source.
        """
        if not self.sources:
            end = self.links[-1]
            raise LineageError(
                f"{end.asset} {end.digest} has no raw source in its ancestry",
                found=f"{len(self.links)} manifests: {', '.join(sorted(link.asset for link in self.links))}",
                expected=f"at least one `*/{SOURCE_STAGE}` manifest with a source inventory",
                remedy="recreate it from a recipe: every manifest must list its inputs",
            )

    @property
    def data_versions(self) -> dict[str, str]:
        """Manifest digests by asset key for the `own` links. Dagster uses the digests as data versions.

        Raises:
            LineageError: an asset occurs in two versions, so one of the versions must be stale.
        """
        versions: dict[str, str] = {}
        for link in self.own:
            if versions.setdefault(link.asset, link.digest) != link.digest:
                raise LineageError(
                    f"one ancestry has two versions of {link.asset}",
                    found=f"{versions[link.asset]} and {link.digest}",
                    expected="one version of each asset",
                    remedy="run the recipe again so that every stage reads the same inputs",
                )
        return versions


def chain(refs: Refs, manifest: Manifest) -> Chain:
    """Walk from a manifest to the raw sources, loading and verifying every manifest on the way.

    A manifest that reads only the user's files is a valid start of a chain. For a model, `require_sources` is stricter.

    Raises:
        LineageError: a manifest is missing or changed, or there is no raw source. The error names the first broken link
            and the manifest that needs it.
    """
    links: dict[str, Link] = {}
    stack: list[tuple[Manifest, Iterator[tuple[str, str]]]] = []

    def enter(found: Manifest) -> None:
        link = _link(found)
        stack.append((found, iter(sorted(link.walked.items()))))

    enter(manifest)
    while stack:
        current, pending = stack[-1]
        for key, digest in pending:
            if digest not in links:
                enter(_load(refs, key, digest, current))
                break
        else:
            links[current.digest] = _link(current)
            stack.pop()
    found = Chain(links=tuple(links.values()))
    if not (len(found.links) == 1 and found.links[0].raw):  # such as a list, of a user's file alone
        found.require_sources()
    return found


def provenance(
    recipe: Recipe, checkpoint: Manifest, ancestry: Chain, *, run_id: str, run_key: str, training: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the data of `provenance.json`.

    Args:
        training: the trainer's signed attestations: `attempts` and `commit` (envelopes), and `manifest` (the files of
            the committed checkpoint). No other part of the provenance contains hosts and times.
    """
    return {
        "schema": PROVENANCE_SCHEMA,
        "recipe": {"name": recipe.name, "fingerprint": fingerprint.digest(recipe)},
        "run": {"id": run_id, "key": run_key},
        "checkpoint": {"asset": checkpoint.asset, "digest": checkpoint.digest},
        "files": {part.name: {"sha256": part.blob.sha256, "bytes": part.blob.bytes} for part in checkpoint.parts},
        "chain": [link.model_dump(mode="json") for link in ancestry.links],
        "sources": ancestry.sources,
        "materials": {name: _materials(recipe, name) for name in sorted(recipe.corpus.buckets)},
        "code": _code(training),
        "training": dict(training),
    }


def slsa_statement(provenance: Mapping[str, Any], subjects: Mapping[str, str]) -> dict[str, Any]:
    """Return an in-toto Statement v1 about the files of a model directory, with a SLSA Provenance v1 predicate.

    Args:
        provenance: result of `provenance()`.
        subjects: SHA-256 by file name, for every file of the directory.
    """
    training = provenance.get("training", {})
    attempts = attempts_of(training)
    began = {"startedOn": attempts[0].at} if attempts else {}
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"recipe": provenance["recipe"]},
            "internalParameters": {"run": provenance["run"], "checkpoint": provenance["checkpoint"]},
            "resolvedDependencies": [*_dependencies(provenance), *_environment(attempts)],
        },
        "runDetails": {
            "builder": {"id": "urn:plinth:trainer", "version": {"plinth": provenance["code"]["version"]}},
            "metadata": {"invocationId": provenance["run"]["id"], **began},
            "byproducts": [
                *(_attempt(envelope) for envelope in training.get("attempts", ())),
                *_contracts(training.get("contracts", ())),
            ],
        },
    }
    return statement(SLSA_PREDICATE, subjects, predicate)


def attempts_of(training: Mapping[str, Any]) -> tuple[AttemptRecord, ...]:
    """Return the trainer's attestations of attempts, in order, without verifying signatures.

    Raises:
        TrustError: a statement cannot be read.
    """
    return tuple(stated(envelope, f"attempt {at}") for at, envelope in enumerate(training.get("attempts", ()), 1))


def _link(manifest: Manifest) -> Link:
    return Link(
        asset=manifest.asset,
        digest=manifest.digest,
        step=manifest.step,
        version=manifest.version,
        inputs=dict(manifest.inputs),
    )


def _load(refs: Refs, key: str, digest: str, needed_by: Manifest) -> Manifest:
    try:
        return refs.load(digest)
    except PlinthError as error:
        raise LineageError(
            f"the ancestry breaks at {key}: manifest {digest}, an input of {needed_by.asset}, cannot be trusted",
            found=error.found or error.what,
            expected="a manifest whose bytes have that digest",
            remedy="restore the manifest from a backup, or run the recipe and the registration again",
        ) from error


def _materials(recipe: Recipe, bucket: str) -> list[dict[str, Any]]:
    """Return the declared terms of a bucket's sources. Locations are omitted, because they differ between machines."""
    return [
        source.model_dump(mode="json", include={"kind", "licence", "terms", "domain", "snapshot"})
        for source in recipe.corpus.buckets[bucket].sources
    ]


def _dependencies(provenance: Mapping[str, Any]) -> list[dict[str, Any]]:
    own = provenance["checkpoint"]["digest"]
    made = [
        {"name": link["asset"], "digest": {"sha256": link["digest"]}}
        for link in provenance["chain"]
        if link["digest"] != own
    ]
    raw = [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(provenance["sources"].items())]
    return raw + made


def _code(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the version of the code in the newest attempt, as recorded on the leading rank's machine."""
    host = attempts_of(training)[-1].hosts[0]
    commit = {"commit": host.commit, "dirty": host.dirty} if host.commit else {}
    return {"version": host.version, "sha256": together(host.code), **commit}


def _environment(attempts: Iterable[AttemptRecord]) -> list[dict[str, Any]]:
    """Return the distinct code versions, libraries and images of all attempts."""
    hosts = [host for attempt in attempts for host in attempt.hosts]
    named = [(name, "sha256", digest) for host in hosts for name, digest in host.code.items()]
    named += [("commit", "gitCommit", host.commit) for host in hosts]
    named += [("lockfile", "sha256", host.lockfile) for host in hosts]
    named += [("distributions", "sha256", host.distributions) for host in hosts]
    named += [(host.image or "image", "sha256", host.image_digest) for host in hosts]
    return [{"name": name, "digest": {kind: own}} for name, kind, own in dict.fromkeys(named) if own]


def _attempt(envelope: Mapping[str, Any]) -> dict[str, Any]:
    record = stated(envelope, "an attempt")
    return {"name": f"attempt {record.number}", "digest": {"sha256": fingerprint.digest(envelope)}}


def _contracts(envelopes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the launch contracts of a run, by number and digest."""
    return [
        {"name": f"launch contract {number}", "digest": {"sha256": fingerprint.digest(envelope)}}
        for number, envelope in enumerate(envelopes, 1)
    ]

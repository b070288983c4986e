"""Attempts of a run: one signed attestation per start of the ranks, with the code, libraries, image and processors of
each machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

import plinth
from plinth import fingerprint, processes
from plinth.entry_points import name_and_version
from plinth.errors import LineageError
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training import contract
from plinth.training.config import RunConfig
from plinth.training.contract import LaunchContract, NamedAt
from plinth.training.directory import RunDirectory
from plinth.training.upgrade.record import CodeComparison
from plinth.trust import dsse
from plinth.trust.dsse import OWNER, TRAINER, Authority
from plinth.trust.root import Trust

# Facts about a training machine: code, libraries, image, processors.
#
# Nothing is guessed: facts that a machine cannot determine are unknown. A process cannot see its container image;
# `$PLINTH_IMAGE` names it, set by the launcher on Kubernetes and elsewhere by the operator. That name is not verified.

IMAGE_VARIABLE = "PLINTH_IMAGE"
UNKNOWN = ""
#: Libraries whose versions are listed; the digest covers all.
SHOWN = ("torch", "deepspeed", "numpy", "transformers")
LOCKFILE = "constraints.txt"
TIMEOUT_S = 20.0

_IMAGE_DIGEST = re.compile(r"@sha256:([0-9a-f]{64})$")


class HostFacts(Frozen):
    """Hardware and software of one machine. Empty strings mean unknown."""

    host: str
    version: str = Field(UNKNOWN, description="Version of the Python package `plinth`.")
    commit: str = Field(UNKNOWN, description="Git commit of the code.")
    dirty: bool | None = Field(None, description="True if files differ from the commit; None if no commit is known.")
    no_commit: str = Field("", description="Reason why the Git commit of the code is unknown.")
    code: Mapping[str, str] = Field(description="For each package of Plinth, SHA-256 of its Python files.")
    lockfile: str = Field(UNKNOWN, description="SHA-256 of the lock file next to the code.")
    distributions: str = Field(UNKNOWN, description="SHA-256 of the names and versions of all installed packages.")
    libraries: Mapping[str, str] = Field(default_factory=dict, description="Versions of PyTorch and related libraries.")
    image: str = Field(UNKNOWN, description=f"Container image: the value of `${IMAGE_VARIABLE}`.")
    python: str
    system: str
    cpu: str = UNKNOWN
    cpus: int = Field(ge=0)
    gpus: tuple[str, ...] = ()

    @property
    def image_digest(self) -> str:
        """SHA-256 of the container image if its name contains a digest, otherwise empty. A tag alone can move to a
        different image."""
        found = _IMAGE_DIGEST.search(self.image)
        return found[1] if found else UNKNOWN

    @property
    def software(self) -> tuple[object, ...]:
        """Fields that identify the software of this machine."""
        return self.commit, self.dirty, together(self.code), self.lockfile, self.distributions, self.image

    @property
    def trains_with(self) -> str:
        """SHA-256 of the software that computes a step: Plinth's library, Python, and the libraries in `SHOWN`."""
        listed = {"plinth": self.code.get("plinth", UNKNOWN), "python": self.python, "libraries": dict(self.libraries)}
        return fingerprint.digest(listed)

    @property
    def hardware(self) -> tuple[str, str, int, tuple[str, ...]]:
        """Fields that identify the hardware of this machine."""
        return self.system, self.cpu, self.cpus, self.gpus


def this_host() -> HostFacts:
    """Return the hardware and software of this machine as they are now."""
    folder = Path(plinth.__file__).resolve().parent
    named = map(name_and_version, metadata.distributions())
    installed = sorted({f"{name.lower()}=={version}" for name, version in named})
    versions = dict(line.split("==", 1) for line in installed)
    system, cpu, cpus, gpus = hardware()
    return HostFacts(
        host=socket.gethostname(),
        version=plinth.__version__,
        **commit_of(folder),
        code=code_digests(),
        lockfile=file_digest(folder.parents[1] / LOCKFILE),
        distributions=hashlib.sha256("\n".join(installed).encode()).hexdigest(),
        libraries={name: versions[name] for name in SHOWN if name in versions},
        image=os.environ.get(IMAGE_VARIABLE, UNKNOWN),
        python=platform.python_version(),
        system=system,
        cpu=cpu,
        cpus=cpus,
        gpus=gpus,
    )


def hardware() -> tuple[str, str, int, tuple[str, ...]]:
    """Return the system, processor, number of processors and GPUs of this machine, as in `HostFacts.hardware`."""
    gpus = _called(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines()
    return f"{platform.system()} {platform.machine()}", _processor(), os.cpu_count() or 0, tuple(gpus)


def commit_of(folder: Path, file: str = "__init__.py") -> dict[str, object]:
    """Return the commit and state of the git work tree that tracks `file` in a folder, as fields of `HostFacts`.

    No commit is returned for a package in a virtual environment inside a repository, because git does not track it.
    """
    try:
        if not git(folder, "ls-files", "--", file):
            return {"no_commit": f"the code of {folder.name} is not tracked by git"}
        commit = git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(git(folder, "status", "--porcelain"))}
    except FileNotFoundError:
        return {"no_commit": "there is no git on this machine"}
    except (subprocess.SubprocessError, OSError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return {"no_commit": said[0] if said else "git failed"}


def git(folder: Path, *words: str) -> str:
    """Run git and return its output. Programs named in the repository's configuration are not started."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *words]
    own = {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    done = processes.run(command, own=own, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    return str(done.stdout.strip())


def _called(command: Sequence[str]) -> str:
    try:
        done = processes.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    except (subprocess.SubprocessError, OSError):
        return ""
    return str(done.stdout.strip())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, or an empty text if there is no such file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else UNKNOWN


# Digests of the running code: Plinth's library, registry, assets and jobs, as their files are now.
#
# They cover Python files and C files of kernels. Packages that are not installed have no digest; a training machine
# needs only the library.

#: The packages, in the order in which they import each other.
PACKAGES = ("plinth", "plinth_registry", "plinth_assets", "plinth_jobs")
#: Files that are code.
SUFFIXES = (".py", ".c", ".h")


def code_digests() -> dict[str, str]:
    """Return one SHA-256 per package of Plinth, over the names and bytes of its code files. Each call reads the files
    again."""
    return {name: _of_tree(root) for name, root in _roots()}


@cache
def code_version() -> dict[str, str]:
    """Return the version of `plinth`, and one SHA-256 over the digests of all installed packages of Plinth."""
    return {"version": plinth.__version__, "sha256": together(code_digests())}


def together(digests: Mapping[str, str]) -> str:
    """Return one SHA-256 over the digests of several packages."""
    listed = "".join(f"{name}:{digest}\n" for name, digest in digests.items())
    return hashlib.sha256(listed.encode()).hexdigest()


def _roots() -> Iterator[tuple[str, Path]]:
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:  # a folder without `__init__.py` belongs to another package
            yield name, Path(spec.origin).parent


def _of_tree(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root).as_posix()}:{content}\n".encode())
    return digest.hexdigest()


# Statements of a run: each start of its ranks, signed as trainer beforehand.
#
#     runs/<run>/attempts/0001.json                      DSSE envelope: subject config.json, predicate `AttemptRecord`
#     runs/<run>/checkpoints/step-00000100/attempts.json all statements up to this checkpoint
#
# Each statement has the digest of the previous one. A checkpoint's manifest lists `attempts.json`, and its commit
# record is signed, so earlier statements cannot be removed or replaced later, and they travel with the checkpoint. A
# statement reports what the trainer's process found; a user who controls that machine can forge it.

PREDICATE: Final = "urn:plinth:training-attempt:v1"
#: File of a checkpoint with every statement up to it.
BUNDLE: Final = "attempts.json"

Envelope = Mapping[str, Any]

#: Keys of a configuration that is compared with the run's contract or preparation.
_BINDING = re.compile(rb'"(contract|identity)"')


class ContinuedState(Frozen):
    """State with which the ranks of an attempt continued after a loss, before they took a step.

    The digests are SHA-256 over the ranks' digests, in order: of the copies that the ranks sent before the loss, and of
    the memory of the ranks after the restore. They are empty if the state came from a checkpoint.
    """

    lost: str = Field(description="The lost ranks, and how they were lost.")
    replaced: tuple[str, ...] = Field((), description="Lost nodes, and the spare that took the place of each.")
    step: int = Field(ge=0, description="Step after which the ranks continued.")
    source: Literal["memory", "checkpoint"] = Field(description="Origin of the state.")
    copies_sha256: str = ""
    restored_sha256: str = ""

    @property
    def in_words(self) -> str:
        """The step, the origin of the state, and the loss."""
        memory = f"equal copies in memory ({self.restored_sha256[:12]})"
        origin = memory if self.source == "memory" else "the checkpoint"
        return f"continued after step {self.step} from {origin} ({self.lost})"


class AttemptRecord(Frozen):
    """Record of one start of the ranks of a run, all or some of them."""

    run: str
    key: str = Field(description="Identity of the run: its parameters and data.")
    number: int = Field(ge=1)
    previous: str = Field("", description="SHA-256 of the previous attempt's canonical envelope; empty for attempt 1.")
    config_sha256: str = Field(description="SHA-256 of config.json, which contains all parameters of this attempt.")
    from_step: int = Field(ge=0, description="Newest step with a committed checkpoint when the attempt started.")
    ranks: int = Field(ge=1)
    nodes: int = Field(ge=1)
    hosts: tuple[HostFacts, ...] = Field(min_length=1, description="Machines of the run, the leading rank's first.")
    audit: bool = Field(False, description="True if the ranks replay steps to prove that a resume is exact.")
    upgrade: CodeComparison | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="Comparison with the code of the attempts before, after which this code took over.",
    )
    at: str = Field(description="Start time of the attempt in UTC, as ISO 8601.")
    contract: str = Field(
        "",
        exclude_if=lambda given: not given,
        description="SHA-256 of the canonical envelope of the launch contract in force; empty if there is none.",
    )
    identity: str = Field(
        "",
        exclude_if=lambda given: not given,
        description="Digest of the settings that identify the run, the same in all attempts.",
    )
    continuation: ContinuedState | None = Field(
        None, exclude_if=lambda given: given is None, description="State after a recovery in place or from memory."
    )
    trace: str = Field(
        UNKNOWN, exclude_if=lambda given: not given, description="Trace id of `$TRACEPARENT` (W3C Trace Context)."
    )

    @property
    def silent_nodes(self) -> int:
        """Number of machines that had not reported their facts when the attempt started."""
        return self.nodes - len(self.hosts)


def state(
    run: RunDirectory,
    config: bytes,
    key: str,
    *,
    ranks: int,
    nodes: int,
    hosts: Sequence[HostFacts],
    audit: bool,
    upgrade: CodeComparison | None = None,
    continuation: ContinuedState | None = None,
) -> AttemptRecord:
    """Sign and write the attestation of an attempt that starts now.

    Args:
        config: content of config.json.
        key: identity of the run.
        upgrade: comparison with the code of earlier attempts, if this code has replaced it.
        continuation: state of the ranks, if they continue after a loss.

    Raises:
        LineageError: an earlier attestation was changed or removed, or the run differs from its launch contract.
        ResumeError: the run's configuration was edited.
        MissingError: the run requires a launch contract, and there is none.
        SignatureError: this machine has no trainer key, or the launch contract is not validly signed.
    """
    trust, earlier = Trust.of(Workspace(run.workspace)), known(run)
    records = opened(earlier, trust.authority(TRAINER), run.root.name) if earlier else ()
    signed = contracts(run)
    bound = signed or any(one.contract or one.identity for one in records) or _BINDING.search(config)
    own = configuration.parsed(config, run.config) if bound else None
    promised = contract.require(own, signed, trust.authority(OWNER), named(records), dsse.now()) if own else None
    made = AttemptRecord(
        run=run.root.name,
        key=key,
        number=len(earlier) + 1,
        previous=fingerprint.digest(earlier[-1]) if earlier else "",
        config_sha256=hashlib.sha256(config).hexdigest(),
        from_step=max((int(one.stem.removeprefix("step-")) for one in _committed(run)), default=0),
        ranks=ranks,
        nodes=nodes,
        hosts=tuple(hosts),
        audit=audit,
        upgrade=upgrade,
        continuation=continuation,
        at=dsse.now(),
        trace=dsse.trace_id(),
        contract=promised.sha256 if promised else "",
        identity=_identity(own, records) if own else "",
    )
    content = dsse.statement(PREDICATE, {"config.json": made.config_sha256}, made.model_dump(mode="json"))
    for folder, envelopes in ((run.attempts, earlier), (run.contracts, signed)):
        for number, envelope in enumerate(envelopes, 1):  # on a machine that has only the checkpoint
            path = folder / f"{number:04d}.json"
            if not path.exists():
                write_bytes(path, fingerprint.canonical(envelope))
    dsse.write(run.attempts / f"{made.number:04d}.json", content, trust.signer(TRAINER))
    return made


def _identity(own: RunConfig, earlier: Sequence[AttemptRecord]) -> str:
    """Return the digest of the settings that the ranks will read, after comparing it with the run's preparation and its
    earlier attempts; empty if neither has one."""
    configuration.require_prepared(own)
    stated = next((one for one in earlier if one.identity), None)
    if stated is None:
        return own.identity
    configuration.require_identity(own, stated.identity, f"attempt {stated.number}")
    return stated.identity


def named(records: Sequence[AttemptRecord]) -> list[NamedAt]:
    """Return the contract that each attempt names, with the start time of the attempt."""
    return [NamedAt(one.contract, one.at) for one in records]


def contracts(run: RunDirectory) -> list[Envelope]:
    """Return the unverified launch contracts of a run, in order, from the run's folder. If the folder has none, read
    them from the newest committed checkpoint."""
    return contract.known(run) or [*next(((json.loads(data).get("contracts", ())) for data in _bundles(run)), ())]


def in_force(config: RunConfig) -> LaunchContract | None:
    """Return the launch contract that the newest attempt of a run names, or None. The start of the attempt verified
    it."""
    newest = known(config.directory)[-1:]
    digest = stated(newest[0], config.run_id).contract if newest else ""
    found = (one for one in contracts(config.directory) if digest and fingerprint.digest(one) == digest)
    return next((LaunchContract.model_validate(dsse.unverified(one, "a contract")["predicate"]) for one in found), None)


def known(run: RunDirectory) -> list[Envelope]:
    """Return the unverified attestations of a run, in order, from the run's folder. If the folder has none, read them
    from the newest committed checkpoint."""
    own: list[Envelope] = [dsse.envelope_of(path) for path in sorted(run.attempts.glob("[0-9]*.json"))]
    return own or [*next(map(unpacked, _bundles(run)), ())]


def bundle(run: RunDirectory) -> bytes | None:
    """Return the run's attestations and contracts as the content of `attempts.json` in a checkpoint, or None if there
    are none."""
    envelopes, signed = known(run), contracts(run)
    return fingerprint.canonical(bundled(envelopes, signed)) if envelopes else None


def bundled(attempts: Sequence[Envelope], signed: Sequence[Envelope]) -> dict[str, Any]:
    """Return the content of `attempts.json`. Without contracts it is the same as before contracts existed."""
    return {"attempts": list(attempts), **({"contracts": list(signed)} if signed else {})}


def _bundles(run: RunDirectory) -> Iterator[bytes]:
    """Yield the content of `attempts.json` in the committed checkpoints, newest first."""
    for record in reversed(_committed(run)):
        if (path := record.with_suffix("") / BUNDLE).exists():
            yield path.read_bytes()


def unpacked(data: bytes, kind: str = "attempts") -> tuple[Envelope, ...]:
    """Return the unverified statements of one kind (`attempts`, `contracts`) in the content of an `attempts.json`.

    Raises:
        LineageError: the content is not a list of envelopes.
    """
    try:
        found = json.loads(data)[kind]
        return tuple(dict(one) for one in found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LineageError(f"{BUNDLE} contains no attestations of a run", found=error) from error


def opened(envelopes: Sequence[Envelope], authority: Authority, run: str) -> tuple[AttemptRecord, ...]:
    """Verify a run's attestations and return their records. Each must be signed by the trainer and must link to the
    previous attestation.

    Raises:
        LineageError: the list is empty, an attestation is missing or out of order, or it belongs to another run.
        SignatureError: the trainer did not sign one of the attestations.
    """
    found = tuple(_opened(envelopes, authority))
    expected = [(run, at + 1, fingerprint.digest(envelopes[at - 1]) if at else "") for at in range(len(envelopes))]
    if not found or [(one.run, one.number, one.previous) for one in found] != expected:
        raise LineageError(
            f"the attestations of run {run} do not form a complete chain",
            found=", ".join(f"{one.number} of {one.run}" for one in found) or "no attestation",
            expected=f"attestations 1 to {max(len(found), 1)} of {run}, each with the digest of the previous one",
            remedy="restore runs/<run>/attempts from a backup; without them the run has no provenance",
        )
    return found


def stated(envelope: Envelope, where: str) -> AttemptRecord:
    """Return the attempt that an envelope describes, without verifying the signature. Use it for searches only.

    Raises:
        LineageError, SignatureError: the envelope is not the attestation of an attempt.
    """
    return _record(dsse.unverified(envelope, where), where)


def _opened(envelopes: Sequence[Envelope], authority: Authority) -> Iterator[AttemptRecord]:
    for number, envelope in enumerate(envelopes, 1):
        where = f"attempt {number}"
        content = dsse.opened(envelope, authority, PREDICATE, where)
        record = _record(content, where)
        if dsse.subjects(content) != {"config.json": record.config_sha256}:
            raise LineageError(f"{where} has another configuration", found=dsse.subjects(content))
        continued = record.continuation
        if continued is not None and continued.copies_sha256 != continued.restored_sha256:
            raise LineageError(
                f"{where} continued with a state that differs from the copies of its ranks",
                found=continued.restored_sha256,
                expected=continued.copies_sha256,
            )
        yield record


def _record(content: Mapping[str, Any], where: str) -> AttemptRecord:
    try:
        return AttemptRecord.model_validate(content["predicate"])
    except (ValidationError, KeyError) as error:
        raise LineageError(f"{where} is not the attestation of an attempt", found=error) from error


def _committed(run: RunDirectory) -> list[Path]:
    return sorted(path for path in run.checkpoints.glob("step-*.json") if path.stem.removeprefix("step-").isdigit())

